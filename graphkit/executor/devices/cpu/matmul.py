"""Matrix products: by oneDNN, or, with a constant matrix, by graphkit's own kernel."""

from __future__ import annotations

import math

from graphkit.executor.devices.cpu._base import epilogue, kernel, library_dtype, library_options, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.linalg.matmul import Gemm

# Products with fewer multiplications take less time than oneDNN needs to make their kernel. For these, graphkit's
# kernel is up to 8% slower than oneDNN's.
_SHORT_PRODUCT = 1 << 27

# If results must not depend on the number of threads, the kernel is chosen as for this number.
_DETERMINISTIC_THREADS = 8


def _packed_product(
    node: Node,
    context: KernelContext,
    transposed: bool = False,
    bias: tuple[int, ...] | None = None,
    last: native.Epilogue | None = None,
) -> Kernel | None:
    """Return graphkit's kernel for a product with a constant float32 matrix; None if oneDNN's is better.

    On one thread, oneDNN's kernel is always faster. But it divides a product into larger parts, and making it takes
    longer.
    """
    a, b = (shape(v) for v in node.inputs[:2])
    if len(b) != 2 or 1 not in context.constant_inputs or library_dtype(node) != "float32":
        return None
    if bias is not None and bias != (b[0 if transposed else 1],):
        return None
    threads = _DETERMINISTIC_THREADS if context.deterministic else context.threads
    pays = context.sizes_vary and math.prod(a) * b[0 if transposed else 1] < _SHORT_PRODUCT
    if not pays and (threads == 1 or not native.PackedProduct.suits(a, b, transposed=transposed, threads=threads)):
        return None
    return native.PackedProduct(
        a, b, transposed=transposed, bias=bias is not None, epilogue=last or native.Epilogue(), threads=context.threads
    )


@kernel("MatMul", onednn=True)
def _mat_mul(node: Node, context: KernelContext) -> Kernel | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    a, b = (shape(v) for v in node.inputs)
    return _packed_product(node, context) or native.MatMul(
        a, b, pack_b=1 in context.constant_inputs, dtype=dtype, **library_options(context)
    )


@kernel("Gemm", onednn=True)
def _gemm(node: Node, context: KernelContext) -> Kernel | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    op = operator(node, Gemm)
    a, b = (shape(v) for v in node.inputs[:2])
    c = operand(node, 2)
    bias = None if c is None or op.beta == 0 else shape(c)
    made = None
    if not op.transA and op.alpha == 1 and (bias is None or op.beta == 1):
        made = _packed_product(node, context, bool(op.transB), bias)
    return made or native.MatMul(
        a,
        b,
        transpose_a=op.transA,
        transpose_b=op.transB,
        bias=bias,
        alpha=op.alpha,
        beta=op.beta if bias is not None else 1.0,
        pack_b=1 in context.constant_inputs,
        dtype=dtype,
        **library_options(context),
    )


@kernel("FusedMatMul", DOMAIN, onednn=True)
def _fused_mat_mul(node: Node, context: KernelContext) -> Kernel | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    op = operator(node, FusedMatMul)
    a, b = (shape(v) for v in node.inputs[:2])
    row = operand(node, 2)
    bias = None if row is None else shape(row)
    last = epilogue(node, residual=3)
    made = None
    if not op.transA and op.alpha == 1:
        made = _packed_product(node, context, bool(op.transB), bias, last)
    return made or native.MatMul(
        a,
        b,
        transpose_a=op.transA,
        transpose_b=op.transB,
        bias=bias,
        alpha=op.alpha,
        epilogue=last,
        pack_b=1 in context.constant_inputs,
        dtype=dtype,
        **library_options(context),
    )
