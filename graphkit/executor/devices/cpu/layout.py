"""Data movement in an order that is known when the kernel is made. Each kernel copies a strided view of its operand."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import native, present, sized_kernel
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype
from graphkit.executor.devices.registry import Shapes
from graphkit.executor.devices.views import ELEMENTS_READ, VIEWS
from graphkit.ir.graph import Node


def _view(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    """Return the kernel that copies a strided view of input 0 to its output; None if the view is not known."""
    x, y = present(inputs[0]), present(outputs[0])
    view = VIEWS[node.op.name](node, x, y)
    if view is None:
        return None
    return native.StridedView(node.op.name, x, y, view.sizes, view.strides, view.offset, dtype(node), context.threads)


for _name in VIEWS:
    sized_kernel(_name, reads=ELEMENTS_READ.get(_name, ()))(_view)
