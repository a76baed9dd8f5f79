"""Padding by any mode, and its gradient."""

from __future__ import annotations

import numpy as np

from graphkit.executor.devices.cpu._base import axis_taps, kernel, native
from graphkit.executor.devices.geometry import pad_maps
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.image.resampling import Taps
from graphkit.ops.tensor.pad import Pad, PadGrad


@kernel("Pad")
def _pad(node: Node, context: KernelContext) -> Kernel | None:
    x, op = shape(node.inputs[0]), operator(node, Pad)
    maps = pad_maps(op.mode, x, operand(node, 1), operand(node, 3))
    if maps is None:
        return None
    value = operand(node, 2) if op.mode == "constant" else None
    fill = None if value is None else shape(value)
    return native.Pad(x, maps, shape(node.inputs[1]), fill, dtype(node), context.threads)


@kernel("PadGrad", DOMAIN)
def _pad_grad(node: Node, context: KernelContext) -> Kernel | None:
    dy, dx = shape(node.inputs[0]), shape(node.output)
    maps = pad_maps(operator(node, PadGrad).mode, dx, operand(node, 2), operand(node, 3))
    if maps is None:
        return None
    axes = []
    for axis, (size, positions) in enumerate(zip(dx, maps, strict=True)):
        if positions is not None:
            axes.append(axis_taps(axis, Taps.copies(np.array(positions, np.int64), size).transposed()))
    return native.Resample("PadGrad", dy, axes, 0.0, False, dtype(node), context.threads)
