"""Operators whose results always have data-dependent shapes. For Range and OneHot, see `fill`."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import data_dependent, native
from graphkit.executor.devices.kernel import DataDependentKernel, KernelContext
from graphkit.executor.devices.operands import dtype
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.image.roi import NonMaxSuppression
from graphkit.ops.tensor.select import Compress
from graphkit.ops.tensor.sorting import Unique


@data_dependent("NonZero")
def _non_zero(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.NonZero(dtype(node), context.threads)


@data_dependent("Compress")
def _compress(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.Compress(dtype(node), operator(node, Compress).axis, context.threads)


@data_dependent("Unique")
def _unique(node: Node, context: KernelContext) -> DataDependentKernel:
    op = operator(node, Unique)
    return native.Unique(dtype(node), op.axis, op.sorted, context.threads)


@data_dependent("NonMaxSuppression")
def _non_max_suppression(node: Node, context: KernelContext) -> DataDependentKernel:
    return native.NonMaxSuppression(bool(operator(node, NonMaxSuppression).center_point_box), context.threads)
