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
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.linalg.matmul import Gemm

# If a product has one column, and rows of at least this many elements, graphkit's dot products are faster than oneDNN.
_LONG_ROW_BY_COLUMN = 64

# The same for a product with one row, if the second matrix is transposed.
_LONG_COLUMN_BY_ROW = 256


class _Product:
    """Makes the kernels of `alpha * a @ b + beta * bias` for all sizes.

    last: The epilogue of the product; None if there is none.
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
        self._may_use_dots = dtype == "float32" and last is None and not transpose_a
        constant = 1 in context.constant_inputs
        is_plain = dtype == "float32" and not transpose_a and alpha == 1 and beta == 1
        # Deterministic results must not depend on whether the program updates the matrix: ranks that train together
        # must compute the same bits as one process that accumulates gradients.
        packs = constant and is_plain and not context.deterministic
        # Returns None for sizes for which oneDNN is faster.
        self.native: native.PackedProductFactory | None = None
        if packs:
            self.native = native.PackedProductFactory(
                transposed=transpose_b,
                bias=has_bias,
                epilogue=self._last,
                vary=context.sizes_vary,
                dots_from=_LONG_ROW_BY_COLUMN if self._may_use_dots else 0,
                threads=context.threads,
            )
        self._blocked: dict[str, Any] = dict(
            transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, beta=beta, dtype=dtype,
            threads=context.threads,
        )  # fmt: skip
        self._options: dict[str, Any] = dict(
            self._blocked, epilogue=self._last, pack_b=constant, **library_options(context)
        )

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        a, b = present(inputs[0]), present(inputs[1])
        bias = inputs[2] if self._has_bias else None
        if self._may_use_dots and self._suits_dots(a, b):
            return native.BlockedMatMul(a, b, bias=bias, **self._blocked)
        if self.native is not None and (packed := self.native(inputs, outputs)) is not None:
            return packed
        return native.MatMul(a, b, bias=bias, **self._options)

    def _suits_dots(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Return whether graphkit's dot products are faster than oneDNN: for one column, or for one row."""
        if len(b) == 1 or b[-2 if self._transposed else -1] == 1:
            return a[-1] >= _LONG_ROW_BY_COLUMN
        is_row = len(a) == 1 or a[-2] == 1
        return is_row and self._transposed and self.native is None and a[-1] >= _LONG_COLUMN_BY_ROW


class _BlockedProduct:
    """Makes the kernels of `alpha * a @ b + beta * bias` of element types that oneDNN does not multiply."""

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
    ):
        self._has_bias = has_bias
        self._options: dict[str, Any] = dict(
            transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, beta=beta, dtype=dtype,
            threads=context.threads,
        )  # fmt: skip

    def __call__(self, inputs: Shapes, outputs: Shapes) -> Kernel | None:
        a, b = present(inputs[0]), present(inputs[1])
        if self._options["dtype"] == "float64" and self._is_long_row(a, b):
            return None
        return native.BlockedMatMul(a, b, bias=inputs[2] if self._has_bias else None, **self._options)

    def _is_long_row(self, a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        """Return whether the product is one row times a large matrix, for which numpy is faster."""
        if self._options["transpose_b"] or len(b) != 2 or b[1] == 1:
            return False
        return math.prod(a) == b[0] and math.prod(b) >= _LARGE_MATRIX


# numpy multiplies one row of float64 by a matrix of at least this many elements faster than graphkit.
_LARGE_MATRIX = 1 << 17

_BLOCKED = frozenset({DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64})


def _product(
    node: Node, context: KernelContext, last: native.Epilogue | None = None, **options: Any
) -> SizedFactory | None:
    """Return the factory of a product's kernels: oneDNN's or, for other element types, graphkit's.

    last: The epilogue of the product; None if there is none. options: As for `_Product`.
    """
    dtype = library_dtype(node)
    if dtype is not None:
        return _Product(context, dtype, last=last, **options)
    kinds = {v.dtype for v in (*node.operands, *node.outputs)}
    if len(kinds) > 1 or not kinds <= _BLOCKED or last is not None:
        return None
    return _BlockedProduct(context, kinds.pop().value, **options)


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
