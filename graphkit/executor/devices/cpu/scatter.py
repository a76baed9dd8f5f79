"""Slices and elements written, or added, by index; the gradient of Gather among them."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.tensor.gather import GatherGrad
from graphkit.ops.tensor.scatter import ScatterElements, ScatterND


@kernel("GatherGrad", DOMAIN)
def _gather_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, GatherGrad)
    _, x, indices = (shape(v) for v in node.inputs)
    return native.GatherGrad(x, dtype(node, 1), indices, op.axis, dtype(node), dtype(node, 2), context.threads)


@kernel("ScatterElements")
def _scatter_elements(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, ScatterElements)
    x, indices, updates = (shape(v) for v in node.inputs)
    if indices != updates:
        return None
    return native.ScatterElements(x, indices, op.axis, op.reduction, dtype(node), dtype(node, 1), context.threads)


@kernel("ScatterND")
def _scatter_nd(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, ScatterND)
    x, indices, updates = (shape(v) for v in node.inputs)
    depth = indices[-1]
    if updates != (*indices[:-1], *x[depth:]):
        return None
    return native.ScatterND(x, indices, op.reduction, dtype(node), context.threads)
