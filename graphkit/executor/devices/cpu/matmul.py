"""Matrix products: by oneDNN, or by graphkit's own kernels. Native code chooses for each size."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import (
    epilogue,
    library_dtype,
    library_options,
    native,
    prepared_kernel,
)
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import operand
from graphkit.executor.devices.registry import SizedFactory
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.linalg.matmul import Gemm

_BLOCKED = frozenset({DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})


def _product(
    node: Node,
    context: KernelContext,
    last: native.Epilogue | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    has_bias: bool = False,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> SizedFactory | None:
    """Return the factory of the kernels of `alpha * a @ b + beta * bias`: oneDNN's, or graphkit's own.

    last: The epilogue of the product; None if there is none.
    """
    dtype = library_dtype(node)
    if dtype is None:
        kinds = {v.dtype for v in (*node.operands, *node.outputs)}
        if len(kinds) > 1 or not kinds <= _BLOCKED or last is not None:
            return None
        dtype = kinds.pop().value
    return native.ProductFactory(
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        has_bias=has_bias,
        alpha=alpha,
        beta=beta,
        epilogue=last,
        pack_b=1 in context.constant_inputs,
        vary=context.sizes_vary,
        dtype=dtype,
        **library_options(context),
    )


@prepared_kernel("MatMul", onednn=True)
def _mat_mul(node: Node, context: KernelContext) -> SizedFactory | None:
    return _product(node, context)


@prepared_kernel("Gemm", onednn=True)
def _gemm(node: Node, context: KernelContext) -> SizedFactory | None:
    op = operator(node, Gemm)
    has_bias = operand(node, 2) is not None and op.beta != 0
    return _product(
        node,
        context,
        transpose_a=bool(op.transA),
        transpose_b=bool(op.transB),
        has_bias=has_bias,
        alpha=op.alpha,
        beta=op.beta if has_bias else 1.0,
    )


@prepared_kernel("FusedMatMul", DOMAIN, onednn=True)
def _fused_mat_mul(node: Node, context: KernelContext) -> SizedFactory | None:
    from graphkit.ops.internal.fused import FusedMatMul

    op = operator(node, FusedMatMul)
    return _product(
        node,
        context,
        transpose_a=bool(op.transA),
        transpose_b=bool(op.transB),
        has_bias=operand(node, 2) is not None,
        alpha=op.alpha,
        last=epilogue(node, residual=3) if op.activation or operand(node, 3) is not None else None,
    )
