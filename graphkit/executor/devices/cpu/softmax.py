"""Softmax and its logarithm."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.nn.softmax import AlongAxis


def _softmax(node: Node, context: KernelContext, log: bool) -> Kernel | None:
    op = operator(node, AlongAxis)
    return native.Softmax(shape(node.output), op.axis, str(node.output.dtype), log, context.threads)


@kernel("Softmax")
def _softmax_kernel(node: Node, context: KernelContext) -> Kernel | None:
    return _softmax(node, context, log=False)


@kernel("LogSoftmax")
def _log_softmax_kernel(node: Node, context: KernelContext) -> Kernel | None:
    return _softmax(node, context, log=True)
