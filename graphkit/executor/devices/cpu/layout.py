"""Data movement in an order that is known when the kernel is made. Each kernel copies a strided view of its operand."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import dtype, shape
from graphkit.executor.devices.views import VIEWS
from graphkit.ir.graph import Node


def _view(node: Node, context: KernelContext) -> Kernel | None:
    """Return the kernel that copies a strided view of input 0 to its output; None if the view is not known."""
    view = VIEWS[node.op.name](node)
    if view is None:
        return None
    x, y = shape(node.inputs[0]), shape(node.output)
    return native.StridedView(node.op.name, x, y, view.sizes, view.strides, view.offset, dtype(node), context.threads)


for _name in VIEWS:
    kernel(_name)(_view)
