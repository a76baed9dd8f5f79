"""Reductions over axes, and pools over all spatial axes."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native, operand, shape
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import Factory
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.math.reduce import Reduction
from graphkit.ops.nn.pool import GlobalLpPool


def _reduced_axes(node: Node) -> tuple[int, ...] | None:
    """The reduced axes; None when they are known only when the program runs."""
    op = operator(node, Reduction)
    axes = operand(node, 1)
    given = () if axes is None else axes.tensor.constants
    if given is None:
        return None
    if given or op.noop_with_empty_axes:
        return tuple(given)
    return tuple(range(len(shape(node.inputs[0]))))


def _reduce(function: str) -> Factory:
    def make(node: Node, context: KernelContext) -> Kernel | None:
        axes = _reduced_axes(node)
        if axes is None:
            return None
        x, y = shape(node.inputs[0]), shape(node.output)
        return native.Reduce(function, x, axes, y, str(node.output.dtype), context.threads)

    return make


for _function in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
    kernel(f"Reduce{_function}")(_reduce(_function))


@kernel("ReduceToShapeOf", DOMAIN)
def _reduce_to_shape_of(node: Node, context: KernelContext) -> Kernel | None:
    x, y = shape(node.inputs[0]), shape(node.output)
    lead = len(x) - len(y)
    axes = [*range(lead), *(i for i in range(lead, len(x)) if y[i - lead] == 1 and x[i] != 1)]
    return native.Reduce("Sum", x, axes, y, str(node.output.dtype), context.threads)


def _global_pool(function: str, node: Node, context: KernelContext) -> Kernel | None:
    x, y = shape(node.inputs[0]), shape(node.output)
    return native.Reduce(function, x, range(2, len(x)), y, str(node.output.dtype), context.threads)


@kernel("GlobalAveragePool")
def _global_average_pool(node: Node, context: KernelContext) -> Kernel | None:
    return _global_pool("Mean", node, context)


@kernel("GlobalMaxPool")
def _global_max_pool(node: Node, context: KernelContext) -> Kernel | None:
    return _global_pool("Max", node, context)


@kernel("GlobalLpPool")
def _global_lp_pool(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, GlobalLpPool)
    return _global_pool(f"L{op.p}", node, context) if op.p in (1, 2) else None
