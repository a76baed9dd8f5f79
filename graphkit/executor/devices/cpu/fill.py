"""Ranges and one-hot rows of data-dependent sizes."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import data_dependent, native
from graphkit.executor.devices.kernel import DataDependentKernel, KernelContext
from graphkit.executor.devices.operands import dtype
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.fill import OneHot


@data_dependent("Range")
def _sized_range(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.SizedRange(dtype(node), context.threads)


@data_dependent("OneHot")
def _sized_one_hot(node: Node, context: KernelContext) -> DataDependentKernel:
    op = operator(node, OneHot)
    return native.SizedOneHot(op.axis, dtype(node, 2), dtype(node), dtype(node, 1), context.threads)
