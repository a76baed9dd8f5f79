"""Triangles of matrices, and elements chosen by conditions."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import data_dependent, kernel, native
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.select import Compress, Trilu


@kernel("Trilu")
def _trilu(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Trilu)
    k = operand(node, 1)
    return native.Trilu(shape(node.inputs[0]), op.upper, None if k is None else shape(k), dtype(node), context.threads)


@data_dependent("NonZero")
def _non_zero(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.NonZero(dtype(node), context.threads)


@data_dependent("Compress")
def _compress(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.Compress(dtype(node), operator(node, Compress).axis, context.threads)
