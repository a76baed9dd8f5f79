"""Products of matrices and triangular systems in batches, after BLAS.

Names, attributes and gradients follow Seeger, Hetzel, Dai, Meissner, Lawrence, "Auto-Differentiating Linear Algebra"
(2017), arXiv:1710.08717. Batches broadcast. A triangular operand's other triangle is never read.
"""

from __future__ import annotations

from typing import Any

from graphkit.ir.graph import Node
from graphkit.ir.types import TensorType
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, op
from graphkit.ops.axes import i64
from graphkit.ops.linalg.elimination import substituted
from graphkit.ops.linalg.matrices import (
    REALS,
    diagonal_mask,
    matrix_shape,
    product_type,
    solve_triangular,
    swapped,
    transposed,
    triangle,
)
from graphkit.ops.pointwise import scalar_like, unbroadcast

_FACTOR = Rand((3, 3), 0.5, 2.0)
_FACTORS = Rand((2, 3, 3), 0.5, 2.0)


def _scaled(x: Any, alpha: float) -> Any:
    return x if alpha == 1.0 else x * scalar_like(alpha, x)


@op
class Gemm2(Op):
    """alpha * op(a) @ op(b) for batches; op transposes a if transpose_a is set, and b if transpose_b is set.

    op(a): [..., m, k], op(b): [..., k, n]; the result is [..., m, n].
    """

    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    domain = DOMAIN
    inputs = ("a", "b")
    types = {"a": REALS, "b": "a"}
    composite = True
    samples = lambda: (
        Sample((2, 3), (3, 4)),
        Sample((2, 3, 2), (1, 3, 4), transpose_a=True, alpha=0.5),
        Sample((2, 3), (2, 4, 3), transpose_b=True),
        Sample((3, 2), (4, 3), transpose_a=True, transpose_b=True, alpha=-2.0),
    )

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        left, right = matrix_shape(a), matrix_shape(b)
        if left is None or right is None:
            return TensorType(a.dtype)
        if self.transpose_a:
            left = (*left[:-2], left[-1], left[-2])
        if self.transpose_b:
            right = (*right[:-2], right[-1], right[-2])
        return product_type(a, b, (left[-2], left[-1]), (right[-2], right[-1]))

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        y = xp.matmul(swapped(xp, a) if self.transpose_a else a, swapped(xp, b) if self.transpose_b else b)
        return y * self.alpha

    def expand(self, a: Any, b: Any) -> Any:
        y = F.mat_mul(transposed(a) if self.transpose_a else a, transposed(b) if self.transpose_b else b)
        return _scaled(y, self.alpha)


@op
class Syrk(Op):
    """alpha * a @ a^T, or alpha * a^T @ a with `transpose`. a: [..., m, n]; the result is symmetric."""

    transpose: bool = False
    alpha: float = 1.0
    domain = DOMAIN
    inputs = ("a",)
    types = {"a": REALS}
    composite = True
    samples = lambda: (Sample((2, 3)), Sample((2, 3, 2), transpose=True, alpha=0.5))

    def infer(self, a: TensorType) -> TensorType:
        shape = matrix_shape(a)
        if shape is None:
            return TensorType(a.dtype)
        side = shape[-1 if self.transpose else -2]
        return TensorType(a.dtype, (*shape[:-2], side, side))

    def reference(self, xp: Any, a: Any) -> Any:
        other = swapped(xp, a)
        return (xp.matmul(other, a) if self.transpose else xp.matmul(a, other)) * self.alpha

    def expand(self, a: Any) -> Any:
        other = transposed(a)
        return _scaled(F.mat_mul(other, a) if self.transpose else F.mat_mul(a, other), self.alpha)


