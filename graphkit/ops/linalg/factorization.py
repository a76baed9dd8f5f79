"""Cholesky, LQ and symmetric eigenvalue factorisations of batches of matrices, after LAPACK.

Names and gradients follow Seeger, Hetzel, Dai, Meissner, Lawrence, "Auto-Differentiating Linear Algebra" (2017),
arXiv:1710.08717. An operator on symmetric matrices factorises the symmetric part (a + a^T) / 2 of its operand, so that
the gradient is symmetric and holds for every perturbation.
"""

from __future__ import annotations

from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.graph import Node
from graphkit.ir.types import TensorType
from graphkit.ops._base import DOMAIN, F, Op, Rand, Sample, op
from graphkit.ops.axes import i64
from graphkit.ops.linalg.elimination import cholesky, diagonalised, orthonormal_rows
from graphkit.ops.linalg.matrices import (
    REALS,
    diagonal_mask,
    matrix_shape,
    mirrored,
    solve_triangular,
    swapped,
    symmetric_part,
    transposed,
    triangle,
)
from graphkit.ops.pointwise import scalar_like

_DEFINITE = Rand((3, 3), definite=True)
_DEFINITES = Rand((2, 3, 3), definite=True)
_FACTOR = Rand((3, 3), 0.5, 2.0)


@op
class Potrf(Op):
    """Cholesky factor: the lower triangular l of a = l l^T, or with lower=False the upper triangular u of a = u^T u.

    a: [..., n, n], positive definite; any other matrix raises RuntimeFailure at run time.
    """

    lower: bool = True
    domain = DOMAIN
    checks_values = True
    inputs = ("a",)
    types = {"a": REALS}
    samples = lambda: (Sample(_DEFINITE), Sample(_DEFINITES, lower=False), Sample(Rand((1, 1), 1.0, 2.0)))

    def infer(self, a: TensorType) -> TensorType:
        return TensorType(a.dtype, matrix_shape(a, square=True))

    def reference(self, xp: Any, a: Any) -> Any:
        factor = xp.linalg.cholesky((a + swapped(xp, a)) / 2)
        return factor if self.lower else swapped(xp, factor)

    def expand(self, a: Any) -> Any:
        factor = cholesky(symmetric_part(a))
        return factor if self.lower else transposed(factor)

    def grad(self, node: Node, dy: Any) -> Any:
        # l^-T copyltu(l^T dl) l^-1 / 2
        y: Any = node.output
        factor, slope = (y, dy) if self.lower else (transposed(y), transposed(dy))
        inner = mirrored(F.mat_mul(transposed(factor), slope))
        return F.trsm(factor, F.trsm(factor, inner, transpose=True), rightside=True, alpha=0.5)


@op
class Potri(Op):
    """The inverse of a = l l^T, computed from the Cholesky factor l; with lower=False from u, where a = u^T u.

    l: [..., n, n]; only the triangle that `lower` selects is read. The result is symmetric.
    """

    lower: bool = True
    domain = DOMAIN
    checks_values = True
    composite = True
    inputs = ("l",)
    types = {"l": REALS}
    samples = lambda: (Sample(_FACTOR), Sample(Rand((2, 3, 3), 0.5, 2.0), lower=False))

    def infer(self, l: TensorType) -> TensorType:  # noqa: E741 - the factor's name in LAPACK
        return TensorType(l.dtype, matrix_shape(l, square=True))

    def reference(self, xp: Any, l: Any) -> Any:  # noqa: E741
        inverse = solve_triangular(xp, triangle(xp, l, self.lower), xp.eye(l.shape[-1], dtype=l.dtype), self.lower)
        other = swapped(xp, inverse)
        return xp.matmul(other, inverse) if self.lower else xp.matmul(inverse, other)

    def expand(self, l: Any) -> Any:  # noqa: E741
        identity = F.cast(diagonal_mask(l), to=l.dtype)
        inverse = F.trsm(l, identity, lower=self.lower)
        other = transposed(inverse)
        return F.mat_mul(other, inverse) if self.lower else F.mat_mul(inverse, other)

    def grad(self, node: Node, dy: Any) -> Any:
        y = node.output
        factor = F.trilu(node.operands[0], upper=not self.lower)
        slope = F.mat_mul(F.mat_mul(y, dy + transposed(dy)), y)
        product = F.mat_mul(slope, factor) if self.lower else F.mat_mul(factor, slope)
        return F.neg(F.trilu(product, upper=not self.lower))


