"""Inverses, determinants and linear systems of batches of square matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.ir.graph import Node
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Rand, Sample, constant, op
from graphkit.ops.axes import i64
from graphkit.ops.linalg.elimination import signed_logarithm, solved
from graphkit.ops.linalg.matrices import REALS, as_matrices, diagonal_mask, matrix_shape, product_type, transposed
from graphkit.ops.pointwise import unbroadcast

_DEFINITE = Rand((3, 3), definite=True)


@op
class Inverse(Op):
    """The inverse of each matrix of a: [..., n, n]. A singular matrix raises RuntimeFailure at run time."""

    domain = DOMAIN
    checks_values = True
    inputs = ("a",)
    types = {"a": FLOATS}
    samples = lambda: (Sample(_DEFINITE, dtypes=REALS), Sample(Rand((2, 2, 2), definite=True), dtypes=REALS))

    def infer(self, a: TensorType) -> TensorType:
        return TensorType(a.dtype, matrix_shape(a, square=True))

    def reference(self, xp: Any, a: Any) -> Any:
        return xp.linalg.inv(a)

    def expand(self, a: Any) -> Any:
        return solved(a, F.cast(diagonal_mask(a), to=a.dtype))

    def grad(self, node: Node, dy: Any) -> Any:
        other = transposed(node.output)
        return F.neg(F.mat_mul(F.mat_mul(other, dy), other))


@op
class Det(Op):
    """The determinant of each matrix of x: [..., n, n]; the result has the shape of the batch.

    Singular matrices have gradients, too.
    """

    inputs = ("x",)
    types = {"x": FLOATS}
    onnx = Onnx("Det", since=22)
    samples = lambda: (Sample((3, 3)), Sample((2, 2, 2)), Sample((1, 1)), Sample(np.zeros((2, 2), np.float32)))

    def infer(self, x: TensorType) -> TensorType:
        shape = matrix_shape(x, square=True)
        return TensorType(x.dtype, None if shape is None else shape[:-2])

    def reference(self, xp: Any, x: Any) -> Any:
        return xp.linalg.det(x)

    def grad(self, node: Node, dy: Any) -> Any:
        return as_matrices(dy) * F.cofactor(node.operands[0])


# Up to this many rows, the gradient of cofactors is computed from determinants of minors, without an inverse.
_MINORS = 8


def _minors(x: Any, n: int) -> Any:
    """Return the matrices x [..., n, n] without row i and column j, for all i and j: [..., i, j, n - 1, n - 1]."""
    others = np.array([[j for j in range(n) if j != i] for i in range(n)], np.int64).reshape(n, n - 1)
    # [..., n, n - 1, n, n - 1]: the removed row, the remaining rows, the removed column, the remaining columns.
    minors = F.gather(F.gather(x, constant(others), axis=-2), constant(others), axis=-1)
    axes = range(x.rank + 2)
    batch, (i, row, j, column) = axes[:-4], axes[-4:]
    return F.transpose(minors, perm=(*batch, i, j, row, column))


def _of_minors(slopes: Any, n: int) -> Any:
    """Return the gradient with respect to the matrices, from the gradients with respect to their minors."""
    chosen = np.stack([np.delete(np.eye(n), i, axis=0) for i in range(n)]).astype(slopes.dtype.numpy)
    rows = constant(chosen)
    return F.einsum(slopes, rows, rows, equation="...ijab,iar,jbc->...rc")


def _signs(dtype: DType, n: int) -> Any:
    index = np.arange(n)
    return constant(np.where((index[:, None] + index) % 2, -1, 1).astype(dtype.numpy))


@op
class Cofactor(Op):
    """The matrix of cofactors: det(a) * a^-T if a has an inverse. a: [..., n, n].

    Computed from singular values: det(u) det(v) u diag(p) v^T for a = u diag(s) v^T, where p[i] is the product of all
    elements of s except s[i]. Cofactors are NaN if an element is not finite. For n > 8, the gradient is computed from
    the inverse, so a singular matrix raises RuntimeFailure.
    """

    domain = DOMAIN
    inputs = ("a",)
    types = {"a": FLOATS}
    samples = lambda: (
        Sample(_DEFINITE, dtypes=REALS),
        Sample(Rand((2, 2, 2), definite=True), dtypes=REALS),
        Sample((1, 1), dtypes=REALS),
        Sample((2, 0, 0), dtypes=REALS),
    )

    def infer(self, a: TensorType) -> TensorType:
        return TensorType(a.dtype, matrix_shape(a, square=True))

    def reference(self, xp: Any, a: Any) -> Any:
        finite = xp.isfinite(a).all(axis=(-2, -1), keepdims=True)
        u, s, vh = xp.linalg.svd(xp.where(finite, a, xp.asarray(0, dtype=a.dtype)))
        index = xp.arange(s.shape[-1])
        others = xp.where(index[:, None] == index, xp.asarray(1, dtype=s.dtype), s[..., None, :])
        turned = xp.asarray(xp.linalg.det(u) * xp.linalg.det(vh), dtype=a.dtype)
        scale = xp.prod(others, axis=-1) * turned[..., None]
        return xp.where(finite, xp.matmul(u * scale[..., None, :], vh), xp.asarray(np.nan, dtype=a.dtype))

    def expand(self, a: Any) -> Any:
        n = None if a.shape is None else a.shape[-1]
        if isinstance(n, int) and n < 2:
            return F.constant_of_shape(F.shape(a), value=np.ones(1, a.dtype.numpy))
        if isinstance(n, int) and n <= _MINORS:
            return F.det(_minors(a, n)) * _signs(a.dtype, n)
        # The result is NaN for matrices without an inverse.
        return as_matrices(F.det(a)) * transposed(F.inverse(a))

    def grad(self, node: Node, dy: Any) -> Any:
        y, (a,) = node.output, node.operands
        n = None if a.shape is None else a.shape[-1]
        if isinstance(n, int) and n < 2:
            return None
        if isinstance(n, int) and n <= _MINORS:
            return _of_minors(as_matrices(dy * _signs(a.dtype, n)) * F.cofactor(_minors(a, n)), n)
        inverse = transposed(F.inverse(a))
        along = F.reduce_sum(F.mul(dy, y), i64(-2, -1))
        return inverse * along - F.mat_mul(F.mat_mul(inverse, transposed(dy)), y)


@op
class Slogdet(Op):
    """The sign of the determinant, and the logarithm of its absolute value, without overflow. a: [..., n, n].

    A singular matrix gives 0 and -inf. No gradient flows through the sign.
    """

    domain = DOMAIN
    inputs, outputs = ("a",), ("sign", "logabsdet")
    types = {"a": REALS}
    samples = lambda: (Sample((3, 3)), Sample(Rand((2, 2, 2), definite=True)))

    def infer(self, a: TensorType) -> Any:
        shape = matrix_shape(a, square=True)
        result = TensorType(a.dtype, None if shape is None else shape[:-2])
        return result, result

    def reference(self, xp: Any, a: Any) -> Any:
        sign, logarithm = xp.linalg.slogdet(a)
        return sign, logarithm

    def expand(self, a: Any) -> Any:
        return signed_logarithm(a)

    def grad(self, node: Node, _dsign: Any, dlog: Any) -> Any:
        return None if dlog is None else as_matrices(dlog) * transposed(F.inverse(node.operands[0]))


@op
class Solve(Op):
    """The solution x of a @ x = b. a: [..., n, n]; b: [..., n, k]; batches broadcast.

    A singular a raises RuntimeFailure at run time.
    """

    domain = DOMAIN
    checks_values = True
    inputs = ("a", "b")
    types = {"a": REALS, "b": "a"}
    samples = lambda: (
        Sample(_DEFINITE, (3, 2)),
        Sample(Rand((2, 3, 3), definite=True), (3, 1)),
        Sample(_DEFINITE, (2, 3, 2)),
    )

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        square, other = matrix_shape(a, square=True), matrix_shape(b)
        if square is None or other is None:
            return TensorType(a.dtype)
        return product_type(a, b, (square[-1], square[-1]), (other[-2], other[-1]))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.solve(a, b)

    def expand(self, a: Any, b: Any) -> Any:
        return solved(a, b)

    def grad(self, node: Node, dy: Any) -> Any:
        a, b = node.operands
        db = F.solve(transposed(a), dy)
        return unbroadcast(F.neg(F.mat_mul(db, transposed(node.output))), a), unbroadcast(db, b)