class _Triangular(Op):
    """A triangular matrix, transposed or not, at the left or right of another one."""

    transpose: bool = False
    rightside: bool = False
    lower: bool = True
    alpha: float = 1.0
    domain = DOMAIN
    inputs = ("a", "b")
    types = {"a": REALS, "b": "a"}
    samples = lambda: (
        Sample(_FACTOR, (3, 2)),
        Sample(_FACTORS, (2, 3, 2), transpose=True, alpha=0.5),
        Sample(_FACTORS, (2, 3), rightside=True),
        Sample(_FACTOR, (2, 2, 3), rightside=True, transpose=True, alpha=-2.0),
        Sample(_FACTOR, (3, 2), lower=False),
        Sample(_FACTORS, (1, 3, 2), lower=False, transpose=True),
        Sample(_FACTOR, (2, 3), lower=False, rightside=True, alpha=1.5),
        Sample(_FACTOR, (2, 3), lower=False, rightside=True, transpose=True),
    )

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        factor, other = matrix_shape(a, "the triangular operand", square=True), matrix_shape(b)
        if factor is None or other is None:
            return TensorType(a.dtype)
        side, rest = (factor[-1], factor[-1]), (other[-2], other[-1])
        return product_type(a, b, rest, side) if self.rightside else product_type(a, b, side, rest)


@op
class Trmm(_Triangular):
    """alpha * op(a) @ b, or alpha * b @ op(a) with `rightside`; op transposes if `transpose` is set.

    a: [..., n, n]; only the triangle that `lower` selects is read.
    """

    composite = True

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        factor = triangle(xp, a, self.lower)
        factor = swapped(xp, factor) if self.transpose else factor
        return (xp.matmul(b, factor) if self.rightside else xp.matmul(factor, b)) * self.alpha

    def expand(self, a: Any, b: Any) -> Any:
        factor = F.trilu(a, upper=not self.lower)
        factor = transposed(factor) if self.transpose else factor
        return _scaled(F.mat_mul(b, factor) if self.rightside else F.mat_mul(factor, b), self.alpha)


@op
class Trsm(_Triangular):
    """The solution x of op(a) @ x = alpha * b, or of x @ op(a) = alpha * b with `rightside`.

    a: [..., n, n], triangular; op transposes if `transpose` is set. A zero on the diagonal raises RuntimeFailure at run
    time.
    """

    checks_values = True

    def reference(self, xp: Any, a: Any, b: Any) -> Any:
        factor = triangle(xp, a, self.lower)
        # x @ op(a) = b is the transpose of op(a)^T @ x^T = b^T.
        flipped = self.transpose is not self.rightside
        factor = swapped(xp, factor) if flipped else factor
        known = (swapped(xp, b) if self.rightside else b) * self.alpha
        x = solve_triangular(xp, factor, known, self.lower is not flipped)
        return swapped(xp, x) if self.rightside else x

    def expand(self, a: Any, b: Any) -> Any:
        flipped = self.transpose is not self.rightside
        factor = transposed(a) if flipped else a
        known = _scaled(transposed(b) if self.rightside else b, self.alpha)
        x = substituted(factor, known, self.lower is not flipped)
        return transposed(x) if self.rightside else x

    def grad(self, node: Node, dy: Any) -> Any:
        a, b = node.operands
        y = node.output
        z = F.trsm(a, dy, transpose=not self.transpose, rightside=self.rightside, lower=self.lower)
        # Gradient of op(a): -z y^T, or -y^T z if op(a) is at the right. The gradient of a is its transpose if op
        # transposes.
        left, right = (transposed(y), z) if self.rightside else (z, transposed(y))
        da = F.neg(F.mat_mul(transposed(right), transposed(left)) if self.transpose else F.mat_mul(left, right))
        return unbroadcast(F.trilu(da, upper=not self.lower), a), unbroadcast(_scaled(z, self.alpha), b)


@op
class Sumlogdiag(Op):
    """The sum of the logarithms of the diagonal; for a Cholesky factor a, half the log-determinant of a a^T.

    a: [..., n, n]; the result has the shape of the batch.
    """

    domain = DOMAIN
    inputs = ("a",)
    types = {"a": REALS}
    composite = True
    samples = lambda: (Sample(_FACTOR), Sample(_FACTORS))

    def infer(self, a: TensorType) -> TensorType:
        shape = matrix_shape(a, square=True)
        return TensorType(a.dtype, None if shape is None else shape[:-2])

    def reference(self, xp: Any, a: Any) -> Any:
        return xp.sum(xp.log(xp.diagonal(a, axis1=-2, axis2=-1)), axis=-1)

    def expand(self, a: Any) -> Any:
        diagonal = F.where(diagonal_mask(a), a, scalar_like(1.0, a))
        return F.reduce_sum(F.log(diagonal), i64(-2, -1), keepdims=False)
