"""Running sums and products, and linear recurrences."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import constants, dtype, kernel, native, operand, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@kernel("LinearRecurrence", DOMAIN)
def _linear_recurrence(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    return native.LinearRecurrence(shape(node.inputs[0]), op.axis, op.reverse, dtype(node), context.threads)


@kernel("CumSum")
@kernel("CumProd")
def _cumulative(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    axis = constants(operand(node, 1))
    if axis is None:
        return None
    x = shape(node.inputs[0])
    product = op.name == "CumProd"
    return native.Cumulative(x, axis[0], product, op.exclusive, op.reverse, dtype(node), context.threads)
