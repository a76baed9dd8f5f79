"""Reductions, and means of images, over any axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.executor.devices.cuda.launches import CardKernel, Input, Output, launched
from graphkit.executor.devices.cuda.rows.groups import Groups, Pass, Work
from graphkit.executor.devices.cuda.text.expressions import STORED, held_type
from graphkit.executor.devices.geometry import reduced_axes, repeated_axes
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN


class Function(NamedTuple):
    """A reduction in CUDA C++.

    Attributes:
        partial: Type of partial results.
        element: The summand, an expression of an element `v`.
        last: The result, an expression of the reduced value `a`.
        floats: Whether it is defined only for floating-point types.
    """

    partial: str
    element: str = "v"
    last: str = "a"
    floats: bool = False


FUNCTIONS = {
    "Sum": Function("gk_total<A>"),
    "Mean": Function("gk_total<A>", last="a / (A)count", floats=True),
    "Max": Function("gk_most<A>"),
    "Min": Function("gk_least<A>"),
    "Prod": Function("gk_product<A>"),
    "L1": Function("gk_total<A>", "gk_abs(v)"),
    "L2": Function("gk_total<A>", "gk_mul(v, v)", "gk_sqrt(a)", floats=True),
    "SumSquare": Function("gk_total<A>", "gk_mul(v, v)"),
    "LogSum": Function("gk_total<A>", last="gk_log(a)", floats=True),
}


def reduction(name: str, x: Sequence[int], axes: Sequence[int], kind: DType) -> CardKernel | None:
    """Return the kernel of FUNCTIONS[name] over `axes` of an operand of shape `x`; None if it is not supported."""
    function = FUNCTIONS[name]
    if kind not in STORED or kind is DType.BOOL or (function.floats and kind not in FLOATS) or math.prod(x) == 0:
        return None
    work = Work(
        f"reduce_{name}",
        [(f"const {STORED[kind]}* x", Input(0)), (f"{STORED[kind]}* y", Output(0))],
        [Pass(function.partial, 1, ["const A v = gk_read(x[at]);", f"p0.take({function.element});"])],
        once=["const A a = p0.v;", f"gk_write(y[g], {function.last});"],
    )
    return Groups.over(x, axes, held_type(kind)).kernel(work)


def _over(name: str, node: Node, axes: Sequence[int] | None) -> CardKernel | None:
    x = node.inputs[0]
    assert x is not None
    if axes is None or x.dtype is not node.output.dtype:
        return None
    return reduction(name, x.tensor.static_shape, axes, x.dtype)


def _register(name: str) -> None:
    @launched(f"Reduce{name}")
    def make(node: Node, context: KernelContext) -> CardKernel | None:
        return _over(name, node, reduced_axes(node))


for _name in FUNCTIONS:
    _register(_name)


@launched("ReduceToShapeOf", DOMAIN)
def _reduce_to_shape_of(node: Node, context: KernelContext) -> CardKernel | None:
    return _over("Sum", node, repeated_axes(node))


def _pooled(name: str, node: Node, context: KernelContext) -> CardKernel | None:
    x = node.inputs[0]
    assert x is not None
    return _over(name, node, range(2, len(x.tensor.static_shape)))


@launched("GlobalAveragePool")
def _global_average_pool(node: Node, context: KernelContext) -> CardKernel | None:
    return _pooled("Mean", node, context)


@launched("GlobalMaxPool")
def _global_max_pool(node: Node, context: KernelContext) -> CardKernel | None:
    return _pooled("Max", node, context)
