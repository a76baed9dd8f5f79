"""Linear algebra against scipy, numpy, and the equations that define the results."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from cases import each_case
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError, TypeMismatch
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.onnx_io.compare import OnnxRuntimeModel
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


@in_one_item()
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", [1, 5, 32, 33, 100])
@pytest.mark.parametrize("lower", [True, False], ids=["lower", "upper"])
def test_triangular_systems(n: int, lower: bool, dtype: str) -> None:
    """Sizes below, at and above those that are solved in one block. The other triangle must not be read."""
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


@in_one_item()
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
    """The gradient of the determinant of a singular matrix consists of products of the other elements."""
    (ours,) = run(F.cofactor, np.array([[1.0, 2.0], [2.0, 4.0]]))
    np.testing.assert_allclose(ours, [[4.0, -2.0], [-2.0, 1.0]], atol=1e-12)


@in_one_item()
@pytest.mark.parametrize("n", [1, 2, 8, 9])
def test_derivatives_of_determinants(n: int) -> None:
    """The first derivatives are cofactors, also of singular matrices; up to 8 rows, second derivatives exist there."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((2, n, n))
    a[0, 0] = a[0, -1] if 1 < n <= 8 else a[0, 0]
    x = gk.input("x", [2, n, n], dtype="float64")
    first = gk.gradient([F.det(x)], [x])[0]
    weights = rng.standard_normal((2, n, n))
    second = gk.gradient([F.mul(first, weights)], [x], [F.constant(value=np.ones((2, n, n)))], allow_unused=True)[0]
    got = gk.Model({"first": first, "second": second}).compile().run({"x": a})
    step = 1e-4
    for i, j in [(0, 0), (n - 1, 0), (n // 2, n - 1)]:
        moved = np.zeros((n, n))
        moved[i, j] = step
        numeric = (np.linalg.det(a + moved) - np.linalg.det(a - moved)) / (2 * step)
        np.testing.assert_allclose(got["first"][:, i, j], numeric, rtol=1e-6, atol=1e-6)
        above, below = (run(F.cofactor, b)[0] for b in (a + moved, a - moved))
        numeric = ((above - below) * weights).sum(axis=(1, 2)) / (2 * step)
        np.testing.assert_allclose(got["second"][:, i, j], numeric, rtol=1e-6, atol=1e-6)


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


def _exported(function: Any, arrays: list[np.ndarray], symbolic: bool, **attributes: Any) -> Model:
    inputs = []
    for i, a in enumerate(arrays):
        shape: list[Any] = [f"d{i}_{axis}" for axis in range(a.ndim)] if symbolic else list(a.shape)
        inputs.append(gk.input(f"x{i}", shape, dtype=str(a.dtype)))
    results = function(*inputs, **attributes)
    results = results if isinstance(results, tuple) else (results,)
    return Model({f"y{i}": y for i, y in enumerate(results)}, name="exported")


EXPORTED = {
    "potrf": (F.potrf, lambda n, d: [definite(n, d)], {}),
    "potrf-upper": (F.potrf, lambda n, d: [definite(n, d)], {"lower": False}),
    "potri": (F.potri, lambda n, d: [definite(n, d)], {}),
    "trsm": (F.trsm, lambda n, d: [definite(n, d)[0], square(n, d)], {"transpose": True}),
    "trsm-right": (F.trsm, lambda n, d: [definite(n, d), square(n, d)[0]], {"lower": False, "rightside": True}),
    "inverse": (F.inverse, lambda n, d: [square(n, d)], {}),
    "solve": (F.solve, lambda n, d: [square(n, d)[0], square(n + 1, d)[:, :n]], {}),
    "slogdet": (F.slogdet, lambda n, d: [square(n, d)], {}),
    "gelqf": (F.gelqf, lambda n, d: [square(n, d)[:, : (n + 1) // 2]], {}),
    "syevd": (F.syevd, lambda n, d: [definite(n, d)], {}),
}


def square(n: int, dtype: str) -> np.ndarray:
    return np.random.default_rng(n + 7).standard_normal((2, n, n)).astype(dtype)


EXPORTS = list(itertools.product(EXPORTED, (1, 2, 7, 24), TOLERANCES, (False, True), (13, None)))


@each_case(EXPORTS, group=lambda case: case[0], full=lambda case: case[1] in (2, 24) or case[2] != "float64")
@pytest.mark.long
def test_exports(case: tuple[str, int, str, bool, int | None]) -> None:
    """As standard operators, ONNX Runtime computes the same."""
    name, n, dtype, symbolic, opset = case
    function, make, attributes = EXPORTED[name]
    arrays = make(n, dtype)
    net = _exported(function, arrays, symbolic, **attributes)
    proto = net.to_onnx() if opset is None else net.to_onnx(opset=opset)
    assert {opset_import.domain for opset_import in proto.opset_import} <= {"", "ai.onnx"}
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    theirs = OnnxRuntimeModel(proto, threads=1, optimize=False).run(feeds)
    if name == "syevd" and dtype == "float32":  # vectors of neighbouring eigenvalues mix in any algorithm
        rebuilt = np.swapaxes(theirs["y0"], -1, -2) * theirs["y1"][:, None] @ theirs["y0"]
        np.testing.assert_allclose(rebuilt, arrays[0], atol=1e-4)
        theirs["y0"] = net.compile().run(feeds)["y0"]
    for key, ours in net.compile().run(feeds).items():
        # Factors of badly conditioned matrices differ by their rounding.
        np.testing.assert_allclose(theirs[key], ours, rtol=2e-3 if dtype == "float32" else 1e-7, atol=TOLERANCES[dtype])


def test_a_gradient_exports() -> None:
    """The loss of a Gaussian process: half of the log-determinant of a kernel matrix plus a quadratic form."""
    a, y = gk.input("a", [6, 6], dtype="float64"), gk.input("y", [6, 1], dtype="float64")
    factor = F.potrf(a)
    z = F.trsm(factor, y)
    loss = F.reduce_sum(z * z, keepdims=False) * 0.5 + F.sumlogdiag(factor)
    gradients = gk.grad(Model({"loss": loss}), wrt=["a", "y"], with_outputs=True)
    feeds = {"a": definite(6, "float64")[0], "y": square(6, "float64")[0, :, :1]}
    theirs = OnnxRuntimeModel(gradients.to_onnx(), threads=1).run(feeds)
    for key, ours in gradients.compile().run(feeds).items():
        np.testing.assert_allclose(theirs[key], ours, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", [9, 40])
def test_rotations_converge(n: int) -> None:
    """The exported eigenvalues of a matrix with repeated ones and a large spread."""
    rng = np.random.default_rng(n)
    q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    w = np.sort(np.repeat(10.0 ** np.linspace(-6, 3, (n + 2) // 3), 3)[:n])
    a = (q * w) @ q.T
    net = _exported(F.syevd, [a], False)
    found = OnnxRuntimeModel(net.to_onnx(), threads=1).run({"x0": a})
    np.testing.assert_allclose(found["y1"], w, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose((found["y0"].T * found["y1"]) @ found["y0"], a, atol=1e-10)


NAMES_OF_MXNET = """det extractdiag extracttrian gelqf gemm gemm2 inverse makediag maketrian potrf potri slogdet
    sumlogdiag syevd syrk trmm trsm""".split()  # noqa: SIM905


@in_one_item()
@pytest.mark.parametrize("name", NAMES_OF_MXNET)
def test_the_names_that_users_know(name: str) -> None:
    assert callable(getattr(gk.linalg, name))
    assert name in dir(gk.linalg)


def test_gemm_adds_a_third_matrix() -> None:
    a, b, c = square(3, "float64"), square(4, "float64")[:, :3], square(5, "float64")[0, :3, :4]
    (found,) = run(gk.linalg.gemm, a, b, c, transpose_a=True, alpha=2.0, beta=-0.5)
    np.testing.assert_allclose(found, 2 * np.swapaxes(a, 1, 2) @ b - 0.5 * c, rtol=1e-12)


@in_one_item()
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_diagonals_and_triangles(offset: int) -> None:
    a = square(4, "float64")
    diagonal = np.diagonal(a, offset, 1, 2)
    np.testing.assert_array_equal(run(gk.linalg.extractdiag, a, offset=offset)[0], diagonal)
    np.testing.assert_array_equal(
        run(gk.linalg.makediag, diagonal, offset=offset)[0], [np.diag(row, offset) for row in diagonal]
    )
    for lower, indices, cut in ((True, np.tril_indices, np.tril), (False, np.triu_indices, np.triu)):
        i, j = indices(4, offset)
        elements = a[:, i, j]
        np.testing.assert_array_equal(run(gk.linalg.extracttrian, a, offset=offset, lower=lower)[0], elements)
        np.testing.assert_array_equal(
            run(gk.linalg.maketrian, elements, offset=offset, lower=lower)[0], [cut(one, offset) for one in a]
        )


def test_diagonals_of_rectangles_and_what_has_none() -> None:
    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(run(gk.linalg.extractdiag, a, offset=1)[0], [1, 5])
    with pytest.raises(TypeMismatch, match="no diagonal"):
        run(gk.linalg.extractdiag, a, offset=3)
    with pytest.raises(TypeMismatch, match="do not fill"):
        run(gk.linalg.maketrian, np.ones(4))


def test_their_gradients() -> None:
    net = Model(
        {
            "loss": F.reduce_sum(
                gk.linalg.makediag(gk.linalg.extractdiag(gk.input("a", [2, 3, 3]), offset=1), offset=-1)
                * gk.linalg.maketrian(gk.linalg.extracttrian(gk.input("b", [2, 3, 3]), offset=0)),
                keepdims=False,
            )
        }
    )
    gk.check_gradient(net).raise_if_failed()
