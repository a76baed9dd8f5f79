"""Elements and slices taken by index."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.gather import Gather, GatherElements, GatherND


@kernel("Gather")
def _gather(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Gather)
    x, indices = (shape(v) for v in node.inputs)
    return native.Gather(x, indices, op.axis, dtype(node), dtype(node, 1), context.threads)


@kernel("GatherElements")
def _gather_elements(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, GatherElements)
    x, indices = (shape(v) for v in node.inputs)
    return native.GatherElements(x, indices, op.axis, dtype(node), dtype(node, 1), context.threads)


@kernel("GatherND")
def _gather_nd(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, GatherND)
    x, indices = (shape(v) for v in node.inputs)
    return native.GatherND(x, indices, op.batch_dims, dtype(node), context.threads)
