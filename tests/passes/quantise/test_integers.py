"""QDQ form on integers: which operators come out, and that ONNX Runtime's numbers do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.quantise.dynamic import dynamic_products
from graphkit.passes.quantise.integers import integers

RNG = np.random.default_rng(0)
PASSES = (*CLEANUP, integers, dynamic_products, *CLEANUP)


def qdq(x, scale, zero, dtype=np.uint8):
    at = np.float32(scale), np.array(zero, dtype)
    return F.dequantize_linear(F.quantize_linear(x, *at), *at)


def weight(*shape, scale=0.01, axis=0, dtype=np.int8):
    if np.ndim(scale):
        return F.dequantize_linear(_drawn(shape, dtype), np.asarray(scale, np.float32), axis=axis)
    return F.dequantize_linear(_drawn(shape, dtype), np.float32(scale))


def _drawn(shape, dtype):
    info = np.iinfo(dtype)
    return gk.constant(RNG.integers(info.min, info.max + 1, shape).astype(dtype))


def after(net: gk.Model) -> Counter[str]:
    graph = run_passes(net.graph, PASSES)
    return Counter(node.op.name for node in graph.nodes if node.op.name != "Constant")


def check(y, *shape, steps=0, optimize=True, **expected):
    """Check the integer operators of a network, and its results against ONNX Runtime's, within `steps` of 0.05."""
    net = gk.Model({"y": y}, name="quantised")
    found = after(net)
    for name in ("QuantizeLinear", "DequantizeLinear"):
        found.pop(name, None)
    assert found == expected
    x = RNG.standard_normal(shape).astype(np.float32)
    ours = net.compile().run({"x": x})["y"]
    (theirs,) = OnnxRuntimeModel(net.to_onnx(opset=21), threads=1, optimize=optimize).run({"x": x}).values()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=steps * 0.05 + 1e-6)


def image(channels=3):
    return qdq(gk.input("x", ["N", channels, 8, 8]), 0.02, 120)


def test_convolutions_with_bias_and_activation():
    scales = np.geomspace(0.005, 0.02, 4)
    bias = F.dequantize_linear(
        np.array([500, -300, 0, 7], np.int32), (0.02 * scales.astype(np.float32)).astype(np.float32), axis=0
    )
    y = F.conv(image(), weight(4, 3, 3, 3, scale=scales), bias, pads=(1, 1, 1, 1))
    # All that Relu takes away lies below the zero point.
    check(qdq(F.relu(y), 0.05, 0), 2, 3, 8, 8, QLinearConv=1)


@in_one_item()
@pytest.mark.parametrize(("low", "high", "left"), [(0.0, 6.0, ["Max", "Min"]), (-9.0, 1.0, ["Min"]), (None, 99.0, [])])
def test_bounds_behind_a_convolution(low, high, left):
    y = F.clip(F.conv(image(), weight(4, 3, 3, 3)), low, np.float32(high))
    # ONNX Runtime computes such convolutions in floats.
    check(qdq(y, 0.05, 100), 2, 3, 8, 8, steps=1, QLinearConv=1, **dict.fromkeys(left, 1))


def test_bounds_that_are_no_numbers_stay():
    y = F.clip(F.conv(image(), weight(4, 3, 3, 3)), np.float32("nan"), np.float32(1.0))
    assert after(gk.Model({"y": qdq(y, 0.05, 100)}))["Conv"] == 1


