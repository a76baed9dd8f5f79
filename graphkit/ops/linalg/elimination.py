"""Factorisations and linear systems as Scans of standard operators, for export.

Each step works on one row or column of all matrices of a batch at once. If an operator rejects a matrix at run time
(singular, not positive definite), its form here gives NaN or infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.subgraph import checkpoint, close_over
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F
from graphkit.ops.axes import i64
from graphkit.ops.linalg.matrices import diagonal_mask, symmetric_part, transposed
from graphkit.ops.pointwise import scalar_like

# Number of sweeps of Jacobi rotations. After these, off-diagonal elements are rounding errors for all practical sizes.
_SWEEPS = 10


def cholesky(a: Any) -> Any:
    """Return the lower triangular l of symmetric a = l l^T [..., n, n], by columns and updates of rank 1."""

    def step(state: Any, j: Any) -> tuple[Any, Any]:
        column = _column(state, j)
        pivot = F.gather(column, j, axis=-1)
        below = F.greater_or_equal(_indices(state, -2), j)
        scaled = F.div(column, F.unsqueeze(F.sqrt(pivot), i64(-1)))
        scaled = F.where(below, scaled, scalar_like(0.0, state))
        tall = F.unsqueeze(scaled, i64(-1))
        return F.sub(state, F.mat_mul(tall, F.unsqueeze(scaled, i64(-2)))), scaled

    return _scan(step, _ranked(a), _size(a, -1), axis=-1)[1]


def substituted(a: Any, b: Any, lower: bool) -> Any:
    """Solve a x = b by substitution. a: [..., n, n], one triangle is read; b: [..., n, k]; batches broadcast."""

    def step(state: Any, j: Any) -> tuple[Any, Any]:
        column = _column(a, j)
        pivot = F.gather(column, j, axis=-1)
        row = F.div(F.gather(state, j, axis=-2), F.unsqueeze(pivot, i64(-1)))
        # This also changes rows that are solved already; they are never read again.
        return F.sub(state, F.mat_mul(F.unsqueeze(column, i64(-1)), F.unsqueeze(row, i64(-2)))), row

    right = _like_product(_ranked(a), _ranked(b))
    return _scan(step, right, _size(a, -1), axis=-2, reverse=not lower)[1]


def solved(a: Any, b: Any) -> Any:
    """Solve a x = b by Gauss-Jordan elimination with row pivoting. a: [..., n, n]; b: [..., n, k]."""
    right = _like_product(_ranked(a), _ranked(b))
    batch = F.shape(right)[:-2]
    left = F.expand(a, F.concat(batch, F.shape(a)[-2:], axis=0))

    def step(state: Any, j: Any) -> tuple[Any, Any]:
        turned, _ = _pivoted(state, j)
        column = _column(turned, j)
        pivot = F.gather(column, j, axis=-1)
        row = F.div(F.gather(turned, j, axis=-2), F.unsqueeze(pivot, i64(-1)))
        wide = F.unsqueeze(row, i64(-2))
        others = F.sub(turned, F.mat_mul(F.unsqueeze(column, i64(-1)), wide))
        here = F.unsqueeze(F.equal(_indices(state, -2), j), i64(-1))
        return F.where(here, wide, others), None

    joined = F.concat(left, right, axis=-1)
    reduced, _ = _scan(step, joined, _size(a, -1))
    size = F.shape(a)[-1:]
    most = i64(np.iinfo(np.int64).max)
    return F.slice(reduced, size, most, i64(-1))


def signed_logarithm(a: Any) -> tuple[Any, Any]:
    """Return the signs of the determinants of a [..., n, n] and the logarithms of their absolute values."""

    def step(state: Any, j: Any) -> tuple[Any, Any]:
        turned, swaps = _pivoted(state, j)
        column = _column(turned, j)
        pivot = F.gather(column, j, axis=-1)
        zero, one = scalar_like(0.0, state), scalar_like(1.0, state)
        divisor = F.where(F.equal(pivot, zero), one, pivot)
        row = F.div(F.gather(turned, j, axis=-2), F.unsqueeze(divisor, i64(-1)))
        below = F.where(F.greater(_indices(state, -2), j), column, zero)
        reduced = F.sub(turned, F.mat_mul(F.unsqueeze(below, i64(-1)), F.unsqueeze(row, i64(-2))))
        return reduced, F.where(swaps, F.neg(pivot), pivot)

    _, pivots = _scan(step, _ranked(a), _size(a, -1), axis=-1)
    sign = F.reduce_prod(F.sign(pivots), i64(-1), keepdims=False)
    return sign, F.reduce_sum(F.log(F.abs(pivots)), i64(-1), keepdims=False)


def orthonormal_rows(a: Any) -> tuple[Any, Any]:
    """Return q and l of a = l q by the Gram-Schmidt process, applied twice to each row. a: [..., m, n], m <= n."""

    def step(state: Any, j: Any) -> tuple[Any, Any]:
        row = F.unsqueeze(F.gather(a, j, axis=-2), i64(-1))
        first = F.mat_mul(state, row)
        rest = F.sub(row, F.mat_mul(transposed(state), first))
        second = F.mat_mul(state, rest)
        rest = F.sub(rest, F.mat_mul(transposed(state), second))
        norm = F.reduce_l2(rest, i64(-2), keepdims=True)
        here = F.equal(_indices(state, -2), j)
        unit = transposed(F.div(rest, norm))
        factors = F.where(F.unsqueeze(here, i64(-1)), norm, F.add(first, second))
        return F.where(F.unsqueeze(here, i64(-1)), unit, state), F.squeeze(factors, i64(-1))

    zeros = F.constant_of_shape(F.shape(_ranked(a)), value=np.zeros(1, a.dtype.numpy))
    return _scan(step, zeros, _size(a, -2), axis=-2)


def diagonalised(a: Any) -> tuple[Any, Any]:
    """Return u (rows) and w (ascending) of symmetric a = u^T diag(w) u, by cyclic Jacobi rotations, n / 2 per step.

    Each step rotates n / 2 disjoint pairs of rows. A sweep pairs all rows as a round-robin tournament does. Golub and
    Van Loan, "Matrix Computations", 4th edition, 8.5.
    """
    shape = F.shape(_ranked(a))
    index = _indices(a, -1)
    identity = F.expand(F.cast(diagonal_mask(a), to=a.dtype), shape)
    size = _size(a, -1)
    # n rounded up to an even number; if n is odd, the row paired with the last place is not rotated.
    places = F.mul(F.div(F.add(size, np.int64(1)), np.int64(2)), np.int64(2))
    rounds = F.max(F.sub(places, np.int64(1)), np.int64(1))

    def step(state: Any, turn: Any) -> tuple[Any, Any]:
        matrix, vectors = F.split(state, num_outputs=2, axis=-2)
        partner = _partners(index, F.mod(turn, rounds), rounds, places, size)
        rotation = _rotation(matrix, index, partner)
        # Make the matrix exactly symmetric: else rounding errors would give the two rows of a pair different angles.
        matrix = symmetric_part(F.mat_mul(F.mat_mul(transposed(rotation), matrix), rotation))
        return F.concat(matrix, F.mat_mul(vectors, rotation), axis=-2), None

    both, _ = _scan(step, F.concat(a, identity, axis=-2), F.mul(rounds, np.int64(_SWEEPS)))
    matrix, vectors = F.split(both, num_outputs=2, axis=-2)
    w, order = F.top_k(_diagonal(matrix), F.unsqueeze(size, i64(0)), largest=False)
    u = F.gather_elements(transposed(vectors), F.expand(F.unsqueeze(order, i64(-1)), shape), axis=-2)
    largest = F.unsqueeze(F.arg_max(F.abs(u), axis=-1, keepdims=False), i64(-1))
    leading = F.gather_elements(u, largest, axis=-1)
    return F.where(F.less(leading, scalar_like(0.0, u)), F.neg(u), u), w


# --- steps ----------------------------------------------------------------------------------------


def _pivoted(state: Any, j: Any) -> tuple[Any, Any]:
    """Exchange row j with the row at or below j whose element in column j is largest.

    Return the matrices, and whether the rows differ.
    """
    rows = _indices(state, -2)
    sizes = F.where(F.less(rows, j), scalar_like(-1.0, state), F.abs(_column(state, j)))
    best = F.arg_max(sizes, axis=-1, keepdims=True)
    taken = F.where(F.equal(rows, j), best, F.where(F.equal(rows, best), j, rows))
    wide = F.expand(F.unsqueeze(taken, i64(-1)), F.shape(state))
    return F.gather_elements(state, wide, axis=-2), F.squeeze(F.not_(F.equal(best, j)), i64(-1))


def _partners(index: Any, turn: Any, rounds: Any, places: Any, size: Any) -> Any:
    """Return the row that each of `size` rows is paired with in round `turn`; the row itself if it has no partner."""
    met = F.mod(F.sub(F.add(turn, rounds), index), rounds)
    last = F.sub(places, np.int64(1))
    met = F.where(F.equal(met, index), last, met)
    seat = F.mod(F.mul(turn, F.div(places, np.int64(2))), rounds)
    met = F.where(F.equal(index, last), seat, met)
    return F.where(F.less(met, size), met, index)


def _rotation(matrix: Any, index: Any, partner: Any) -> Any:
    """Return the matrix of the rotations that make matrix[i, partner[i]] zero, for all pairs at once."""
    zero, one, two = (scalar_like(x, matrix) for x in (0.0, 1.0, 2.0))
    meets = F.equal(F.unsqueeze(partner, i64(1)), index)
    diagonal = _diagonal(matrix)
    beside = F.reduce_sum(F.where(meets, matrix, zero), i64(-1), keepdims=False)
    still = F.or_(F.equal(partner, index), F.equal(beside, zero))
    gap = F.sub(F.gather(diagonal, partner, axis=-1), diagonal)
    ratio = F.div(gap, F.mul(two, F.where(still, one, beside)))
    # The two rows of a pair get angles of opposite sign, also if the ratio is 0.
    first = F.less(index, partner)
    sign = F.where(F.equal(ratio, zero), F.where(first, one, F.neg(one)), F.sign(ratio))
    tangent = F.div(sign, F.add(F.abs(ratio), F.sqrt(F.add(one, F.mul(ratio, ratio)))))
    tangent = F.where(still, zero, tangent)
    cosine = F.reciprocal(F.sqrt(F.add(one, F.mul(tangent, tangent))))
    rotated = F.where(meets, F.unsqueeze(F.mul(tangent, cosine), i64(-1)), zero)
    return F.where(diagonal_mask(matrix), F.unsqueeze(cosine, i64(-1)), rotated)


# --- parts ----------------------------------------------------------------------------------------


def _ranked(x: Any) -> Any:
    if x.rank is None:
        raise UnsupportedError(f"linear algebra in standard operators needs an operand of known rank, not {x}")
    return x


def _size(x: Any, axis: int) -> Any:
    """Return the size of an axis, a 0-d int64."""
    return F.gather(F.shape(x), np.int64(axis), axis=0)


def _indices(x: Any, axis: int) -> Any:
    return F.range(np.int64(0), _size(x, axis), np.int64(1))


def _column(x: Any, j: Any) -> Any:
    return F.gather(x, j, axis=-1)


def _diagonal(x: Any) -> Any:
    return F.reduce_sum(F.where(diagonal_mask(x), x, scalar_like(0.0, x)), i64(-1), keepdims=False)


def _like_product(a: Any, b: Any) -> Any:
    """Return b broadcast to the batch of a @ b."""
    rank = max(a.rank, b.rank) - 2
    batches = [F.concat(i64(*[1] * (rank + 2 - x.rank)), F.shape(x)[:-2], axis=0) for x in (a, b)]
    return F.expand(b, F.concat(F.max(batches), F.shape(b)[-2:], axis=0))


def _scan(
    step: Callable[[Any, Any], tuple[Any, Any]], start: Any, count: Any, *, axis: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    """Run (state, result) = step(state, j) for j = 0, ..., count - 1, or in reverse.

    Return the last state, and the results stacked along `axis` (None if `step` returns None). Values of the surrounding
    graph may be used inside.
    """
    mark = checkpoint()
    state, j = Value(TensorType(start.dtype, start.shape), "state"), Value(TensorType(DType.INT64, ()), "j")
    following, result = step(state, j)
    outputs = [following] if result is None else [following, result]
    body, captured = close_over(outputs, [state, j], mark, name="step")
    stacked: dict[str, Any] = (
        {} if result is None else {"scan_output_axes": (axis,), "scan_output_directions": (int(reverse),)}
    )
    found = F.scan(
        start,
        F.range(np.int64(0), count, np.int64(1)),
        *captured,
        body=body,
        num_scan_inputs=1,
        scan_input_directions=(int(reverse),),
        captures=len(captured),
        **stacked,
    )
    return (found, None) if result is None else found
