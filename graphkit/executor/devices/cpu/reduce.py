"""Reductions over axes, and pools over all spatial axes."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.geometry import reduced_axes, repeated_axes
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.executor.devices.registry import Factory
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.pool import GlobalLpPool


def _reduce(function: str) -> Factory:
    def make(node: Node, context: KernelContext) -> Kernel | None:
        axes = reduced_axes(node)
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
    return native.Reduce("Sum", x, repeated_axes(node), y, str(node.output.dtype), context.threads)


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
