"""Native linear algebra against the operators' references, which call LAPACK."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.cpu import native
from graphkit.ops.linalg.factorization import Potrf
from graphkit.ops.linalg.inverse import Cofactor, Det, Inverse, Slogdet, Solve
from graphkit.ops.linalg.triangular import Trsm
from graphkit.ops.xp import numpy_xp

TOLERANCES = {"float32": 2e-3, "float64": 1e-9}
SIZES = [1, 2, 7, 33, 60]


pytestmark = pytest.mark.usefixtures("isa")


def matrices(n, dtype, batch=(3,)):
    """Well conditioned, with pivots that have to be looked for."""
    rng = np.random.default_rng(n)
    q, _ = np.linalg.qr(rng.standard_normal((*batch, n, n)))
    return (q * rng.uniform(0.5, 2.0, n)).astype(dtype)


def definite(n, dtype, batch=(3,)):
    x = matrices(n, "float64", batch)
    return (x @ np.swapaxes(x, -1, -2) + np.eye(n)).astype(dtype)


def close(found, expected):
    tolerance = TOLERANCES[str(found.dtype)]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", SIZES)
def test_elimination(n, dtype):
    a = matrices(n, dtype)
    y = np.empty_like(a)
    native.Elimination("inverse", a.shape, None, dtype, 2)([a], [y])
    close(y, Inverse().reference(numpy_xp, a))
    det, sign, logarithm = (np.full(3, np.nan, dtype) for _ in range(3))
    native.Elimination("det", a.shape, None, dtype, 2)([a], [det])
    close(det, Det().reference(numpy_xp, a))
    kernel = native.Elimination("slogdet", a.shape, None, dtype, 2)
    kernel([a], [sign, logarithm])
    for found, expected in zip((sign, logarithm), Slogdet().reference(numpy_xp, a), strict=True):
        close(found, expected)
    kernel([a], [None, logarithm])
    kernel([a], [sign, None])


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("left", "right"), [((), ()), ((3,), ()), ((), (2, 3)), ((2, 1), (1, 3)), ((3,), (2, 1)), ((0,), ())]
)
def test_batches_broadcast(left, right, dtype):
    a, b = matrices(6, dtype, left), matrices(6, dtype, right)[..., :2].copy()
    expected = Solve().reference(numpy_xp, a, b)
    x = np.full(expected.shape, np.nan, dtype)
    native.Elimination("solve", a.shape, b.shape, dtype, 2)([a, b], [x])
    close(x, expected)


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n, lower, dtype):
    a = definite(n, dtype)
    y = np.full_like(a, np.nan)
    native.Cholesky(a.shape, lower, dtype, 2)([a], [y])
    close(y, Potrf(lower=lower).reference(numpy_xp, a))


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("rightside", [True, False])
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("n", [1, 7, 40])
def test_triangular_systems(n, transpose, rightside, lower, dtype):
    a = definite(n, dtype)
    b = np.random.default_rng(1).standard_normal((2, 1, 4, n) if rightside else (2, 1, n, 4)).astype(dtype)
    attrs = dict(transpose=transpose, rightside=rightside, lower=lower, alpha=-1.5)
    expected = Trsm(**attrs).reference(numpy_xp, a, b)
    x = np.full(expected.shape, np.nan, dtype)
    native.TriangularSystem(a.shape, b.shape, **attrs, dtype=dtype, threads=2)([a, b], [x])
    close(x, expected)


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17])
def test_determinants_equal_numpy(every_isa, n, dtype):
    a = matrices(n, dtype, (37,))
    a[3, :, n // 2] = 0
    a[5, n - 1] = a[5, 0] * 2 if n > 1 else 0
    expected = np.linalg.det(a.astype(np.float64))
    a[9, 0, n - 1], a[11, n // 2, 0] = np.nan, np.nan
    expected[[9, 11]] = np.nan
    bits = set()
    for threads in (1, 2, 3):
        found = np.full(37, 7, dtype)
        native.Elimination("det", a.shape, None, dtype, threads)([a], [found])
        close(found, expected)
        bits.add(found.tobytes())
    assert found[3] == 0
    assert len(bits) == 1


def test_singular_matrices():
    a = np.array([[1.0, 2.0], [2.0, 4.0]])
    results = [np.full((), np.nan), np.full((), np.nan)]
    native.Elimination("det", (2, 2), None, "float64")([a], results[:1])
    assert results[0] == 0
    native.Elimination("slogdet", (2, 2), None, "float64")([a], results)
    assert results[0] == 0
    assert results[1] == -np.inf
    with pytest.raises(native.Error, match="singular"):
        native.Elimination("inverse", (2, 2), None, "float64")([a], [np.empty((2, 2))])
    with pytest.raises(native.Error, match="positive definite"):
        native.Cholesky((2, 2), True, "float64")([-a], [np.empty((2, 2))])
    with pytest.raises(native.Error, match="zero on its diagonal"):
        native.TriangularSystem(
            (2, 2), (2, 1), transpose=False, rightside=False, lower=True, alpha=1.0, dtype="float64"
        )([np.zeros((2, 2)), np.ones((2, 1))], [np.empty((2, 1))])


def test_programs_take_them_for_small_matrices_only():
    kinds = {}
    for n in (8, 200):
        a = gk.input("a", [n, n])
        executor = gk.Model({"y": gk.linalg.trsm(gk.linalg.potrf(a), a)}).compile()
        kinds[n] = {step.kernel for step in executor.plan.steps}
        x = definite(n, "float32", ())
        close(executor.run({"a": x})["y"], np.linalg.cholesky(x.astype("f8")).T.astype("f4"))
    assert kinds == {8: {"native"}, 200: {"interpreted"}}
    with pytest.raises(RuntimeFailure, match=r"^root: Potrf.*: a matrix that is not positive definite$"):
        gk.Model({"y": gk.linalg.potrf(gk.input("a", [2, 2]), name="root")}).compile().run(
            {"a": -np.eye(2, dtype=np.float32)}
        )


@in_one_item("pairs")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", [*SIZES, 130])
@pytest.mark.parametrize("lost", [0, 1, 2], ids=["regular", "one row lost", "two rows lost"])
def test_cofactors(n, dtype, lost):
    """Compared with singular values in float64, also of matrices without an inverse."""
    a = matrices(n, "float64")
    a[:, :, n - min(lost, n) :] = a[:, :, :1] * 0.5 if n > lost else 0.0
    a = np.ascontiguousarray(a[:, np.random.default_rng(n).permutation(n)], dtype)
    results = [np.full_like(a, np.nan) for _ in range(2)]
    for threads, y in zip((1, 3), results, strict=True):
        native.Cofactors(a.shape, dtype, threads)([a], [y])
    assert results[0].tobytes() == results[1].tobytes()
    expected = Cofactor().reference(numpy_xp, a.astype(np.float64))
    # Rounding errors of the elements change the cofactors by so much.
    values = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    scale = max(1.0, np.abs(expected).max(), np.prod(values[:, : max(n - lost, 0)], axis=1).max())
    np.testing.assert_allclose(results[0] / scale, expected / scale, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def test_cofactors_of_special_matrices():
    a = np.zeros((3, 3, 3), np.float32)
    a[1] = np.diag([2, 0, 3])
    a[2] = np.eye(3)
    a[2, 1, 2] = np.nan
    y = np.empty_like(a)
    native.Cofactors(a.shape, "float32", 1)([a], [y])
    np.testing.assert_array_equal(y[0], np.zeros((3, 3)))
    np.testing.assert_array_equal(y[1], np.diag([0, 6, 0]))
    assert np.isnan(y[2]).any()
