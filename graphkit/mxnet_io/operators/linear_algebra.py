"""Operators linalg_*: products, factorisations, triangular systems, parts of matrices; Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.frontend import linalg
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, axis_of, converter, rank_of, reshape, scalar, static_sizes, transpose
from graphkit.mxnet_io.operators.reduction import never_scalar
from graphkit.ops import F
from graphkit.ops.axes import i64


def _of_one(function: Callable[[Value], Any], call: Call) -> Value | list[Value]:
    found = function(call.x)
    return [never_scalar(call, y) for y in found] if isinstance(found, tuple) else never_scalar(call, found)


# MXNet's name, without the beginning linalg_ -> graphkit's function.
_FUNCTIONS: dict[str, Callable[[Value], Any]] = {
    "det": linalg.det, "gelqf": linalg.gelqf, "inverse": linalg.inverse, "potri": linalg.potri,
    "slogdet": linalg.slogdet, "sumlogdiag": linalg.sumlogdiag, "syevd": linalg.syevd,
}  # fmt: skip
for _name, _function in _FUNCTIONS.items():
    converter(f"linalg_{_name}", f"_linalg_{_name}")(partial(_of_one, _function))
converter("_npi_det")(partial(_of_one, linalg.det))
converter("_npi_slogdet")(partial(_of_one, linalg.slogdet))
converter("_npi_inv")(partial(_of_one, linalg.inverse))


@converter("linalg_potrf", "_linalg_potrf", "_npi_cholesky")
def cholesky(call: Call) -> Value:
    """The lower triangular Cholesky factor."""
    result: Value = F.potrf(call.x, lower=call.attributes.flag("lower", True), name=call.name)
    return result


@converter("linalg_trmm", "_linalg_trmm", "linalg_trsm", "_linalg_trsm")
def triangular(call: Call) -> Value:
    """Multiply by a triangular matrix, or solve a triangular system."""
    attributes = call.attributes
    function = F.trmm if call.op.endswith("trmm") else F.trsm
    result: Value = function(
        call[0], call[1], transpose=attributes.flag("transpose", False), lower=attributes.flag("lower", True),
        rightside=attributes.flag("rightside", False), alpha=attributes.number("alpha", 1.0), name=call.name,
    )  # fmt: skip
    return result


@converter("linalg_syrk", "_linalg_syrk")
def syrk(call: Call) -> Value:
    """alpha a a^T, or alpha a^T a with transpose."""
    attributes = call.attributes
    transpose, alpha = attributes.flag("transpose", False), attributes.number("alpha", 1.0)
    result: Value = F.syrk(call.x, transpose=transpose, alpha=alpha, name=call.name)
    return result


@converter("linalg_extractdiag", "_linalg_extractdiag")
def extractdiag(call: Call) -> Value:
    return linalg.extractdiag(call.x, call.attributes.integer("offset", 0))


@converter("linalg_makediag", "_linalg_makediag")
def makediag(call: Call) -> Value:
    return linalg.makediag(call.x, call.attributes.integer("offset", 0))


@converter("linalg_extracttrian", "_linalg_extracttrian")
def extracttrian(call: Call) -> Value:
    offset, lower = _triangle(call)
    return linalg.extracttrian(call.x, offset, lower)


@converter("linalg_maketrian", "_linalg_maketrian")
def maketrian(call: Call) -> Value:
    offset, lower = _triangle(call)
    return linalg.maketrian(call.x, offset, lower)


def _triangle(call: Call) -> tuple[int, bool]:
    """Return the offset and whether the triangle is the lower one, which an offset other than 0 decides."""
    offset, lower = call.attributes.integer("offset", 0), call.attributes.flag("lower", True)
    return offset, lower if offset == 0 else offset < 0


@converter("_npi_solve")
def solve(call: Call) -> Value:
    """The solution x of a x = b for one vector b, or for several as the columns of a matrix."""
    a, b = call[0], call[1]
    if b.rank == 1:
        result: Value = F.squeeze(F.solve(a, F.unsqueeze(b, [1])), [1])
    else:
        result = F.solve(a, b, name=call.name)
    return result


def _as_matrix(x: Value, split: int) -> tuple[Value, list[int]]:
    """Join the first `split` axes and the others. Returns the square matrix and the sizes of x."""
    sizes = static_sizes(x, range(rank_of(x)))
    rows, columns = math.prod(sizes[:split]), math.prod(sizes[split:])
    if rows != columns:
        raise InvalidModel(f"sizes {sizes[:split]} and {sizes[split:]} give {rows} rows and {columns} columns")
    return reshape(x, [rows, columns]), sizes


@converter("_npi_tensorinv")
def tensor_inverse(call: Call) -> Value:
    """The inverse of a tensor whose first `ind` axes are the rows of a matrix."""
    split = call.attributes.integer("ind", 2)
    if split < 1:
        raise InvalidModel(f"ind is {split}; it must be at least 1")
    matrix, sizes = _as_matrix(call.x, split)
    return reshape(linalg.inverse(matrix), [*sizes[split:], *sizes[:split]])


@converter("_npi_tensorsolve")
def tensor_solve(call: Call) -> Value:
    """The solution x of tensordot(a, x, rank of x) = b. The axes `a_axes` of a are moved to the end first."""
    a, b = call[0], call[1]
    rank = rank_of(a)
    moved = [axis_of(a, axis) for axis in call.attributes.integers("a_axes")]
    a = transpose(a, *(axis for axis in range(rank) if axis not in moved), *moved)
    matrix, sizes = _as_matrix(a, rank_of(b))
    found = F.solve(matrix, reshape(b, [-1, 1]), name=call.name)
    return reshape(found, sizes[rank_of(b) :])


# Values of the attribute flag of _npi_norm. Other values leave the choice to `ord`.
_ALL, _FROBENIUS, _NUCLEAR = -2, 1, 2


@converter("_npi_norm")
def norm(call: Call) -> Value:
    """A norm of vectors along one axis, of matrices along two axes, or of all elements (flag -2).

    It is computed in float64, so that squares of float32 numbers do not overflow. Without axes, the last two are used.
    """
    attributes, x, rank = call.attributes, call.x, rank_of(call.x)
    order, flag = attributes.number("ord", 2.0), attributes.integer("flag", -1)
    kept, given = attributes.flag("keepdims", False), attributes.integers("axis")
    if not -2 <= flag <= 4 or (flag == _ALL and given):
        raise InvalidModel(f"flag {flag} with axis {given}")
    axes = [axis_of(x, axis) for axis in given] or list(range(rank) if flag == _ALL else range(rank)[-2:])
    wide = F.abs(F.cast(x, to="float64"))
    if flag == _ALL or (flag == _FROBENIUS and len(axes) == 2):
        found = F.reduce_l2(wide, i64(*axes), keepdims=True)
    elif len(axes) == 1 and flag != _NUCLEAR and math.isfinite(order):
        found = _vector_norm(wide, axes[0], order)
    elif len(axes) == 2 and axes[0] != axes[1]:
        found = _matrix_norm(wide, axes[0], axes[1], order, flag)
    else:
        raise InvalidModel(f"ord {order:g}, flag {flag} and axis {given} for rank {rank}")
    result: Value = F.cast(found if kept or not axes else F.squeeze(found, i64(*axes)), to=x.dtype)
    return result


def _vector_norm(x: Value, axis: int, order: float) -> Value:
    """Return the norm of vectors whose elements are not negative. The axis keeps the size 1."""
    if order == 0:
        x = F.cast(F.greater(x, scalar(0.0, x)), to=x.dtype)
    if order in (0, 1):
        result: Value = F.reduce_sum(x, i64(axis), keepdims=True)
    elif order == 2:
        result = F.reduce_l2(x, i64(axis), keepdims=True)
    else:
        result = F.pow(F.reduce_sum(F.pow(x, scalar(order, x)), i64(axis), keepdims=True), scalar(1 / order, x))
    return result


def _matrix_norm(x: Value, row: int, column: int, order: float, flag: int) -> Value:
    """Return the largest or smallest sum of a column (order 1, -1) or a row (infinity). Both axes keep the size 1."""
    if flag == _NUCLEAR or abs(order) == 2:
        raise UnsupportedError("this norm of a matrix needs its singular values, which graphkit does not compute")
    if abs(order) not in (1, math.inf):
        raise UnsupportedError(f"a norm of matrices with ord {order:g}")
    inner, outer = (row, column) if abs(order) == 1 else (column, row)
    sums = F.reduce_sum(x, i64(inner), keepdims=True)
    result: Value = (F.reduce_max if order > 0 else F.reduce_min)(sums, i64(outer), keepdims=True)
    return result


@converter("_npi_eigh", "_npi_eigvalsh")
def symmetric_eigenvalues(call: Call) -> Value | list[Value]:
    """Eigenvalues of symmetric matrices, ascending, and their vectors as columns, which may have the other sign."""
    call.attributes.ignore("UPLO")  # both triangles are equal
    rows, values = linalg.syevd(call.x)
    if call.op == "_npi_eigvalsh":
        result: Value = values
        return result
    rank = rank_of(rows)
    return [values, transpose(rows, *range(rank - 2), rank - 1, rank - 2)]


@converter("_contrib_fft")
def fourier(call: Call) -> Value:
    """The discrete Fourier transform of each row: [..., 2 n], real and imaginary parts by turns."""
    call.attributes.ignore("compute_size")
    x = call.x
    (count,) = static_sizes(x, [rank_of(x) - 1])
    parts = F.dft(F.unsqueeze(x, i64(-1)), None, np.int64(-2))
    result: Value = F.reshape(parts, F.concat(F.shape(x)[:-1], i64(2 * count), axis=0))
    return result


@converter("_contrib_ifft")
def inverse_fourier(call: Call) -> Value:
    """The real part of the inverse transform of _contrib_fft's result, without the division by n."""
    call.attributes.ignore("compute_size")
    x = call.x
    count = static_sizes(x, [rank_of(x) - 1])[0] // 2
    pairs = F.reshape(x, F.concat(F.shape(x)[:-1], i64(count, 2), axis=0))
    found = F.gather(F.dft(pairs, None, np.int64(-2), inverse=True), np.int64(0), axis=-1)
    result: Value = F.mul(found, scalar(float(count), x))
    return result
