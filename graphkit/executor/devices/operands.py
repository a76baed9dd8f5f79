"""What factories ask of a node's operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.ir.graph import Node, Value


def operand(node: Node, position: int) -> Value | None:
    """The node's input at `position`; None when it is absent."""
    return node.inputs[position] if position < len(node.inputs) else None


def shape(value: Value | None) -> tuple[int, ...]:
    """The static shape of an operand that is there."""
    assert value is not None
    return value.tensor.static_shape


def dtype(node: Node, position: int = 0) -> str:
    """The name of the element type of an operand that is there."""
    value = operand(node, position)
    assert value is not None
    return value.dtype.value


def row_major(sizes: Sequence[int]) -> list[int]:
    """Elements between neighbours along each axis."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def channel_strides(sizes: Sequence[int], *, last: bool) -> list[int]:
    """The same of sizes [N, C, *spatial], where memory is [N, *spatial, C] if `last`."""
    if not last:
        return row_major(sizes)
    image, *spatial, channel = row_major([sizes[0], *sizes[2:], sizes[1]])
    return [image, channel, *spatial]


def repeating(operand: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Elements between neighbours of a C-contiguous operand along the axes of the shape that it is broadcast to, by
    numpy's rules; 0 where it is repeated, or has one.
    """
    strides = [0 if size == 1 else stride for size, stride in zip(operand, row_major(operand), strict=True)]
    return [0] * (len(shape) - len(operand)) + strides


def around(sizes: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Sizes of all axes before an axis, of that one, and of all behind it."""
    axis %= max(len(sizes), 1)
    return math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])


def constants(value: Value | None) -> tuple[int, ...] | None:
    """The elements of an integer operand, where they are known; None for an absent one too."""
    return None if value is None else value.tensor.constants
