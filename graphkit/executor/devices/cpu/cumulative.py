"""Running sums and products, and linear recurrences."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import constants, dtype, operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.math.cumulative import Cumulative, LinearRecurrence


@kernel("LinearRecurrence", DOMAIN)
def _linear_recurrence(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, LinearRecurrence)
    return native.LinearRecurrence(shape(node.inputs[0]), op.axis, op.reverse, dtype(node), context.threads)


@kernel("CumSum")
@kernel("CumProd")
def _cumulative(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Cumulative)
    axis = constants(operand(node, 1))
    if axis is None:
        return None
    x = shape(node.inputs[0])
    product = op.name == "CumProd"
    return native.Cumulative(x, axis[0], product, op.exclusive, op.reverse, dtype(node), context.threads)
