"""The positions of rows that several indices read."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@kernel("LastEqual", DOMAIN, covers=lambda node: True)
def _last_equal(node: Node, context: KernelContext) -> Kernel | None:
    return native.LastEqual(shape(node.inputs[0])[0])
