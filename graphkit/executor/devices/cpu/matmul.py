"""Matrix products through oneDNN."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import epilogue, kernel, library_dtype, library_options, native, operand, shape
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.linalg.matmul import Gemm


@kernel("MatMul", onednn=True)
def _mat_mul(node: Node, context: KernelContext) -> Kernel | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    a, b = (shape(v) for v in node.inputs)
    return native.MatMul(a, b, pack_b=1 in context.constant_inputs, dtype=dtype, **library_options(context))


@kernel("Gemm", onednn=True)
def _gemm(node: Node, context: KernelContext) -> Kernel | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    op = operator(node, Gemm)
    a, b = (shape(v) for v in node.inputs[:2])
    c = operand(node, 2)
    bias = None if c is None or op.beta == 0 else shape(c)
    return native.MatMul(
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
    bias = operand(node, 2)
    return native.MatMul(
        a,
        b,
        transpose_a=op.transA,
        transpose_b=op.transB,
        bias=None if bias is None else shape(bias),
        alpha=op.alpha,
        epilogue=epilogue(node, residual=3),
        pack_b=1 in context.constant_inputs,
        dtype=dtype,
        **library_options(context),
    )
