"""Padding by any mode, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.cpu._taps import axis_taps
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import constants, dtype, operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.image.resampling import Taps
from graphkit.ops.tensor.pad import Pad, PadGrad, pad_sources, pad_widths
from graphkit.ops.xp import numpy_xp


def _pad_maps(mode: str, sizes: Sequence[int], pads: Value | None, axes: Value | None) -> list[list[int] | None] | None:
    """For each axis the positions that padding an array of `sizes` copies, -1 for the fill value; None: as it is.

    None in place of the list when an operand is not known.
    """
    widths, where = constants(pads), constants(axes)
    if widths is None or (where is None and axes is not None):
        return None
    known = None if where is None else np.array(where, np.int64)
    maps: list[list[int] | None] = []
    for size, (before, after) in zip(sizes, pad_widths(len(sizes), np.array(widths, np.int64), known), strict=True):
        if before == after == 0:
            maps.append(None)
        elif mode == "constant":
            position = np.arange(-before, size + after)
            kept = (position >= max(-before, 0)) & (position < size + min(after, 0))
            maps.append(np.where(kept, position, -1).tolist())
        else:
            maps.append(pad_sources(numpy_xp, size, before, after, mode).tolist())
    return maps


@kernel("Pad")
def _pad(node: Node, context: KernelContext) -> Kernel | None:
    x, op = shape(node.inputs[0]), operator(node, Pad)
    maps = _pad_maps(op.mode, x, operand(node, 1), operand(node, 3))
    if maps is None:
        return None
    value = operand(node, 2) if op.mode == "constant" else None
    fill = None if value is None else shape(value)
    return native.Pad(x, maps, shape(node.inputs[1]), fill, dtype(node), context.threads)


@kernel("PadGrad", DOMAIN)
def _pad_grad(node: Node, context: KernelContext) -> Kernel | None:
    dy, dx = shape(node.inputs[0]), shape(node.output)
    maps = _pad_maps(operator(node, PadGrad).mode, dx, operand(node, 2), operand(node, 3))
    if maps is None:
        return None
    axes = []
    for axis, (size, positions) in enumerate(zip(dx, maps, strict=True)):
        if positions is not None:
            axes.append(axis_taps(axis, Taps.copies(np.array(positions, np.int64), size).transposed()))
    return native.Resample("PadGrad", dy, axes, 0.0, False, dtype(node), context.threads)
