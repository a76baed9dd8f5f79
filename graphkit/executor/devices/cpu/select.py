"""Triangles of matrices."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import dtype, kernel, native, operand, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node


@kernel("Trilu")
def _trilu(node: Node, context: KernelContext) -> Any:
    op: Any = node.op
    k = operand(node, 1)
    return native.Trilu(shape(node.inputs[0]), op.upper, None if k is None else shape(k), dtype(node), context.threads)
