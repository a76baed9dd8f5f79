"""What support vector machines do beside products of matrices: probabilities from the decisions of pairs."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN


@kernel("CoupledProbabilities", DOMAIN)
def _coupled_probabilities(node: Node, context: KernelContext) -> Kernel | None:
    rows, classes = shape(node.output)
    return native.CoupledProbabilities(rows, classes, context.threads)
