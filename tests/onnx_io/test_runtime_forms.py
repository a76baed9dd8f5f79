"""Valid nodes that ONNX Runtime refuses, or gets wrong, are exported in a form that it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


def runs_alike(net: gk.Model, feeds: dict[str, Any], rtol: float = 1e-6) -> Counter[str]:
    """Compare every output with ONNX Runtime's at its highest level of optimisation; return the written model."""
    proto = net.to_onnx()
    theirs = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    ours = evaluate(net.graph, [feeds[name] for name in net.graph.input_names])
    for found, expected in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol)
    return Counter(node.op_type for node in proto.graph.node)


@in_one_item()
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_scattered_halves(dtype: str, reduction: str) -> None:
    x, updates = gk.input("x", [4, 3], dtype), gk.input("u", [2, 3], dtype)
    rows, places = np.array([[1], [1]]), np.array([[0, 1, 0], [0, 1, 3]])
    net = gk.Model({
        "by_row": F.scatter_nd(x, rows, updates, reduction=reduction),
        "by_element": F.scatter_elements(x, places, updates, axis=0, reduction=reduction),
    })  # fmt: skip
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((4, 3)).astype(dtype), "u": random.standard_normal((2, 3)).astype(dtype)}
    assert ("Cast" in runs_alike(net, feeds, 2e-3)) is (dtype == "float16")


def test_scattered_halves_inside_a_loop() -> None:
    x, table = gk.input("x", [2, 3], "float16"), gk.input("t", [4, 3], "float16")
    rows = np.array([[1], [1]])
    last = gk.while_loop(lambda t: F.less(F.reduce_max(t, keepdims=False), np.float16(9)),
                         lambda t: F.scatter_nd(t, rows, x, reduction="add"), table, 4)  # fmt: skip
    feeds = {"x": np.ones((2, 3), np.float16), "t": np.zeros((4, 3), np.float16)}
    runs_alike(gk.Model({"y": last}), feeds)


@in_one_item()
@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "uint64", "float64", "float32", "float16", "int64"])
@pytest.mark.parametrize("indices", ["int32", "int64", "uint8"])
def test_one_hot_of_any_values(dtype: str, indices: str) -> None:
    i, values = gk.input("i", [3], indices), gk.input("v", [2], dtype)
    net = gk.Model({"y": F.one_hot(i, np.array(4, indices), values, axis=0)})
    runs_alike(net, {"i": np.array([2, 0, 9], indices), "v": np.array([0, 1], dtype)})


@in_one_item()
@pytest.mark.parametrize("indices", ["int64", "float32", "float64", "float16"])
@pytest.mark.parametrize("depth", ["int64", "float32", "float64"])
def test_one_hot_of_floats(indices: str, depth: str) -> None:
    i, n = gk.input("i", [3], indices), gk.input("n", [], depth)
    net = gk.Model({"y": F.one_hot(i, n, np.array([0, 1], np.float32))})
    runs_alike(net, {"i": np.array([2, 0, 9], indices), "n": np.array(4, depth)})


def test_no_axis_is_squeezed_where_none_is_named() -> None:
    x = gk.input("x", ["N", 1, 3])
    feeds = {"x": np.ones((1, 1, 3), np.float32)}
    net = gk.Model({"y": F.squeeze(x, np.array([], np.int64))})
    assert net.run(feeds)["y"].shape == (1, 1, 3)
    runs_alike(net, feeds)


def test_a_gradient_of_an_elementwise_einsum_at_one_sample() -> None:
    a, b = gk.input("a", ["N", 3]), gk.input("b", ["N", 3])
    total = F.reduce_sum(F.einsum(a, b, equation="bi,bi->bi"), keepdims=False)
    (slopes,) = gk.gradient([total], [a])
    runs_alike(gk.Model({"g": slopes}), {name: np.ones((1, 3), np.float32) for name in "ab"})


def test_ellipses_of_different_numbers_of_axes() -> None:
    a, b = gk.input("a", ["A", "B", "I", "J"]), gk.input("b", ["B", "J", "K"])
    net = gk.Model({"y": F.einsum(a, b, equation="...ij,...jk->...ik")})
    random = np.random.default_rng(0)
    feeds = {"a": random.random((2, 3, 2, 4), np.float32), "b": random.random((3, 4, 5), np.float32)}
    assert not runs_alike(net, feeds)["Einsum"]