@in_one_item("values")
@pytest.mark.parametrize("operator", [F.add, F.mul, F.mat_mul])
@pytest.mark.parametrize(
    ("of_a", "of_y"),
    [(np.inf, 1.0), (np.nan, 1.0), (3e38, 1.0), (0.5, 0.0), (0.5, 1e-45), (0.5, 1e-38), (0.5, np.nan), (9000.0, 1.0),
     (-0.5, 1.0), (0.0, 1.0), (1e-45, 1.0), (0.5, np.inf)],
)  # fmt: skip
def test_scales_whose_quotients_are_no_numbers(operator, of_a, of_y):
    """Results stay those of the floats between, whatever the scales."""
    zero = np.array(120, np.uint8)
    a, b = (gk.input(name, [4, 4], dtype="uint8") for name in "ab")
    total = operator(F.dequantize_linear(a, np.float32(of_a), zero), F.dequantize_linear(b, np.float32(0.5), zero))
    net = gk.Model({"y": F.quantize_linear(total, np.float32(of_y), zero)})
    given = {"a": np.arange(16, dtype=np.uint8).reshape(4, 4) + 112, "b": np.full((4, 4), 121, np.uint8)}
    plain = OnnxRuntimeModel(net.to_onnx(opset=21), threads=1, optimize=False)
    (expected,) = plain.run(given).values()
    np.testing.assert_array_equal(net.compile().run(given)["y"], expected)


@pytest.mark.parametrize(("of_y", "on_integers"), [(2.0**-13, True), (2.0**-14, False)])
def test_sums_whose_steps_are_far_finer_than_their_terms_stay_floats(of_y, on_integers):
    a, b = (gk.input(name, [4], dtype="uint8") for name in "ab")
    zero = np.array(120, np.uint8)
    total = F.add(*(F.dequantize_linear(v, np.float32(0.5), zero) for v in (a, b)))
    found = after(gk.Model({"y": F.quantize_linear(total, np.float32(of_y), zero)}))
    assert (found["QLinearAdd"] == 1) is on_integers


@in_one_item()
@pytest.mark.parametrize("scale", [np.inf, np.nan, 3e38, -1.0, 0.0, 1e-45, 0.5])
@pytest.mark.parametrize("between", ["nothing", "pad", "argmax", "maxpool"])
def test_moves_under_any_scale(between, scale):
    at = np.float32(scale), np.array(120, np.uint8)
    x = F.dequantize_linear(gk.input("x", [1, 1, 4, 4], dtype="uint8"), *at)
    if between == "pad":
        x = F.pad(x, np.array([0, 0, 1, 0, 0, 0, 0, 2]))
    elif between == "maxpool":
        x = F.max_pool(x, kernel_shape=[2, 2])[0]
    y = F.arg_max(x, axis=2) if between == "argmax" else F.quantize_linear(x, *at)
    net = gk.Model({"y": y})
    given = {"x": np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4) * 9 + 60}
    (expected,) = OnnxRuntimeModel(net.to_onnx(opset=21), threads=1, optimize=False).run(given).values()
    np.testing.assert_array_equal(net.compile().run(given)["y"], expected)


def test_a_bias_of_another_scale_stays_a_float():
    bias = F.dequantize_linear(np.array([500, -300, 0, 7], np.int32), np.float32(0.5))
    y = qdq(F.conv(image(), weight(4, 3, 3, 3), bias), 0.05, 128)
    found = after(gk.Model({"y": y}))
    assert found["Conv"] == 1
    assert "QLinearConv" not in found


def test_a_residual_block():
    x = image(4)
    h = qdq(F.conv(x, weight(4, 4, 3, 3), pads=(1, 1, 1, 1)), 0.05, 128)
    y = qdq(F.add(x, h), 0.05, 100)
    y = qdq(F.global_average_pool(y), 0.05, 100)
    y = F.gemm(F.flatten(y), weight(5, 4), transB=True)
    check(qdq(y, 0.05, 128), 2, 4, 8, 8, QLinearConv=1, QLinearAdd=1, QLinearGlobalAveragePool=1, Flatten=1, QGemm=1)


def test_moves_run_on_integers():
    x = qdq(gk.input("x", ["N", 4, 6, 6]), 0.05, 128)
    y = qdq(F.max_pool(x, kernel_shape=(2, 2), strides=(2, 2))[0], 0.05, 128)
    y = qdq(F.transpose(y, perm=(0, 2, 3, 1)), 0.05, 128)
    y = F.concat(y, F.slice(y, np.array([0]), np.array([2]), np.array([3])), axis=3)
    y = qdq(F.reshape(qdq(y, 0.05, 128), np.array([0, -1])), 0.05, 128)
    check(y, 2, 4, 6, 6, MaxPool=1, Transpose=1, Slice=1, Concat=1, Reshape=1)


