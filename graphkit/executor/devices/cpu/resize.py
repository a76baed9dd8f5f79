"""Resize and its gradient. Mode nearest copies elements; the other modes compute a weighted sum along each axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.executor.devices.cpu._base import axis_taps, kernel, native
from graphkit.executor.devices.geometry import resized_axes
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.image.resize import Resize, ResizeGrad


@kernel("Resize")
def _resize(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Resize)
    x, dtype = shape(node.inputs[0]), node.output.dtype
    plan = resized_axes(node, context, 1, x)
    if plan is None:
        return None
    masks = {axis.axis: op.outside(axis) for axis in plan}
    if op.mode == "nearest":
        maps: list[Any] = [None] * len(x)
        for axis in plan:
            places = op.nearest(axis)
            mask = masks[axis.axis]
            maps[axis.axis] = (places if mask is None else np.where(mask, -1, places)).tolist()
        fill = np.asarray(op.extrapolation_value).astype(dtype.numpy).tobytes()
        return native.ResizeNearest(x, maps, fill, dtype.value, context.threads)
    axes = [axis_taps(axis.axis, op.taps(axis), masks[axis.axis]) for axis in plan]
    fill_value = float(op.extrapolation_value)
    return native.Resample("Resize", x, axes, fill_value, op.rounds, dtype.value, context.threads)


@kernel("ResizeGrad", DOMAIN)
def _resize_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, ResizeGrad)
    dy, dx = shape(node.inputs[0]), shape(node.output)
    plan = resized_axes(node, context, 2, dx)
    if plan is None:
        return None
    axes = [axis_taps(axis.axis, op.taps(axis).transposed()) for axis in plan]
    return native.Resample("ResizeGrad", dy, axes, 0.0, False, node.output.dtype.value, context.threads)