@in_one_item()
@pytest.mark.parametrize(
    "elements", [[1e30, 1e30, 1e-30], [1e-30, 1e-30, 1e30], [0, 2, 3], [0, 0, 3], [0.1] * 150 + [10.0] * 150]
)
def test_slopes_of_products_that_overflow(elements: list[float]) -> None:
    x = gk.input("x", [len(elements)])
    (slopes,) = gk.gradient([F.reduce_prod(x, keepdims=False)], [x])
    net, given = gk.Model({"g": slopes}), np.array(elements, np.float32)
    with np.errstate(over="ignore"):
        expected = np.array([np.prod(np.delete(given.astype(np.float64), i)) for i in range(len(given))], np.float32)
    np.testing.assert_allclose(net.run({"x": given})["g"], expected, rtol=1e-4)
    runs_alike(net, {"x": given}, 1e-4)


def test_statistics_of_a_layer_in_bfloat16() -> None:
    x = gk.input("x", ["N", 4])
    made = F.layer_normalization(x, np.ones(4, np.float32), stash_type=16)
    runs_alike(gk.Model({"y": made[0]}), {"x": np.random.default_rng(0).random((3, 4), np.float32)}, 1e-2)


def test_a_sum_behind_a_product_of_a_third_result() -> None:
    x, w, z = gk.input("x", [4, 6]), gk.input("w", [2, 5]), gk.input("z", [4, 5])
    parts = F.split(x, axis=1, num_outputs=3)
    net = gk.Model({"y": F.sum(F.gemm(parts[2], w), z), "rest": F.sum(parts[0], parts[1], parts[2])})
    random = np.random.default_rng(0)
    feeds = {k: random.standard_normal(v).astype(np.float32) for k, v in (("x", (4, 6)), ("w", (2, 5)), ("z", (4, 5)))}
    assert runs_alike(net, feeds, 1e-5)["Sum"] == 1


def test_shapes_behind_letters_that_broadcast() -> None:
    x, w = gk.input("x", [1, 2, 3]), gk.input("w", [5, 1, 4])
    shape = F.shape(F.einsum(x, w, equation="bij,bjk->bik"))
    net = gk.Model({"y": F.expand(np.float32(1), shape)})
    assert not runs_alike(net, {"x": np.ones((1, 2, 3), np.float32), "w": np.ones((5, 1, 4), np.float32)})["Einsum"]


def test_other_einsums_stay() -> None:
    x, w = gk.input("x", ["N", 3]), gk.input("w", [3, 4])
    net = gk.Model({"y": F.einsum(x, w, equation="ij,jk->ik")})
    assert runs_alike(net, {"x": np.ones((2, 3), np.float32), "w": np.ones((3, 4), np.float32)})["Einsum"] == 1


def test_statistics_in_double() -> None:
    x, scale = gk.input("x", [2, 8], "float64"), gk.input("s", [8], "float64")
    y, mean, deviation = F.layer_normalization(x, scale, stash_type=11)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 8)), "s": np.ones(8)}
    runs_alike(gk.Model({"y": y, "m": mean, "d": deviation}), feeds, 1e-9)


@in_one_item()
@pytest.mark.parametrize("zero", [np.int8(-128), np.uint8(3), None])
def test_quantisation_that_names_the_type_of_its_zero_point(zero: Any) -> None:
    x, w = gk.input("x", ["N", 3]), gk.input("w", [3, 4])
    scale = np.float32(0.05)
    kind = "int8" if zero is None else zero.dtype
    operands = [scale] if zero is None else [scale, zero]
    q = F.dequantize_linear(F.quantize_linear(x, *operands, output_dtype=kind), *operands)
    net = gk.Model(
        {"y": F.mat_mul(q, F.dequantize_linear(F.quantize_linear(w, *operands, output_dtype=kind), *operands))}
    )
    feeds = {"x": np.float32([[0.1, -2, 1]]), "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}
    runs_alike(net, feeds, 1e-5)
