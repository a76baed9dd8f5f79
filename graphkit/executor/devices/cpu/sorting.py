"""Positions of extreme elements, the k largest or smallest ones, and the different ones."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import data_dependent, kernel, native
from graphkit.executor.devices.kernel import DataDependentKernel, Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.sorting import ArgExtreme, TopK, Unique


def _arg_extreme(node: Node, context: KernelContext, largest: bool) -> Kernel | None:
    op = operator(node, ArgExtreme)
    x = node.inputs[0]
    assert x is not None
    return native.ArgExtreme(
        shape(x), op.axis, shape(node.output), str(x.dtype), largest, op.select_last_index, context.threads
    )


@kernel("ArgMax")
def _arg_max(node: Node, context: KernelContext) -> Kernel | None:
    return _arg_extreme(node, context, largest=True)


@kernel("ArgMin")
def _arg_min(node: Node, context: KernelContext) -> Kernel | None:
    return _arg_extreme(node, context, largest=False)


@kernel("TopK")
def _top_k(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, TopK)
    values = node.outputs[0]
    count = shape(values)[op.axis]
    return native.TopK(shape(node.inputs[0]), op.axis, count, str(values.dtype), op.largest, context.threads)


@data_dependent("Unique")
def _unique(node: Node, context: KernelContext) -> DataDependentKernel:
    op = operator(node, Unique)
    return native.Unique(dtype(node), op.axis, op.sorted, context.threads)
