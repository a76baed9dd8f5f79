"""Determinants, linear systems and Cholesky factors of small matrices; larger ones are left to LAPACK."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import shape
from graphkit.executor.devices.registry import Factory
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.linalg.factorization import Potrf
from graphkit.ops.linalg.triangular import Trsm


def _elimination(goal: str) -> Factory:
    def make(node: Node, context: KernelContext) -> Kernel | None:
        a, *b = (shape(v) for v in node.inputs)
        return native.Elimination(goal, a, b[0] if b else None, node.outputs[0].dtype.value, context.threads)

    return make


kernel("Det")(_elimination("det"))
kernel("Slogdet", DOMAIN)(_elimination("slogdet"))
kernel("Inverse", DOMAIN)(_elimination("inverse"))
kernel("Solve", DOMAIN)(_elimination("solve"))


@kernel("Potrf", DOMAIN)
def _potrf(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Potrf)
    return native.Cholesky(shape(node.inputs[0]), op.lower, node.output.dtype.value, context.threads)


@kernel("Trsm", DOMAIN)
def _trsm(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, Trsm)
    a, b = (shape(v) for v in node.inputs)
    return native.TriangularSystem(
        a,
        b,
        transpose=op.transpose,
        rightside=op.rightside,
        lower=op.lower,
        alpha=op.alpha,
        dtype=node.output.dtype.value,
        threads=context.threads,
    )
