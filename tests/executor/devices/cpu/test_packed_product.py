"""Products of few rows with a constant matrix, by our own code, against float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.executor.devices.cpu import native
from graphkit.executor.memory import packing
from graphkit.executor.memory.packing import aligned_bytes

pytestmark = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")
THREADS = (1, 2, 3, 8)


def run(kernel: Any, a: np.ndarray, b: np.ndarray, *others: np.ndarray | None, y: np.ndarray | None = None) -> Any:
    packed = aligned_bytes(kernel.packed_bytes(1))
    kernel.pack(1, b, packed)
    shape = (*a.shape[:-1], b.shape[0] if kernel_is_transposed(a, b) else b.shape[1])
    result = np.full(shape, np.nan, np.float32) if y is None else y
    kernel([a, packed, *others], [result])
    return result


def kernel_is_transposed(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape[-1] != b.shape[0]


@in_one_item("pairs")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(40,), (1, 40), (13, 40), (2, 3, 40), (2, 257), (3, 777), (4, 129), (29, 300), (64, 1100), (1, 2048)],
    ids=str,
)
@pytest.mark.parametrize("columns", [131, 100, 70])
def test_products(isa: str, shape: tuple[int, ...], transposed: bool, columns: int) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(shape).astype(np.float32)
    b = rng.standard_normal((shape[-1], columns)).astype(np.float32)
    bias = rng.standard_normal(columns).astype(np.float32)
    exact = a.astype(np.float64) @ b + bias
    given = np.ascontiguousarray(b.T) if transposed else b
    bits = set()
    for threads in THREADS:
        kernel = native.PackedProduct(a.shape, given.shape, transposed=transposed, bias=True, threads=threads)
        y = run(kernel, a, given, bias)
        np.testing.assert_allclose(y, exact, rtol=1e-5, atol=2e-6 * shape[-1] ** 0.5)
        bits.add(y.tobytes())
    assert len(bits) == 1


@in_one_item()
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "matrix", [(64, 64), (33, 130), (100, 96), (300, 700), (17, 1000), (5, 33), (640, 177)], ids=str
)
def test_the_packed_form_is_that_of_the_library(transposed: bool, matrix: tuple[int, int]) -> None:
    """So a matrix is packed once for all numbers of rows."""
    depth = matrix[0]
    b = np.random.default_rng(5).standard_normal(matrix[::-1] if transposed else matrix).astype(np.float32)
    own = native.PackedProduct((1, depth), b.shape, transposed=transposed)
    library = native.MatMul((64, depth), b.shape, transpose_b=transposed, pack_b=True, threads=1)
    if not own.implementation.startswith("panels"):
        assert own.packed_layout(1) != library.packed_layout(1)
        return
    assert own.packed_layout(1) == library.packed_layout(1)
    forms = []
    for kernel in (own, library):
        forms.append(aligned_bytes(kernel.packed_bytes(1)))
        forms[-1].fill(255)
        kernel.pack(1, b, forms[-1])
    np.testing.assert_array_equal(*forms)


def test_a_matrix_is_packed_once_for_all_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    pack = packing._packed
    monkeypatch.setattr(packing, "_packed", lambda *args: packed.append(args[1]) or pack(*args))
    net = gk.Model({"y": gk.nn.linear(gk.input("x", ["N", 200]), 160, name="one")}, seed=0)
    executor = net.compile(threads=1)
    w, b = (np.asarray(net.params[f"one_{name}"]) for name in ("weight", "bias"))
    for rows in (1, 40, 9000, 3):  # 9000 rows are multiplied by the library
        x = np.random.default_rng(rows).standard_normal((rows, 200)).astype(np.float32)
        np.testing.assert_allclose(executor.run({"x": x})["y"], x @ w.T + b, rtol=1e-4, atol=1e-4)
    if native.isa() == "avx512" and native.onednn_isa().startswith("avx512"):
        assert len(packed) == 1


@in_one_item()
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("kind", "alpha", "beta"), [("", 0, 0), ("relu", 0, 0), ("clip", -0.5, 0.5), ("gelu", 0, 0)])
def test_what_follows(kind: str, alpha: float, beta: float, last: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((5, 64)).astype(np.float32), rng.standard_normal((64, 96)).astype(np.float32) / 8
    bias, residual = rng.standard_normal(96).astype(np.float32), rng.standard_normal((5, 96)).astype(np.float32)
    epilogue = native.Epilogue(kind, alpha, beta, residual=True, residual_last=last)
    expected = np.empty((5, 96), np.float32)
    native.MatMul(a.shape, b.shape, bias=bias.shape, epilogue=epilogue)([a, b, bias, residual], [expected])
    for threads in THREADS:
        kernel = native.PackedProduct(a.shape, b.shape, bias=True, epilogue=epilogue, threads=threads)
        np.testing.assert_allclose(run(kernel, a, b, bias, residual), expected, rtol=1e-5, atol=1e-5)
        assert kernel.inplace == [(3, 0)]
        y = residual.copy()
        np.testing.assert_allclose(run(kernel, a, b, bias, y, y=y), expected, rtol=1e-5, atol=1e-5)


@in_one_item("pairs")
@pytest.mark.parametrize("odd", [False, True], ids=["finite", "infinite"])
@pytest.mark.parametrize(("kind", "slope"), [("", 0), ("relu", 0), ("relu", 0.1)])
@pytest.mark.parametrize("elements", [1, 40, 128, 300])
@pytest.mark.parametrize("columns", [16, 128, 330])
def test_one_row_gives_the_bits_of_a_row_among_others(
    isa: str, columns: int, elements: int, kind: str, slope: float, odd: bool
) -> None:
    """One row is multiplied by several panels of columns at once."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((2, elements)).astype(np.float32)
    b = rng.standard_normal((elements, columns)).astype(np.float32)
    if odd:
        b[elements // 2, columns // 2] = np.inf
    bias, residual = (
        rng.standard_normal(columns).astype(np.float32),
        rng.standard_normal((2, columns)).astype(np.float32),
    )
    epilogue = native.Epilogue(kind, slope, 0, residual=True, residual_last=slope > 0)
    expected = run(
        native.PackedProduct(a.shape, b.shape, bias=True, epilogue=epilogue, threads=1), a, b, bias, residual
    )
    for threads in THREADS:
        for row in range(2):
            one = native.PackedProduct((1, elements), b.shape, bias=True, epilogue=epilogue, threads=threads)
            found = run(one, a[row : row + 1], b, bias, residual[row : row + 1])
            np.testing.assert_array_equal(found[0], expected[row])


@in_one_item()
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(number: float) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((7, 64)).astype(np.float32), rng.standard_normal((64, 64)).astype(np.float32)
    for where in ("a", "b"):
        x, w = a.copy(), b.copy()
        if where == "a":
            x[3, 5] = number
        else:
            w[5, 3] = number
        kernel = native.PackedProduct(x.shape, w.shape, threads=2)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(run(kernel, x, w), x.astype(np.float64) @ w, rtol=1e-4, atol=1e-4)


def test_no_rows() -> None:
    kernel = native.PackedProduct((0, 64), (64, 32), threads=2)
    assert kernel.packed_inputs == []
    y = np.empty((0, 32), np.float32)
    kernel([np.empty((0, 64), np.float32), np.empty((64, 32), np.float32)], [y])


def test_what_is_no_product_with_a_matrix() -> None:
    for a, b in (((3, 5), (4, 6)), ((3, 5), (2, 5, 6)), ((), (5, 6)), ((3, 0), (0, 6))):
        with pytest.raises(native.Unsupported, match="not a product with a matrix"):
            native.PackedProduct(a, b)


@in_one_item()
@pytest.mark.parametrize("shape", [(200,), (1, 200), (2, 8, 200), (2, 9, 200), (0, 200)])
@pytest.mark.parametrize("matrix", [(200, 40), (200, 1), (200, 0)])
def test_products_with_constant_matrices_are_native(shape: tuple[int, ...], matrix: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal(shape, np.float32), rng.standard_normal(matrix, np.float32)
    net = gk.Model({"y": gk.mat_mul(gk.input("a", shape), gk.parameter("b", matrix))}, params={"b": b})
    for deterministic in (False, True):
        executor = net.compile(threads=2, deterministic=deterministic)
        np.testing.assert_allclose(executor.run({"a": a})["y"], a @ b, rtol=1e-4, atol=1e-4)
        assert not executor.plan.fallbacks


@in_one_item()
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("rows", [3, 16, 40, 41])
def test_networks_of_few_rows_use_it(tmp_path: Path, rows: int, threads: int) -> None:
    x = gk.input("x", [rows, 200])
    h = gk.gelu(gk.nn.linear(x, 160, name="one"))
    net = gk.Model({"y": gk.nn.linear(h, 64, name="two") + 1.0}, name="net")
    data = {"x": np.random.default_rng(0).standard_normal((rows, 200)).astype(np.float32)}
    executor = net.compile(threads=threads, seed=0)
    (y,) = executor.run(data).values()
    (expected,) = net.compile(optimize=False, threads=1, seed=0).run(data).values()
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    with gk.profile(tmp_path / "trace.json"):
        executor.run(data)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    products = [e["args"]["implementation"] for e in events if "MatMul" in e["name"] or e["name"] == "Gemm"]
    assert len(products) == 2
    few = 40 if native.PackedProduct((1, 64), (64, 64)).implementation.startswith("panels") else 16
    assert all(name.startswith(("direct", "panels")) for name in products) == (rows <= few or threads > 1)


@pytest.mark.parametrize(("rows", "columns", "own"), [(41, 64, False), (41, 2048, True), (257, 2048, False)])
def test_large_matrices_use_it_for_more_rows(tmp_path: Path, rows: int, columns: int, own: bool) -> None:
    if not native.PackedProduct((1, 64), (64, 64)).implementation.startswith("panels"):
        pytest.skip("the panels of products need AVX-512")
    a, b = np.ones((rows, 512), np.float32), np.ones((512, columns), np.float32)
    net = gk.Model({"y": gk.mat_mul(gk.input("a", a.shape), gk.parameter("b", b.shape))}, params={"b": b})
    executor = net.compile(threads=1)
    with gk.profile(tmp_path / "trace.json"):
        np.testing.assert_array_equal(executor.run({"a": a})["y"], np.full((rows, columns), 512))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (product,) = (e["args"]["implementation"] for e in events if "MatMul" in e["name"])
    assert product.startswith("panels") == own
