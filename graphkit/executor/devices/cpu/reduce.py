"""Reductions over axes, and pools over all spatial axes."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import FactoryOfShapes, native, present, sized_kernel
from graphkit.executor.devices.geometry import reduced_axes, repeated_axes
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import Shapes
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.nn.pool import GlobalLpPool


def _reduce(function: str) -> FactoryOfShapes:
    def make(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        x = present(inputs[0])
        axes = reduced_axes(node, len(x))
        if axes is None:
            return None
        return native.Reduce(function, x, axes, present(outputs[0]), str(node.output.dtype), context.threads)

    return make


for _function in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"):
    sized_kernel(f"Reduce{_function}", reads=(1,))(_reduce(_function))


@sized_kernel("ReduceToShapeOf", DOMAIN)
def _reduce_to_shape_of(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    x, y = present(inputs[0]), present(outputs[0])
    return native.Reduce("Sum", x, repeated_axes(x, y), y, str(node.output.dtype), context.threads)


def _global_pool(function: str) -> FactoryOfShapes:
    def make(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        x, y = present(inputs[0]), present(outputs[0])
        return native.Reduce(function, x, range(2, len(x)), y, str(node.output.dtype), context.threads)

    return make


sized_kernel("GlobalAveragePool")(_global_pool("Mean"))
sized_kernel("GlobalMaxPool")(_global_pool("Max"))


@sized_kernel("GlobalLpPool")
def _global_lp_pool(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    op = operator(node, GlobalLpPool)
    return _global_pool(f"L{op.p}")(node, context, inputs, outputs) if op.p in (1, 2) else None
