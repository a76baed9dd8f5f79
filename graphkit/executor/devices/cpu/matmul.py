"""Matrix products: by oneDNN, or, with a constant matrix, by graphkit's own kernel."""

from __future__ import annotations

import math
from typing import Any

from graphkit.executor.devices.cpu._base import (
    epilogue,
    library_dtype,
    library_options,
    native,
    prepared_kernel,
    present,
)
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand
from graphkit.executor.devices.registry import Shapes, SizedFactory
from graphkit.ir.graph import Node
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.linalg.matmul import Gemm

# Products with fewer multiplications take less time than oneDNN needs to make their kernel. For these, graphkit's
# kernel is up to 8% slower than oneDNN's.
_SHORT_PRODUCT = 1 << 27

# Products with at most so many rows mostly read the matrix, which graphkit's kernel does faster: see
# bench/results/2026-11-few-rows.md.
_FEW_ROWS = 16

# If results must not depend on the number of threads, the kernel is chosen as for this number.
_DETERMINISTIC_THREADS = 8


class _Product:
    """Makes the kernels of `alpha * a @ b + beta * bias` for all sizes.

    last: What follows the product; None: nothing.
    """

    def __init__(
        self,
        context: KernelContext,
        dtype: str,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        has_bias: bool = False,
        alpha: float = 1.0,
        beta: float = 1.0,
        last: native.Epilogue | None = None,
    ):
        self._transposed, self._has_bias, self._last = transpose_b, has_bias, last or native.Epilogue()
        self._vary, self._threads = context.sizes_vary, context.threads
        self._chosen_threads = _DETERMINISTIC_THREADS if context.deterministic else context.threads
        constant = 1 in context.constant_inputs
        self._packs = constant and dtype == "float32" and not transpose_a and alpha == 1 and beta == 1
        self._options: dict[str, Any] = dict(
            transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, beta=beta, epilogue=self._last,
            pack_b=constant, dtype=dtype, **library_options(context),
        )  # fmt: skip

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        a, b = present(inputs[0]), present(inputs[1])
        bias = inputs[2] if self._has_bias else None
        if self._packs and self._suits_packed(a, b, bias):
            return native.PackedProduct(
                a,
                b,
                transposed=self._transposed,
                bias=self._has_bias,
                epilogue=self._last,
                threads=self._threads,
            )
        return native.MatMul(a, b, bias=bias, **self._options)

    def _suits_packed(self, a: tuple[int, ...], b: tuple[int, ...], bias: tuple[int, ...] | None) -> bool:
        """Return whether graphkit's kernel for constant matrices covers the product and is better than oneDNN's.

        On one thread, oneDNN's kernel is always faster. But it divides a product into larger parts, and making it takes
        longer.
        """
        if len(b) != 2 or 0 in b:
            return False
        columns = b[0 if self._transposed else 1]
        if bias is not None and bias != (columns,):
            return False
        rows = math.prod(a[:-1])
        if rows <= _FEW_ROWS or (self._vary and rows * a[-1] * columns < _SHORT_PRODUCT):
            return True
        threads = self._chosen_threads
        return threads != 1 and native.PackedProduct.suits(a, b, transposed=self._transposed, threads=threads)


@prepared_kernel("MatMul", onednn=True)
def _mat_mul(node: Node, context: KernelContext) -> SizedFactory | None:
    dtype = library_dtype(node)
    return None if dtype is None else _Product(context, dtype)


@prepared_kernel("Gemm", onednn=True)
def _gemm(node: Node, context: KernelContext) -> SizedFactory | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    op = operator(node, Gemm)
    has_bias = operand(node, 2) is not None and op.beta != 0
    return _Product(
        context,
        dtype,
        transpose_a=bool(op.transA),
        transpose_b=bool(op.transB),
        has_bias=has_bias,
        alpha=op.alpha,
        beta=op.beta if has_bias else 1.0,
    )


@prepared_kernel("FusedMatMul", DOMAIN, onednn=True)
def _fused_mat_mul(node: Node, context: KernelContext) -> SizedFactory | None:
    dtype = library_dtype(node)
    if dtype is None:
        return None
    op = operator(node, FusedMatMul)
    return _Product(
        context,
        dtype,
        transpose_a=bool(op.transA),
        transpose_b=bool(op.transB),
        has_bias=operand(node, 2) is not None,
        alpha=op.alpha,
        last=epilogue(node, residual=3),
    )
