"""Matrix products by cuBLASLt, with a bias and a residual in the same call.

A later step computes activations, because the documentation of cuBLASLt does not say that its Relu keeps NaN. A
row-major matrix is the transpose of the same memory in the column-major order of cuBLASLt. So y = a b is computed as
y' = b' a'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphkit.executor.devices.cuda.launches import CardKernel, Input, Launch, Matrix, Output, Product, launched
from graphkit.executor.devices.cuda.movement.copies import End, copied
from graphkit.executor.devices.cuda.text.axes import merged
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand, repeating, row_major, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.linalg.matmul import Gemm

# Limits of the workspace that the library may use for partial sums (split-K): the number of partial results, the terms
# that each of them sums at least, and bytes.
_PARTS, _LEAST_TERMS, _MOST_WORKSPACE = 16, 64, 32 << 20


class _Batch(NamedTuple):
    """A batch of products: their number, and for a, b and y, the step (in matrices) from one product to the next."""

    products: int
    steps: tuple[int, int, int]


def product(
    node: Node,
    context: KernelContext,
    a_shape: Sequence[int],
    b_shape: Sequence[int],
    *,
    transposed: tuple[bool, bool] = (False, False),
    alpha: float = 1.0,
) -> Product | None:
    """Return the product of matrices whose leading axes are broadcast.

    None if a size is 0, if the type is not a float type, or if cuBLASLt does not support the batch.
    """
    kind = node.output.dtype
    if kind not in FLOATS:
        return None
    m, k = a_shape[-2:] if not transposed[0] else a_shape[:-3:-1]
    n = b_shape[-2 if transposed[1] else -1]
    batch = _batch(a_shape, b_shape)
    if not transposed[0] and math.prod(b_shape[:-2]) == 1:
        m, batch = m * math.prod(a_shape[:-2]), _Batch(1, (0, 0, 0))
    if batch is None or 0 in (m, n, k, batch.products):
        return None
    return Product(
        kind,
        a=Matrix(Input(1), *((k, n) if transposed[1] else (n, k)), k if transposed[1] else n, n * k * batch.steps[1]),
        b=Matrix(Input(0), *((m, k) if transposed[0] else (k, m)), m if transposed[0] else k, m * k * batch.steps[0]),
        d=Matrix(Output(0), n, m, n, n * m * batch.steps[2]),
        transposed=(transposed[1], transposed[0]),
        alpha=alpha,
        batch=batch.products,
        tf32=context.tf32 and kind is DType.FLOAT32,
        workspace=workspace_for(m * n * batch.products, k),
    )


def workspace_for(elements: int, terms: int) -> int:
    """Return the workspace in bytes for a product with this many elements, each a sum of this many terms."""
    parts = min(_PARTS, max(terms // _LEAST_TERMS, 1))
    return min(-(-parts * 4 * elements // 256) * 256, _MOST_WORKSPACE)


def _batch(a_shape: Sequence[int], b_shape: Sequence[int]) -> _Batch | None:
    """Return the batch of a product; None if the steps from one product to the next are not all equal."""
    rank = max(len(a_shape), len(b_shape)) - 2
    leading = [(1,) * (rank + 2 - len(s)) + tuple(s[:-2]) for s in (a_shape, b_shape)]
    sizes = [max(pair) if 0 not in pair else 0 for pair in zip(*leading, strict=True)]
    axes = merged(sizes, *(repeating(own, sizes) for own in leading), row_major(sizes))
    if len(axes.sizes) != 1:
        return None
    a, b, y = (own[0] for own in axes.strides)
    return _Batch(axes.sizes[0], (a, b, y))


def _kernel(made: Product | None, *before: Launch | None) -> CardKernel | None:
    if made is None or None in before:
        return None
    return CardKernel((*(launch for launch in before if launch), made), scratch_bytes=made.workspace)


@launched("MatMul")
def _mat_mul(node: Node, context: KernelContext) -> CardKernel | None:
    a, b = (shape(v) for v in node.inputs)
    if math.prod(shape(node.output)) == 0:
        return CardKernel(())
    return _kernel(product(node, context, (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b))


@launched("Gemm")
def _gemm(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, Gemm)
    a, b, y = shape(node.inputs[0]), shape(node.inputs[1]), shape(node.output)
    if math.prod(y) == 0:
        return CardKernel(())
    made = product(node, context, a, b, transposed=(op.transA, op.transB), alpha=op.alpha)
    added = operand(node, 2)
    if made is None or added is None or op.beta == 0:
        return _kernel(made)
    c = shape(added)
    if op.beta == 1 and c in ((y[1],), (1, y[1])):
        return _kernel(made._replace(bias=Input(2)))
    if c == y:
        return _kernel(made._replace(c=made.d._replace(memory=Input(2)), beta=op.beta))
    spread = copied(y, End(tuple(repeating(c, y))), End(tuple(row_major(y))), added.dtype.itemsize, Input(2), Output(0))
    return _kernel(made._replace(c=made.d, beta=op.beta), spread)


@launched("FusedMatMul", DOMAIN)
def _fused_mat_mul(node: Node, context: KernelContext) -> CardKernel | None:
    op = operator(node, FusedMatMul)
    if op.activation:
        return None
    if math.prod(shape(node.output)) == 0:
        return CardKernel(())
    a, b = shape(node.inputs[0]), shape(node.inputs[1])
    made = product(node, context, a, b, transposed=(op.transA, op.transB), alpha=op.alpha)
    if made is None:
        return None
    if operand(node, 2) is not None:
        made = made._replace(bias=Input(2))
    if operand(node, 3) is not None:
        made = made._replace(c=made.d._replace(memory=Input(3)), beta=1.0)
    return _kernel(made)
