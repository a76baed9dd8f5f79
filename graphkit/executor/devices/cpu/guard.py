"""The guard that stops a run whose loss is not finite."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import dtype, kernel, native, shape
from graphkit.executor.devices.kernel import KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@kernel("FiniteGuard", DOMAIN)
def _finite_guard(node: Node, context: KernelContext) -> Any:
    x, token = (shape(v) for v in node.inputs)
    return native.FiniteGuard(x, dtype(node), token, dtype(node, 1))
