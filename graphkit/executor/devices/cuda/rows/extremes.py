"""Positions of extreme elements along an axis."""

from __future__ import annotations

import math

from graphkit.executor.devices.cuda.launches import CardKernel, Input, Output, launched
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import operator
from graphkit.ops.tensor.sorting import ArgExtreme

# Bytes of a partial result: an element and its position.
_PLACED = 16


def _arg_extreme(node: Node, largest: bool) -> CardKernel | None:
    op, x = operator(node, ArgExtreme), node.operands[0]
    sizes = shape(x)
    if x.dtype not in STORED or not sizes:
        return None
    if math.prod(shape(node.output)) == 0:
        return CardKernel(())
    if math.prod(sizes) == 0:
        return None
    held = held_type(x.dtype)
    partial = f"gk_extreme<A, {str(largest).lower()}, {str(op.select_last_index).lower()}>"
    work = Work(
        "extreme",
        [(f"const {STORED[x.dtype]}* x", Input(0)), ("gk_i64* y", Output(0))],
        [Pass(partial, _PLACED // held.itemsize, ["p0.take(gk_read(x[at]), (gk_i64)e);"])],
        once=["y[g] = p0.at;"],
    )
    return Groups.over(sizes, [op.axis], held).kernel(work)


@launched("ArgMax")
def _arg_max(node: Node, context: KernelContext) -> CardKernel | None:
    return _arg_extreme(node, largest=True)


@launched("ArgMin")
def _arg_min(node: Node, context: KernelContext) -> CardKernel | None:
    return _arg_extreme(node, largest=False)
