"""Operators whose result is a strided view of their first operand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graphkit.executor.devices.operands import constants, operand, repeating, row_major, shape
from graphkit.ir.graph import Node
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import operator
from graphkit.ops.tensor.layout import Transpose
from graphkit.ops.tensor.slicing import slice_index


class View(NamedTuple):
    """A strided view of an array: sizes, strides and offset, in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0


def window(node: Node, first: int, sizes: Sequence[int]) -> View | None:
    """Return the view of an array of `sizes` that a slice selects; None if an operand of the slice is not known.

    first: the position of the operand `starts`.
    """
    bounds = [operand(node, first + i) for i in range(4)]
    known = [constants(v) for v in bounds]
    if any(k is None and v is not None for k, v in zip(known, bounds, strict=True)):
        return None
    index = slice_index(sizes, *(None if k is None else np.array(k, np.int64) for k in known))
    spans = [range(size)[part] for size, part in zip(sizes, index, strict=True)]
    places = row_major(sizes)
    offset = sum(span.start * place for span, place in zip(spans, places, strict=True))
    return View(tuple(map(len, spans)), tuple(s.step * p for s, p in zip(spans, places, strict=True)), offset)


def _slice(node: Node) -> View | None:
    return window(node, 1, shape(node.inputs[0]))


def _transpose(node: Node) -> View:
    x, op = shape(node.inputs[0]), operator(node, Transpose)
    return _ordered(x, tuple(reversed(range(len(x)))) if op.perm is None else op.perm)


def _expand(node: Node) -> View:
    x, y = shape(node.inputs[0]), shape(node.output)
    return View(y, tuple(repeating(x, y)))


def _tile(node: Node) -> View | None:
    x = shape(node.inputs[0])
    repeats = constants(operand(node, 1))
    if repeats is None:
        return None
    sizes = [size for pair in zip(repeats, x, strict=True) for size in pair]
    strides = [stride for pair in zip([0] * len(x), row_major(x), strict=True) for stride in pair]
    return View(tuple(sizes), tuple(strides))


def _ordered(split: Sequence[int], order: Sequence[int]) -> View:
    """Return the view of x reshaped to `split` and transposed to `order`."""
    strides = row_major(split)
    return View(tuple(split[axis] for axis in order), tuple(strides[axis] for axis in order))


def _depth_to_space(node: Node) -> View:
    from graphkit.ops.tensor.rearrangement import DepthToSpace

    op = operator(node, DepthToSpace)
    (n, c, h, w), b = shape(node.inputs[0]), op.blocksize
    if op.mode == "DCR":
        return _ordered((n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))
    return _ordered((n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))


def _space_to_depth(node: Node) -> View:
    from graphkit.ops.tensor.rearrangement import SpaceToDepth

    op = operator(node, SpaceToDepth)
    (n, c, h, w), b = shape(node.inputs[0]), op.blocksize
    order = (0, 3, 5, 1, 2, 4) if op.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return _ordered((n, c, h // b, b, w // b, b), order)


# By the name of an operator of ai.onnx: returns the view of a node of static types; None if it is known only in a run.
VIEWS: dict[str, Callable[[Node], View | None]] = {
    "Slice": _slice,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}
