"""gk.linalg: linear algebra on batches of matrices, under the names of BLAS and LAPACK.

The functions and conventions are those of Seeger, Hetzel, Dai, Meissner, Lawrence, "Auto-Differentiating Linear
Algebra" (2017), arXiv:1710.08717, and of MXNet's `linalg`. Matrices are the last two axes of float32 or float64
tensors; the axes before them are a batch, and broadcast. All functions have gradients, and are exported as standard
ONNX operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.graph import Value
from graphkit.ops import F, as_value, constant

__all__ = [
    "cholesky", "cofactor", "det", "extractdiag", "extracttrian", "gelqf", "gemm", "gemm2", "inverse", "makediag",
    "maketrian", "potrf", "potri", "slogdet", "solve", "sumlogdiag", "syevd", "syrk", "trmm", "trsm",
]  # fmt: skip

cofactor = F.cofactor
det = F.det
gelqf = F.gelqf
gemm2 = F.gemm2
inverse = F.inverse
potrf = F.potrf
potri = F.potri
slogdet = F.slogdet
solve = F.solve
sumlogdiag = F.sumlogdiag
syevd = F.syevd
syrk = F.syrk
trmm = F.trmm
trsm = F.trsm


def cholesky(a: Any, *, lower: bool = True, name: str = "") -> Value:
    """Return the Cholesky factor of a positive definite matrix; another name of `potrf`."""
    found: Value = F.potrf(a, lower=lower, name=name)
    return found


def gemm(
    a: Any, b: Any, c: Any, *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0,
    beta: float = 1.0,
) -> Value:  # fmt: skip
    """alpha * op(a) @ op(b) + beta * c. op transposes a if transpose_a is set, and b if transpose_b is set.

    op(a): [..., m, k]; op(b): [..., k, n]; c: [..., m, n].
    """
    product = F.gemm2(a, b, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha)
    total: Value = F.add(product, c if beta == 1.0 else F.mul(c, beta))
    return total


def extractdiag(a: Any, offset: int = 0) -> Value:
    """Return the diagonals [..., k] of a [..., m, n] that are `offset` above the main one (below if it is negative)."""
    x = _matrices(a)
    rows, columns = _static_sides(x)
    count = min(rows - max(-offset, 0), columns - max(offset, 0))
    if count < 1:
        raise TypeMismatch(f"{x.tensor} has no diagonal at offset {offset}")
    step = np.arange(count, dtype=np.int64)
    return _picked(x, (step + max(-offset, 0)) * columns + step + max(offset, 0))


def makediag(a: Any, offset: int = 0) -> Value:
    """Return matrices [..., k + |offset|, k + |offset|] with a [..., k] on the diagonal at `offset`, zero elsewhere."""
    x = as_value(a)
    if x.rank is None or x.rank < 1:
        raise TypeMismatch(f"a diagonal must be a vector or a batch of them, not {x.tensor}")
    count = x.tensor.known_shape[-1]
    if not dims.is_static(count):
        raise UnsupportedError(f"a diagonal needs a known length, not {x.tensor}")
    side = count + abs(offset)
    step = np.arange(count)
    places = np.full((side, side), count)
    places[step + max(-offset, 0), step + max(offset, 0)] = step
    return _placed(x, places)


def extracttrian(a: Any, offset: int = 0, lower: bool = True) -> Value:
    """Return the elements of one triangle of a [..., n, n], row by row: [..., k].

    The lower triangle of offset 0 includes the diagonal. A positive offset adds diagonals above it, a negative one
    removes diagonals. For the upper triangle it is the reverse: a negative offset adds diagonals below the main one, a
    positive one removes diagonals.
    """
    x = _matrices(a)
    rows, columns = _static_sides(x)
    i, j = _triangle(rows, columns, offset, lower)
    if i.size == 0:
        raise TypeMismatch(f"{x.tensor} has no triangle at offset {offset}")
    return _picked(x, i * columns + j)


def maketrian(a: Any, offset: int = 0, lower: bool = True) -> Value:
    """Return square matrices with the elements a [..., k] in one triangle, row by row, zero elsewhere.

    The inverse of `extracttrian`. Raises TypeMismatch if no such triangle has k elements.
    """
    x = as_value(a)
    if x.rank is None or x.rank < 1 or not dims.is_static(x.tensor.known_shape[-1]):
        raise UnsupportedError(f"a triangle needs a known number of elements, not {x.tensor}")
    count = x.tensor.known_shape[-1]
    side = 1
    while _triangle(side, side, offset, lower)[0].size < count:
        side += 1
    i, j = _triangle(side, side, offset, lower)
    if i.size != count:
        raise TypeMismatch(f"{count} elements do not fill a triangle at offset {offset}")
    places = np.full((side, side), count)
    places[i, j] = np.arange(count)
    return _placed(x, places)


def _triangle(rows: int, columns: int, offset: int, lower: bool) -> tuple[np.ndarray, np.ndarray]:
    return np.tril_indices(rows, offset, columns) if lower else np.triu_indices(rows, offset, columns)


def _matrices(a: Any) -> Value:
    x = as_value(a)
    if x.rank is None or x.rank < 2:
        raise TypeMismatch(f"{x.tensor} is not a matrix or a batch of them")
    return x


def _static_sides(x: Value) -> tuple[int, int]:
    rows, columns = x.tensor.known_shape[-2:]
    if not dims.is_static(rows) or not dims.is_static(columns):
        raise UnsupportedError(f"diagonals and triangles need matrices of known size, not {x.tensor}")
    return rows, columns


def _picked(x: Value, places: np.ndarray) -> Value:
    """Return the elements at row-major `places` of each matrix of x: [..., *places.shape]."""
    batch = F.shape(x)[:-2]
    flat = F.reshape(x, F.concat(batch, np.array([-1], np.int64), axis=0))
    found: Value = F.gather(flat, constant(places.astype(np.int64)), axis=-1)
    return found


def _placed(x: Value, places: np.ndarray) -> Value:
    """Return matrices whose element (i, j) is element places[i, j] of the vector; place k of k elements gives 0."""
    padded = F.pad(x, np.array([0, 1], np.int64), None, np.array([-1], np.int64))
    found: Value = F.gather(padded, constant(places.astype(np.int64)), axis=-1)
    return found