def test_the_place_of_the_largest_needs_no_floats():
    x = qdq(gk.input("x", ["N", 9]), 0.05, 128)
    net = gk.Model({"y": F.arg_max(x, axis=1)})
    assert after(net) == {"QuantizeLinear": 1, "ArgMax": 1}
    given = RNG.standard_normal((4, 9)).astype(np.float32)
    expected = net.compile(optimize=False).run({"x": given})["y"]
    np.testing.assert_array_equal(net.compile().run({"x": given})["y"], expected)


def test_functions_of_one_tensor_are_tables():
    x = qdq(gk.input("x", ["N", 9]), 0.03, 128)
    swish = qdq(F.mul(x, F.sigmoid(x)), 0.05, 20)
    y = qdq(F.tanh(F.mul(swish, np.float32(0.5))), 0.01, 128)
    check(y, 4, 9, steps=1, TableLookup=2)


def test_a_requantisation_is_a_table_and_none_where_nothing_changes():
    x = qdq(qdq(gk.input("x", ["N", 9]), 0.05, 128), 0.05, 128)
    check(x, 4, 9)
    # ONNX Runtime's optimiser makes one quantisation of two, with a scale of its own.
    check(qdq(x, 0.1, 3), 4, 9, optimize=False, TableLookup=1)


def test_attention_on_integers():
    x = qdq(gk.input("x", ["N", 5, 8]), 0.05, 128)
    q, k, v = (qdq(F.mat_mul(x, weight(8, 8)), 0.05, 128) for _ in range(3))
    scores = qdq(F.mat_mul(q, F.transpose(k, perm=(0, 2, 1))), 0.05, 128)
    weights = qdq(F.softmax(scores), 1 / 256, 0)
    y = qdq(F.mat_mul(weights, v), 0.05, 128)
    check(y, 2, 5, 8, steps=1, QLinearMatMul=5, Transpose=1, Softmax=1)


def test_a_product_whose_result_stays_a_float():
    x = qdq(gk.input("x", ["N", 8]), 0.05, 128)
    check(F.mat_mul(x, weight(8, 4, scale=np.geomspace(0.01, 0.1, 4), axis=1)), 3, 8, MatMulIntegerToFloat=1)


def test_a_value_that_is_read_elsewhere_is_kept():
    h = F.mat_mul(qdq(gk.input("x", ["N", 8]), 0.05, 128), weight(8, 4))
    found = after(gk.Model({"y": qdq(h, 0.05, 128), "h": h}))
    assert "QLinearMatMul" not in found


def test_graphs_that_write_states_are_left_alone():
    x, state = gk.input("x", [3, 8]), gk.parameter("s", [4])
    y = qdq(F.mat_mul(qdq(x, 0.05, 128), weight(8, 4)), 0.05, 128)
    graph = Graph([x, state], [y], [(state, F.reduce_sum(y, np.array([0]), keepdims=False))])
    assert integers(graph) is graph


@in_one_item()
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
def test_dynamic_quantisation(shared):
    q, scale, zero = F.dynamic_quantize_linear(gk.input("x", ["N", 8]))

    def product(width):
        total = F.cast(F.mat_mul_integer(q, _drawn((8, width), np.int8), zero, np.int8(3)), to="float32")
        return F.add(F.mul(total, F.mul(scale, np.float32(0.01))), np.arange(width, dtype=np.float32))

    y = F.add(product(4), product(4)) if shared else product(4)
    kinds = (
        {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 2, "Add": 1} if shared else {"DynamicQuantizeMatMul": 1}
    )
    check(y, 3, 8, **kinds)


def test_stored_weights_stay_small_in_files(tmp_path):
    x = gk.input("x", ["N", 64])
    net = gk.Model({"y": F.mat_mul(x, weight(64, 64, dtype=np.int8))})
    net.save(tmp_path / "net.onnx")
    assert (tmp_path / "net.onnx").stat().st_size < 64 * 64 * 2
