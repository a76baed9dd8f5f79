"""Softmax, LogSoftmax and their gradients, along any axis. A group is read twice: for its sums, and for the result."""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output, launched
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work
from graphkit.executor.devices.cuda.text.expressions import STORED, float_type
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.softmax_grad import SoftmaxGrad
from graphkit.ops.nn.softmax import AlongAxis, Softmax


def _softmax(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, AlongAxis)
    x, held = node.operands[0], float_type(node.operands[0].dtype)
    sizes = x.tensor.static_shape
    if held is None or math.prod(sizes) == 0:
        return None
    kind = STORED[x.dtype]
    log = not isinstance(op, Softmax)
    result = "v - p0.most - logarithm" if log else "gk_exp(v - p0.most) / total"
    work = Work(
        op.name,
        [(f"const {kind}* x", Input(0)), (f"{kind}* y", Output(0))],
        [Pass("gk_exponentials<A>", 2, ["p0.take(gk_read(x[at]));"])],
        ["const A v = gk_read(x[at]);", f"gk_write(y[at], {result});"],
        ["const A logarithm = gk_log(p0.sum());" if log else "const A total = p0.sum();"],
    )
    return Groups.over(sizes, [op.axis], held).kernel(work, inplace=((0, 0),))


for _name in ("Softmax", "LogSoftmax"):
    launched(_name)(_softmax)


@launched("SoftmaxGrad", DOMAIN)
def _softmax_grad(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, SoftmaxGrad)
    y, held = node.operands[1], float_type(node.operands[1].dtype)
    sizes = y.tensor.static_shape
    if held is None or math.prod(sizes) == 0:
        return None
    kind = STORED[y.dtype]
    given: list[tuple[str, Argument]] = [
        (f"const {kind}* dy", Input(0)), (f"const {kind}* y", Input(1)), (f"{kind}* dx", Output(0)),
    ]  # fmt: skip
    summed = "gk_read(dy[at])" if op.log else "gk_read(dy[at]) * gk_read(y[at])"
    result = "gk_read(dy[at]) - gk_exp(p) * p0.s[0]" if op.log else "p * (gk_read(dy[at]) - p0.s[0])"
    work = Work(
        "softmax_grad",
        given,
        [Pass("gk_sums<A, 1>", 1, [f"p0.s[0] += {summed};"])],
        ["const A p = gk_read(y[at]);", f"gk_write(dx[at], {result});"],
    )
    return Groups.over(sizes, [op.axis], held).kernel(work, inplace=((0, 0), (1, 0)))
