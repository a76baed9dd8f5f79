"""Linear algebra against scipy, numpy, and the equations that define the results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import graphkit as gk
from graphkit.errors import GraphkitError, TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate

TOLERANCES = {"float32": 2e-4, "float64": 1e-10}


def run(function: Any, *arrays: np.ndarray, **attributes: Any) -> list[np.ndarray]:
    values = [Value(TensorType(str(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays)]
    results = function(*values, **attributes)
    return evaluate(Graph(values, results if isinstance(results, tuple) else (results,)), arrays)


def definite(n: int, dtype: str, batch: int = 2) -> np.ndarray:
    x = np.random.default_rng(n).standard_normal((batch, n, n))
    return (x @ np.swapaxes(x, 1, 2) / n + np.eye(n)).astype(dtype)


def check(ours: np.ndarray, expected: Any) -> None:
    tolerance = TOLERANCES[str(ours.dtype)]
    np.testing.assert_allclose(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", [1, 5, 32, 33, 100])
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_triangular_systems(n: int, lower: bool, dtype: str) -> None:
    """Sizes below, at and above those that are solved at once; the other triangle holds numbers that nobody reads."""
    a = definite(n, dtype)[0]
    columns = np.random.default_rng(1).standard_normal((n, 3)).astype(dtype)
    for transpose in (False, True):
        expected = scipy.linalg.solve_triangular(a, columns, trans=int(transpose), lower=lower)
        check(run(F.trsm, a, columns, transpose=transpose, lower=lower)[0], expected)
        (right,) = run(F.trsm, a, columns.T.copy(), transpose=not transpose, lower=lower, rightside=True)
        check(right, expected.T)
        factor = np.tril(a) if lower else np.triu(a)
        check(
            run(F.trmm, a, columns, transpose=transpose, lower=lower)[0], (factor.T if transpose else factor) @ columns
        )


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_cholesky(lower: bool, dtype: str) -> None:
    a = definite(40, dtype)
    (factor,) = run(F.potrf, a, lower=lower)
    for one, expected in zip(factor, a, strict=True):
        check(one, scipy.linalg.cholesky(expected, lower=lower))
    check(run(F.potri, factor, lower=lower)[0], np.linalg.inv(a))
    check(2 * run(F.sumlogdiag, factor)[0], np.linalg.slogdet(a)[1])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_factorisations(dtype: str) -> None:
    a = np.random.default_rng(3).standard_normal((2, 4, 7)).astype(dtype)
    q, factor = run(F.gelqf, a)
    check(factor @ q, a)
    check(q @ np.swapaxes(q, 1, 2), np.broadcast_to(np.eye(4), (2, 4, 4)))
    assert (np.diagonal(factor, axis1=1, axis2=2) > 0).all()
    assert not np.triu(factor, 1).any()
    s = definite(6, dtype)
    u, w = run(F.syevd, s)
    check(np.swapaxes(u, 1, 2) * w[:, None] @ u, s)
    check(w, [scipy.linalg.eigvalsh(one) for one in s])


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_inverses_and_determinants(dtype: str) -> None:
    a = np.random.default_rng(4).standard_normal((3, 5, 5)).astype(dtype)
    b = np.random.default_rng(5).standard_normal((5, 2)).astype(dtype)
    check(run(F.inverse, a)[0] @ a, np.broadcast_to(np.eye(5), a.shape))
    check(run(F.solve, a, b)[0], np.linalg.solve(a, np.broadcast_to(b, (3, 5, 2))))
    check(run(F.det, a)[0], np.linalg.det(a))
    for ours, expected in zip(run(F.slogdet, a), np.linalg.slogdet(a), strict=True):
        check(ours, expected)
    check(run(F.cofactor, a)[0], np.linalg.det(a)[:, None, None] * np.swapaxes(np.linalg.inv(a), 1, 2))


def test_cofactors_of_singular_matrices() -> None:
    """Products of the other elements: what a determinant's gradient is where no inverse exists."""
    (ours,) = run(F.cofactor, np.array([[1.0, 2.0], [2.0, 4.0]]))
    np.testing.assert_allclose(ours, [[4.0, -2.0], [-2.0, 1.0]], atol=1e-12)


def test_errors() -> None:
    with pytest.raises(GraphkitError, match="Potrf"):
        run(F.potrf, -np.eye(3))
    with pytest.raises(GraphkitError, match="Inverse"):
        run(F.inverse, np.zeros((2, 2)))
    with pytest.raises(TypeMismatch, match="square"):
        run(F.potrf, np.ones((2, 3)))
    with pytest.raises(TypeMismatch, match="more rows"):
        run(F.gelqf, np.ones((3, 2)))


def test_gradient_of_repeated_eigenvalues() -> None:
    a = gk.input("a", [3, 3], dtype="float64")
    net = gk.Model({"loss": F.reduce_sum(F.syevd(a)[1], keepdims=False)}, name="trace")
    (gradient,) = gk.grad(net, wrt=["a"]).compile()(np.eye(3))
    np.testing.assert_allclose(gradient, np.eye(3), atol=1e-12)
