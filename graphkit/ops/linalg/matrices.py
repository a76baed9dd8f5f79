"""Shared by linear algebra operators: shapes of batches of matrices, triangles, triangular systems."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import DType, TensorType, broadcast_shapes
from graphkit.ops._base import F
from graphkit.ops.axes import i64
from graphkit.ops.pointwise import scalar_like

REALS = frozenset({DType.FLOAT32, DType.FLOAT64})
# Triangular systems up to this size are solved at once, larger ones are split in halves.
_BLOCK = 32


# --- types ----------------------------------------------------------------------------------------


def matrix_shape(x: TensorType, what: str = "operand", *, square: bool = False) -> tuple[Dim, ...] | None:
    """Return the shape of a batch of (square) matrices; None for an unknown rank. Raises TypeMismatch."""
    if x.shape is None:
        return None
    if len(x.shape) < 2 or (square and not dims.may_equal(x.shape[-1], x.shape[-2])):
        raise TypeMismatch(f"{what} {x} is not a {'square ' if square else ''}matrix or a batch of them")
    return x.shape


def product_type(
    a: TensorType, b: TensorType, left: tuple[Dim, Dim] | None, right: tuple[Dim, Dim] | None
) -> TensorType:
    """Return the type [*batch, left, right] of a product of matrices, where batch is that of a and b, broadcast."""
    if a.shape is None or b.shape is None or left is None or right is None:
        return TensorType(a.dtype)
    if not dims.may_equal(left[1], right[0]):
        raise TypeMismatch(f"a matrix of {left[1]} columns does not multiply one of {right[0]} rows: {a}, {b}")
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    assert batch is not None
    return TensorType(a.dtype, (*batch, left[0], right[1]))


# --- on arrays ------------------------------------------------------------------------------------


def swapped(xp: Any, x: Any) -> Any:
    return xp.swapaxes(x, -1, -2)


def triangle(xp: Any, x: Any, lower: bool) -> Any:
    return xp.tril(x) if lower else xp.triu(x)


def solve_triangular(xp: Any, a: Any, b: Any, lower: bool) -> Any:
    """Solve a x = b. a: [..., n, n], zero outside its triangle; b: [..., n, k]; batches broadcast."""
    n = a.shape[-1]
    if n <= _BLOCK:
        return xp.solve(a, b)
    first, last = slice(0, n // 2), slice(n // 2, n)
    if not lower:
        first, last = last, first
    head = solve_triangular(xp, a[..., first, first], b[..., first, :], lower)
    rest = b[..., last, :] - xp.matmul(a[..., last, first], head)
    tail = solve_triangular(xp, a[..., last, last], rest, lower)
    return xp.concatenate((head, tail) if lower else (tail, head), axis=-2)


# --- in the graph ---------------------------------------------------------------------------------


def transposed(x: Any) -> Any:
    """Exchange the last two axes of x. Raises UnsupportedError for an unknown rank."""
    if x.rank is None:
        raise UnsupportedError(f"the transposition of {x} needs a known rank")
    return F.transpose(x, perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))


def diagonal_mask(x: Any) -> Any:
    """Return bool [n, n], true on the diagonal, where n is the number of x's columns."""
    index = F.range(np.int64(0), F.squeeze(F.shape(x)[-1:]), np.int64(1))
    return F.equal(F.unsqueeze(index, i64(1)), index)


def mirrored(x: Any) -> Any:
    """Return the symmetric matrix with x's lower triangle (copyltu of Seeger et al.)."""
    return F.trilu(x, upper=False) + transposed(F.trilu(x, np.int64(-1), upper=False))


def symmetric_part(x: Any) -> Any:
    return (x + transposed(x)) * scalar_like(0.5, x)


def as_matrices(x: Any) -> Any:
    """Reshape a batch of numbers to matrices of one element: [...] to [..., 1, 1]."""
    return F.unsqueeze(x, i64(-2, -1))
