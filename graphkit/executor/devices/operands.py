"""Shapes, types, strides and known elements of a node's operands, for factories of kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.ir.graph import Node, Value


def operand(node: Node, position: int) -> Value | None:
    """Return the node's input at `position`, or None if it is absent."""
    return node.inputs[position] if position < len(node.inputs) else None


def shape(value: Value | None) -> tuple[int, ...]:
    """Return the static shape of an operand, which must be present."""
    assert value is not None
    return value.tensor.static_shape


def dtype(node: Node, position: int = 0) -> str:
    """Return the name of the element type of an operand, which must be present."""
    value = operand(node, position)
    assert value is not None
    return value.dtype.value


def row_major(sizes: Sequence[int]) -> list[int]:
    """Return the strides of a C-contiguous array, in elements."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def channel_strides(sizes: Sequence[int], *, last: bool) -> list[int]:
    """Return the strides of an array [N, C, *spatial], in elements. last: its memory is [N, *spatial, C]."""
    if not last:
        return row_major(sizes)
    image, *spatial, channel = row_major([sizes[0], *sizes[2:], sizes[1]])
    return [image, channel, *spatial]


def repeating(operand: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the strides, in elements, of a C-contiguous operand that is broadcast to `shape`.

    The stride is 0 along axes where the operand is repeated or has size 1.
    """
    strides = [0 if size == 1 else stride for size, stride in zip(operand, row_major(operand), strict=True)]
    return [0] * (len(shape) - len(operand)) + strides


def around(sizes: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the product of the sizes before an axis, its size, and the product of the sizes after it."""
    axis %= max(len(sizes), 1)
    return math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])


def constants(value: Value | None) -> tuple[int, ...] | None:
    """Return the elements of an integer operand; None if they are not known or it is absent."""
    return None if value is None else value.tensor.constants
