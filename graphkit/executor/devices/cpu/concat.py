"""Concatenation, and its inverse."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.concat import Concat, Split


@kernel("Concat")
def _concat(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Concat)
    return native.Concat([shape(x) for x in node.inputs], op.axis, dtype(node), context.threads)


@kernel("Split")
def _split(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Split)
    x = shape(node.inputs[0])
    sizes = [shape(y)[op.axis] for y in node.outputs]
    return native.Split(x, sizes, op.axis, dtype(node), context.threads)
