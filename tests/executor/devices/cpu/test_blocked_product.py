"""Matrix products by graphkit's own kernel: other types than float32, one row or column, and computed matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.executor.devices.cpu import native

pytestmark = pytest.mark.skipif(not native.has_onednn(), reason="built without oneDNN")
THREADS = (1, 2, 3, 8)
DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")

# Shapes of a and b, neither transposed.
SHAPES = [
    ((5,), (5,)),
    ((1, 1), (1, 1)),
    ((7, 300), (300, 1)),
    ((1, 300), (300, 70)),
    ((1, 300), (300, 1500)),
    ((1, 21), (21, 1025)),
    ((40, 45), (45, 1)),
    ((13, 40), (40, 9)),
    ((8, 64), (64, 24)),
    ((29, 263), (263, 131)),
    ((3, 17), (17, 500)),
    ((70, 600), (600, 50)),
    ((139, 270), (270, 100)),
    ((70, 1), (1, 129)),
    ((9, 2), (2, 35)),
    ((2, 70, 3), (3, 1000)),
    ((2, 5, 4), (2, 4, 5000)),
    ((4, 3, 5), (5, 6)),
    ((4, 3, 5), (4, 5, 1)),
    ((3, 1, 5), (5, 6)),
    ((2, 1, 9, 5), (3, 5, 30)),
    ((5,), (4, 5, 6)),
    ((4, 6, 5), (5,)),
    ((0, 3), (3, 2)),
    ((3, 0), (0, 2)),
    ((3, 4), (4, 0)),
    ((0, 3, 4), (4, 2)),
]


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)  # products and sums wrap around
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def swapped(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2)) if array.ndim > 1 else array


def products(a: np.ndarray, b: np.ndarray, shape: tuple[int, ...], *others: np.ndarray, **options: Any) -> np.ndarray:
    """The result, which has the same bits for any number of threads."""
    found = []
    for threads in THREADS:
        shapes = [v.shape for v in others]
        kernel = native.BlockedMatMul(
            a.shape, b.shape, bias=shapes[0] if shapes else None, dtype=str(a.dtype), threads=threads, **options
        )
        found.append(np.full(shape, 77).astype(a.dtype))
        kernel([a, b, *others], [found[-1]])
    assert len({y.tobytes() for y in found}) == 1
    return found[0]


def close(y: np.ndarray, expected: np.ndarray, depth: int) -> None:
    if y.dtype.kind == "f":
        limit = np.finfo(y.dtype).eps * 4 * max(depth, 1)
        np.testing.assert_allclose(y, expected, rtol=0, atol=limit)
    else:
        np.testing.assert_array_equal(y, expected)


@in_one_item("pairs")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products(isa: str, dtype: str, shapes: Any, transposed: tuple[bool, bool]) -> None:
    a, b = (numbers(shape, dtype, seed) for seed, shape in enumerate(shapes))
    wide = [v.astype(np.longdouble) if v.dtype.kind == "f" else v for v in (a, b)]
    expected = np.matmul(*wide)
    given = [swapped(v) if swap else v for v, swap in zip((a, b), transposed, strict=True)]
    y = products(*given, expected.shape, transpose_a=transposed[0], transpose_b=transposed[1])
    close(y, expected, a.shape[-1])


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bias", [(), (1,), (37,), (21, 1), (1, 37), (21, 37)], ids=str)
@pytest.mark.parametrize("depth", [0, 9, 700])
def test_scaled_products_with_bias(isa: str, dtype: str, bias: tuple[int, ...], depth: int) -> None:
    a, b, c = numbers((21, depth), dtype, 0), numbers((depth, 37), dtype, 1), numbers(bias, dtype, 2)
    expected = 0.5 * (a.astype(np.longdouble) @ b) - 2 * c.astype(np.longdouble)
    y = products(a, b, (21, 37), c, alpha=0.5, beta=-2.0)
    close(y, np.broadcast_to(expected, y.shape), depth + 8)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("columns", [1, 5, 100])
@pytest.mark.parametrize("rows", [1, 3, 30])
def test_values_that_are_not_finite(isa: str, dtype: str, rows: int, columns: int) -> None:
    a, b = numbers((rows, 75), dtype, 0), numbers((75, columns), dtype, 1)
    a[-1, 74], a[0, 3], b[7, -1] = np.inf, np.nan, -np.inf
    a[rows // 2, 7] = 0  # times infinity
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.longdouble) @ b
    close(products(a, b, expected.shape), expected, 75)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_other_types_are_left_to_others(dtype: str) -> None:
    with pytest.raises(native.Unsupported, match="no product of this type"):
        native.BlockedMatMul((2, 3), (3, 2), dtype=dtype)


def test_scaled_integers_are_left_to_others() -> None:
    with pytest.raises(native.Unsupported, match="no product of this type"):
        native.BlockedMatMul((2, 3), (3, 2), dtype="int32", alpha=0.5)
    with pytest.raises(native.Unsupported, match="an activation of this type"):
        native.BlockedMatMul((2, 3), (3, 2), dtype="float64", epilogue=native.Epilogue("relu"))
    with pytest.raises(native.Unsupported, match="more than an activation"):
        native.BlockedMatMul((2, 3), (3, 2), epilogue=native.Epilogue("relu", residual=True))


@in_one_item()
@pytest.mark.parametrize(
    ("shapes", "bias", "message"),
    [
        (((2, 3), (4, 2)), None, "inner dimensions differ"),
        (((2, 2, 3), (3, 3, 2)), None, "do not broadcast"),
        (((), (3,)), None, "no dimensions"),
        (((2, 3), (3, 4)), (3,), "bias does not broadcast"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, bias: Any, message: str) -> None:
    with pytest.raises(native.Error, match=message):
        native.BlockedMatMul(*shapes, bias=bias)


def gemm_model(dtype: str, a: tuple[int, ...], b: np.ndarray, **attributes: Any) -> Any:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = onnx.helper.make_node("Gemm", ["a", "b"], ["y"], **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("a", kind, a)],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(b, "b")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)


@in_one_item()
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint64"])
def test_models_are_not_interpreted(dtype: str) -> None:
    a, b = numbers((5, 7), dtype, 0), numbers((9, 7), dtype, 1)
    executor = gk.load(gemm_model(dtype, a.shape, b, transB=1)).compile()
    close(executor.run({"a": a})["y"], a @ b.T, 7)
    assert "interpreted" not in str(executor.plan)


@in_one_item()
@pytest.mark.parametrize("shapes", [((1, 100), (100, 1)), ((40, 100), (100, 1)), ((80, 3), (3, 90))], ids=str)
@pytest.mark.parametrize("constant", [False, True])
def test_own_kernel_multiplies_one_column_and_few_terms(monkeypatch: Any, shapes: Any, constant: bool) -> None:
    made = []
    factory = native.ProductFactory

    def recorded(**options: Any) -> Any:
        def make(*shapes: Any) -> Any:
            made.append(factory(**options)(*shapes))
            return made[-1]

        return make

    monkeypatch.setattr(native, "ProductFactory", recorded)
    a, w = (numbers(shape, "float32", seed) for seed, shape in enumerate(shapes))
    x = gk.input("x", list(a.shape))
    y = x @ (w if constant else gk.input("w", list(w.shape)))
    result = gk.Model({"y": y}).compile().run({"x": a} if constant else {"x": a, "w": w})["y"]
    close(result, a.astype(np.float64) @ w, a.shape[1])
    assert [type(kernel).__name__ for kernel in made] == ["BlockedMatMul"]


@pytest.mark.parametrize(("rows", "columns", "is_own"), [(1, 256, True), (1, 255, False), (2, 256, False)])
def test_own_kernel_multiplies_one_row_by_a_matrix_in_the_caches(rows: int, columns: int, is_own: bool) -> None:
    options = {"transpose_a": False, "transpose_b": False, "has_bias": False, "alpha": 1.0, "beta": 1.0}
    factory = native.ProductFactory(
        **options, epilogue=None, pack_b=False, vary=False, dtype="float32", deterministic=False, threads=1
    )
    kernel = factory([(rows, 50), (50, columns)], [(rows, columns)])
    assert (type(kernel).__name__ == "BlockedMatMul") == is_own


@in_one_item()
@pytest.mark.parametrize("kind", ["relu", "tanh", "gelu", "clip"])
@pytest.mark.parametrize(
    "shapes", [((9, 40), (40, 70)), ((2, 5, 4), (2, 4, 50)), ((3, 0), (0, 2)), ((0, 3), (3, 2))], ids=str
)
def test_activation_follows_the_bias(isa: str, shapes: Any, kind: str) -> None:
    a, b = (numbers(shape, "float32", seed) for seed, shape in enumerate(shapes))
    c = numbers((b.shape[-1],), "float32", 2)
    if a.size:
        a.flat[0] = np.nan
    plain = products(a, b, np.matmul(a, b).shape, c)
    y = products(a, b, plain.shape, c, epilogue=native.Epilogue(kind, -0.5 if kind == "clip" else 0, 0.5))
    gelu = gk.Model({"y": gk.gelu(gk.input("x", list(plain.shape)))}).compile().run({"x": plain})["y"]
    expected = {"relu": np.maximum(plain, 0), "tanh": np.tanh(plain), "gelu": gelu, "clip": np.clip(plain, -0.5, 0.5)}
    np.testing.assert_allclose(y, expected[kind], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("bias", [None, (512,), (64, 512)], ids=str)
@pytest.mark.parametrize(("depth", "columns"), [(128, 512), (127, 512), (128, 511)])
@pytest.mark.parametrize("transposed", [False, True])
def test_own_kernel_multiplies_two_computed_matrices(
    isa: str, transposed: bool, depth: int, columns: int, bias: tuple[int, ...] | None
) -> None:
    options = {"transpose_a": False, "transpose_b": transposed, "has_bias": bias is not None, "alpha": 1.0, "beta": 1.0}
    factory = native.ProductFactory(
        **options, epilogue=None, pack_b=False, vary=False, dtype="float32", deterministic=False, threads=1
    )
    bias = bias and (*bias[:-1], columns)
    b = (columns, depth) if transposed else (depth, columns)
    kernel = factory([(64, depth), b, *([bias] if bias else [])], [(64, columns)])
    is_own = isa == "avx512" and not transposed and (depth, columns) == (128, 512) and bias != (64, 512)
    assert (type(kernel).__name__ == "BlockedMatMul") == is_own


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("rows", "threads", "deterministic", "residual"),
    [
        (64, 1, False, False),
        (128, 1, False, False),
        (129, 1, False, False),
        (64, 2, False, False),
        (64, 1, True, False),
        (64, 1, False, True),
    ],
)
def test_own_kernel_multiplies_few_rows_on_one_thread(
    isa: str, rows: int, threads: int, deterministic: bool, residual: bool, fused: bool
) -> None:
    options = {"transpose_a": False, "transpose_b": False, "has_bias": True, "alpha": 1.0, "beta": 1.0}
    last = native.Epilogue("relu" if fused else "", residual=residual) if fused or residual else None
    factory = native.ProductFactory(
        **options,
        epilogue=last,
        pack_b=False,
        vary=False,
        dtype="float32",
        deterministic=deterministic,
        threads=threads,
    )
    shapes = [(rows, 128), (128, 512), (512,), *([(rows, 512)] if residual else [])]
    is_own = isa == "avx512" and rows <= 128 and threads == 1 and not deterministic and not residual
    assert (type(factory(shapes, [(rows, 512)])).__name__ == "BlockedMatMul") == is_own


@in_one_item()
@pytest.mark.parametrize(("rows", "kernel"), [(1, "interpreted"), (2, "native")])
def test_numpy_multiplies_one_row_by_a_large_matrix(rows: int, kernel: str) -> None:
    a, b = numbers((rows, 512), "float64", 0), numbers((512, 256), "float64", 1)
    executor = gk.load(gemm_model("float64", a.shape, b)).compile()
    close(executor.run({"a": a})["y"], a @ b, 512)
    assert kernel in str(executor.plan)
