"""Resizing and its gradient. The mode "nearest" copies elements; other modes are weighted sums along each axis."""

from __future__ import annotations

import numpy as np

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Table, launched
from graphkit.executor.devices.cuda.movement.copies import UNITS, unit_of
from graphkit.executor.devices.cuda.resampling.axis import Axis
from graphkit.executor.devices.cuda.resampling.gathers import Along, Places, gathered
from graphkit.executor.devices.cuda.resampling.weighted import Resampled, resampled
from graphkit.executor.devices.geometry import resized_axes
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.image.resize import Axis as ResizedAxis
from graphkit.ops.image.resize import Resize, ResizeGrad

# Unsigned integer types by their number of bytes.
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@launched("Resize")
def _resize(node: Node, context: KernelContext) -> CardKernel | None:
    op, x, y = operator(node, Resize), shape(node.inputs[0]), shape(node.output)
    plan = resized_axes(node, context, 1, x)
    if plan is None:
        return None
    changed = {axis.axis: axis for axis in plan}
    if op.mode == "nearest":
        return _nearest(node, op, changed)
    axes = [
        Resampled(size, results, op.taps(changed[a]), op.outside(changed[a])) if a in changed else Axis(size, size)
        for a, (size, results) in enumerate(zip(x, y, strict=True))
    ]
    return resampled("resize", node, axes, float(op.extrapolation_value))


def _nearest(node: Node, op: Resize, changed: dict[int, ResizedAxis]) -> CardKernel | None:
    x, y, kind, unit = shape(node.inputs[0]), shape(node.output), node.output.dtype, unit_of(node.inputs[0])
    if unit not in _BITS:
        return None
    fill = np.asarray(op.extrapolation_value).astype(kind.numpy).reshape(1).view(_BITS[unit])[0]
    assert UNITS[unit]
    axes: list[Axis] = []
    for a, (size, results) in enumerate(zip(x, y, strict=True)):
        if a not in changed or not results:
            axes.append(Axis(size, results))
            continue
        outside, places = op.outside(changed[a]), op.nearest(changed[a])
        chosen = places if outside is None else np.where(outside, -1, places)
        axes.append(Along(size, results, _chosen(chosen), outside is not None))
    return gathered("resize_nearest", axes, unit, ("fill", fill))


def _chosen(places: np.ndarray) -> Places:
    table = Table(places.astype(np.int32))

    def lines(a: int, signed: str) -> tuple[list[str], list[tuple[str, Argument]]]:
        return [f"const {signed} place{a} = chosen{a}[i{a}_at];"], [(f"const gk_i32* chosen{a}", table)]

    return lines


@launched("ResizeGrad", DOMAIN)
def _resize_grad(node: Node, context: KernelContext) -> CardKernel | None:
    op, dy, dx = operator(node, ResizeGrad), shape(node.inputs[0]), shape(node.output)
    plan = resized_axes(node, context, 2, dx)
    if plan is None:
        return None
    taps = {axis.axis: op.taps(axis).transposed() for axis in plan}
    axes = [
        Resampled(size, results, taps[a]) if a in taps else Axis(size, results)
        for a, (size, results) in enumerate(zip(dy, dx, strict=True))
    ]
    return resampled("resize_grad", node, axes)
