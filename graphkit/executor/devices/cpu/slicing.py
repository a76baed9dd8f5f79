"""The gradient of slices."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.executor.devices.views import window
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@kernel("SliceGrad", DOMAIN)
def _slice_grad(node: Node, context: KernelContext) -> Kernel | None:
    dy, dx = shape(node.inputs[0]), shape(node.output)
    found = window(node, 2, dx)
    if found is None:
        return None
    return native.StridedPlacement("SliceGrad", dy, dx, found.strides, found.offset, dtype(node), context.threads)
