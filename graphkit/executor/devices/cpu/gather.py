"""Elements and slices taken by index."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import dtype, kernel, native, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node


@kernel("Gather")
def _gather(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices = (shape(v) for v in node.inputs)
    return native.Gather(x, indices, op.axis, dtype(node), dtype(node, 1), context.threads)


@kernel("GatherElements")
def _gather_elements(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices = (shape(v) for v in node.inputs)
    return native.GatherElements(x, indices, op.axis, dtype(node), dtype(node, 1), context.threads)


@kernel("GatherND")
def _gather_nd(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x, indices = (shape(v) for v in node.inputs)
    return native.GatherND(x, indices, op.batch_dims, dtype(node), context.threads)
