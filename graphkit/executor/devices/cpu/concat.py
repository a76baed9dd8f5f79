"""Concatenation, and its inverse."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import dtype, kernel, native, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node


@kernel("Concat")
def _concat(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    return native.Concat([shape(x) for x in node.inputs], op.axis, dtype(node), context.threads)


@kernel("Split")
def _split(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    x = shape(node.inputs[0])
    sizes = [shape(y)[op.axis] for y in node.outputs]
    return native.Split(x, sizes, op.axis, dtype(node), context.threads)