@op
class Gelqf(Op):
    """LQ factorisation a = l q: q [..., m, n] with orthonormal rows, l [..., m, m] lower triangular.

    a: [..., m, n] with m <= n. The diagonal of l is not negative, so the factors of a matrix of full rank are unique.
    For a matrix of lower rank, the factorisation has no derivative: the gradient contains meaningless numbers, or
    raises RuntimeFailure if the diagonal of l contains a zero.
    """

    domain = DOMAIN
    inputs, outputs = ("a",), ("q", "l")
    types = {"a": REALS}
    samples = lambda: (Sample((2, 4)), Sample((3, 3)), Sample((2, 2, 3)))

    def infer(self, a: TensorType) -> Any:
        shape = matrix_shape(a)
        if shape is None:
            return TensorType(a.dtype), TensorType(a.dtype)
        if dims.is_static(shape[-2]) and dims.is_static(shape[-1]) and shape[-2] > shape[-1]:
            raise TypeMismatch(f"{a} has more rows than columns, for which there is no LQ factorisation")
        return TensorType(a.dtype, shape), TensorType(a.dtype, (*shape[:-1], shape[-2]))

    def reference(self, xp: Any, a: Any) -> Any:
        if a.shape[-2] > a.shape[-1]:
            raise TypeMismatch(
                f"a matrix {list(a.shape)} has more rows than columns, for which there is no LQ factorisation"
            )
        q, r = xp.linalg.qr(swapped(xp, a))
        signs = xp.where(xp.diagonal(r, axis1=-2, axis2=-1) < 0, -1, 1).astype(a.dtype)
        return swapped(xp, q) * signs[..., :, None], xp.tril(swapped(xp, r) * signs[..., None, :])

    def expand(self, a: Any) -> Any:
        return orthonormal_rows(a)

    def grad(self, node: Node, dq: Any, dl: Any) -> Any:
        # l^-T (dq + copyltu(l^T dl - dq q^T) q)
        q, factor = node.outputs
        parts = [] if dl is None else [F.mat_mul(transposed(factor), dl)]
        if dq is not None:
            parts.append(F.neg(F.mat_mul(dq, transposed(q))))
        inner = F.mat_mul(mirrored(parts[0] if len(parts) == 1 else parts[0] + parts[1]), q)
        return F.trsm(factor, inner if dq is None else inner + dq, transpose=True)


@op
class Syevd(Op):
    """Eigenvectors u (rows) and eigenvalues w (ascending) of a symmetric matrix: a = u^T diag(w) u.

    a: [..., n, n]. In each eigenvector, the element of largest magnitude is positive. Gradients through u need distinct
    eigenvalues: for two equal eigenvalues, the term of this pair is taken as 0.
    """

    domain = DOMAIN
    inputs, outputs = ("a",), ("u", "w")
    types = {"a": REALS}
    samples = lambda: (Sample((3, 3)), Sample((2, 3, 3)), Sample(_DEFINITE))

    def infer(self, a: TensorType) -> Any:
        shape = matrix_shape(a, square=True)
        return TensorType(a.dtype, shape), TensorType(a.dtype, None if shape is None else shape[:-1])

    def reference(self, xp: Any, a: Any) -> Any:
        w, vectors = xp.linalg.eigh((a + swapped(xp, a)) / 2)
        u = swapped(xp, vectors)
        largest = xp.take_along_axis(u, xp.argmax(xp.abs(u), axis=-1)[..., None], axis=-1)
        return xp.where(largest < 0, -u, u), w

    def expand(self, a: Any) -> Any:
        return diagonalised(symmetric_part(a))

    def grad(self, node: Node, du: Any, dw: Any) -> Any:
        # u^T (diag(dw) + f * (u du^T)) u, where f[i, j] = 1 / (w[j] - w[i])
        u, w = node.outputs
        parts = []
        if dw is not None:
            parts.append(F.where(diagonal_mask(u), F.unsqueeze(dw, i64(-1)), scalar_like(0.0, dw)))
        if du is not None:
            gaps = F.unsqueeze(w, i64(-2)) - F.unsqueeze(w, i64(-1))
            none, zero, one = F.equal(gaps, scalar_like(0.0, w)), scalar_like(0.0, w), scalar_like(1.0, w)
            turn = F.where(none, zero, F.div(one, F.where(none, one, gaps)))
            parts.append(F.mul(turn, F.mat_mul(u, transposed(du))))
        inner = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        return symmetric_part(F.mat_mul(F.mat_mul(transposed(u), inner), u))
