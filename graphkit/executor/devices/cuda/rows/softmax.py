"""Softmax, its logarithm, and their gradients.

A row of the last axis is read once and stays in registers. What is longer, or has few elements, or lies along another
axis, is read twice.
"""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import Argument, CardKernel, Input, Output
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work
from graphkit.executor.devices.cuda.rows.rows import Rows, held_type, rows_of
from graphkit.executor.devices.cuda.text.expressions import STORED
from graphkit.executor.devices.cuda.text.joining import WARP, joined
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.executor.devices.registry import register_launched
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.softmax_grad import SoftmaxGrad
from graphkit.ops.nn.softmax import AlongAxis, Softmax


def _softmax(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, AlongAxis)
    sizes = shape(node.inputs[0])
    axis = op.axis % max(len(sizes), 1)
    if math.prod(sizes[axis + 1 :]) == 1:
        rows = rows_of(node, sizes[axis])
        if rows is not None and rows.kept and rows.size >= WARP:
            return _kept(rows, op)
    return _grouped(node, op)


for _name in ("Softmax", "LogSoftmax"):
    register_launched("cuda", "", _name)(_softmax)


def _kept(rows: Rows, op: AlongAxis) -> CardKernel:
    result = "gk_exp(v - most) / total" if isinstance(op, Softmax) else "v - most - logarithm"
    lines = [
        "A most = gk_limits<A>::lowest();",
        *rows.each("most = gk_maximum(most, v);"),
        *joined("most", "gk_maximum(a, b)", rows.together),
        "A total = 0;",
        *rows.each("total += gk_exp(v - most);"),
        *joined("total", "a + b", rows.together),
        *([] if isinstance(op, Softmax) else ["const A logarithm = gk_log(total);"]),
        *rows.each(f"gk_write(y[row * size + j], {result});"),
    ]
    launch = rows.launch(op.name, [f"{STORED[rows.stored]}* y"], [Output(0)], lines)
    return CardKernel((launch,), inplace=((0, 0),))


def _grouped(node: Node, op: AlongAxis) -> CardKernel | None:
    x, held = node.operands[0], held_type(node.operands[0].dtype)
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


@register_launched("cuda", DOMAIN, "SoftmaxGrad")
def _softmax_grad(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, SoftmaxGrad)
    y, held = node.operands[1], held_type(node.operands[1].dtype)
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
