"""Kernels that move elements whose places are known when the kernel is made, of any element type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import constants, kernel, native, operand, shape
from graphkit.executor.devices.cpu._taps import axis_taps
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN
from graphkit.ops.image.resampling import Taps
from graphkit.ops.tensor.pad import pad_sources, pad_widths
from graphkit.ops.tensor.slicing import slice_index
from graphkit.ops.xp import numpy_xp


def row_major(sizes: Sequence[int]) -> list[int]:
    """Elements between neighbours along each axis."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]


def _dtype(node: Node) -> str:
    return node.outputs[0].dtype.value


def _view(node: Node, context: KernelContext, sizes: Sequence[int], strides: Sequence[int], offset: int = 0) -> Any:
    """The kernel whose output has the elements of a regular view of input 0, in row-major order."""
    x, y = shape(node.inputs[0]), shape(node.output)
    return native.StridedView(node.op.name, x, y, sizes, strides, offset, _dtype(node), context.threads)


@kernel("Transpose")
def _transpose(node: Node, context: KernelContext) -> Any:
    x, op = shape(node.inputs[0]), node.op
    perm = tuple(reversed(range(len(x)))) if op.perm is None else op.perm  # type: ignore[attr-defined]
    strides = row_major(x)
    return _view(node, context, [x[axis] for axis in perm], [strides[axis] for axis in perm])


@kernel("Expand")
def _expand(node: Node, context: KernelContext) -> Any:
    x, y = shape(node.inputs[0]), shape(node.output)
    strides = [0 if size == 1 else stride for size, stride in zip(x, row_major(x), strict=True)]
    return _view(node, context, y, [0] * (len(y) - len(x)) + strides)


@kernel("Tile")
def _tile(node: Node, context: KernelContext) -> Any:
    x = shape(node.inputs[0])
    repeats = constants(operand(node, 1))
    if repeats is None:
        return None
    sizes = [size for pair in zip(repeats, x, strict=True) for size in pair]
    strides = [stride for pair in zip([0] * len(x), row_major(x), strict=True) for stride in pair]
    return _view(node, context, sizes, strides)


def _blocks(node: Node, context: KernelContext, split: Sequence[int], order: Sequence[int]) -> Any:
    """x reshaped to `split` and transposed to `order`."""
    strides = row_major(split)
    return _view(node, context, [split[axis] for axis in order], [strides[axis] for axis in order])


@kernel("DepthToSpace")
def _depth_to_space(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    (n, c, h, w), b = shape(node.inputs[0]), op.blocksize
    if op.mode == "DCR":
        return _blocks(node, context, (n, b, b, c // (b * b), h, w), (0, 3, 4, 1, 5, 2))
    return _blocks(node, context, (n, c // (b * b), b, b, h, w), (0, 1, 4, 2, 5, 3))


@kernel("SpaceToDepth")
def _space_to_depth(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    (n, c, h, w), b = shape(node.inputs[0]), op.blocksize
    order = (0, 3, 5, 1, 2, 4) if op.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return _blocks(node, context, (n, c, h // b, b, w // b, b), order)


def _window(node: Node, first: int, sizes: Sequence[int]) -> tuple[list[range], list[int], int] | None:
    """What a slice of an array of `sizes` takes: the positions along each axis, strides, offset.

    `first` is the position of the operand `starts`. None when an operand is not known.
    """
    bounds = [operand(node, first + i) for i in range(4)]
    known = [constants(v) for v in bounds]
    if any(k is None and v is not None for k, v in zip(known, bounds, strict=True)):
        return None
    index = slice_index(sizes, *(None if k is None else np.array(k, np.int64) for k in known))
    spans = [range(size)[part] for size, part in zip(sizes, index, strict=True)]
    places = row_major(sizes)
    offset = sum(span.start * place for span, place in zip(spans, places, strict=True))
    return spans, [span.step * place for span, place in zip(spans, places, strict=True)], offset


@kernel("Slice")
def _slice(node: Node, context: KernelContext) -> Any:
    window = _window(node, 1, shape(node.inputs[0]))
    if window is None:
        return None
    spans, strides, offset = window
    return _view(node, context, [len(span) for span in spans], strides, offset)


@kernel("SliceGrad", DOMAIN)
def _slice_grad(node: Node, context: KernelContext) -> Any:
    dy, dx = shape(node.inputs[0]), shape(node.output)
    window = _window(node, 2, dx)
    if window is None:
        return None
    _, strides, offset = window
    return native.StridedPlacement("SliceGrad", dy, dx, strides, offset, _dtype(node), context.threads)


@kernel("Concat")
def _concat(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    return native.Concat([shape(x) for x in node.inputs], op.axis, _dtype(node), context.threads)


@kernel("Split")
def _split(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x = shape(node.inputs[0])
    sizes = [shape(y)[op.axis] for y in node.outputs]
    return native.Split(x, sizes, op.axis, _dtype(node), context.threads)


def _pad_maps(node: Node, sizes: Sequence[int], pads: Value | None, axes: Value | None) -> list[Any] | None:
    """For each axis the positions that padding an array of `sizes` copies, -1 for the fill value; None: as it is.

    None in place of the list when an operand is not known.
    """
    op: Any = node.op
    widths, where = constants(pads), constants(axes)
    if widths is None or (where is None and axes is not None):
        return None
    known = None if where is None else np.array(where, np.int64)
    maps: list[Any] = []
    for size, (before, after) in zip(sizes, pad_widths(len(sizes), np.array(widths, np.int64), known), strict=True):
        if before == after == 0:
            maps.append(None)
        elif op.mode == "constant":
            position = np.arange(-before, size + after)
            kept = (position >= max(-before, 0)) & (position < size + min(after, 0))
            maps.append(np.where(kept, position, -1).tolist())
        else:
            maps.append(pad_sources(numpy_xp, size, before, after, op.mode).tolist())
    return maps


@kernel("Pad")
def _pad(node: Node, context: KernelContext) -> Any:
    x, op = shape(node.inputs[0]), node.op
    maps = _pad_maps(node, x, operand(node, 1), operand(node, 3))
    if maps is None:
        return None
    value = operand(node, 2) if op.mode == "constant" else None  # type: ignore[attr-defined]
    fill = None if value is None else shape(value)
    return native.Pad(x, maps, shape(node.inputs[1]), fill, _dtype(node), context.threads)


@kernel("PadGrad", DOMAIN)
def _pad_grad(node: Node, context: KernelContext) -> Any:
    dy, dx = shape(node.inputs[0]), shape(node.output)
    maps = _pad_maps(node, dx, operand(node, 2), operand(node, 3))
    if maps is None:
        return None
    axes = []
    for axis, (size, positions) in enumerate(zip(dx, maps, strict=True)):
        if positions is not None:
            axes.append(axis_taps(axis, Taps.copies(np.array(positions, np.int64), size).transposed()))
    return native.Resample("PadGrad", dy, axes, 0.0, False, _dtype(node), context.threads)
