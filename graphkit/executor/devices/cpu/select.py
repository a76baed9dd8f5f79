"""Triangles of matrices."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import dtype, kernel, native, operand, shape
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.select import Trilu


@kernel("Trilu")
def _trilu(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Trilu)
    k = operand(node, 1)
    return native.Trilu(shape(node.inputs[0]), op.upper, None if k is None else shape(k), dtype(node), context.threads)
