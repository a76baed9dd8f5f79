"""Integers of quantised operators against ONNX Runtime: equal, for drawn scales, zero points, shapes and types."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import helper

from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import registry
from graphkit.ops.internal.quantised import (
    DynamicQuantizeMatMul,
    MatMulIntegerToFloat,
    QGemm,
    QLinearAdd,
    QLinearGlobalAveragePool,
    QLinearMul,
)
from graphkit.ops.xp import numpy_xp

MICROSOFT = "com.microsoft"


def by_onnxruntime(name, arrays, outputs=1, domain="", **attributes):
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    given = {n: a for n, a in zip(names, arrays, strict=True) if n}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()
    ]
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    node = helper.make_node(name, names, [r.name for r in results], domain=domain, **attributes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(helper.make_graph([node], "one", inputs, results), opset_imports=opsets, ir_version=10)
    return list(OnnxRuntimeModel(model, threads=1, optimize=False).run(given).values())


def equal(cls, arrays, outputs=1, domain="", **attributes):
    with np.errstate(all="ignore"):
        ours = cls(**attributes).reference(numpy_xp, *arrays)
    theirs = by_onnxruntime(cls.__name__, arrays, outputs, domain, **attributes)
    for a, b in zip(ours if isinstance(ours, tuple) else (ours,), theirs, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def rng(request):
    return np.random.default_rng([*request.node.name.encode()])


def integers(rng, dtype, *shape):
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max + 1, shape).astype(dtype))


def scales(rng, *shape, low=1e-3, high=0.1):
    return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), shape)), np.float32)


PAIRS = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]
QUANTISED = [np.uint8, np.int8, np.uint16, np.int16]


@in_one_item()
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("dtype", QUANTISED, ids=lambda d: d.__name__)
def test_linear_quantisation(rng, dtype, half):
    x = (rng.standard_normal((3, 5, 7)) * 50).astype(np.float16 if half else np.float32)
    x.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
    quantise, dequantise = registry.get("", "QuantizeLinear"), registry.get("", "DequantizeLinear")
    for axis, block, shape in [
        (1, 0, ()),
        (1, 0, (1,)),
        (1, 0, (5,)),
        (-1, 0, (7,)),
        (1, 2, (3, 3, 7)),
        (-3, 2, (2, 5, 7)),
    ]:
        scale, zero = scales(rng, *shape, high=9.0).astype(x.dtype), integers(rng, dtype, *shape)
        equal(quantise, [x, scale, zero], axis=axis, block_size=block)
        equal(dequantise, [integers(rng, dtype, *x.shape), scale, zero], axis=axis, block_size=block)


def test_dequantised_sums(rng):
    equal(registry.get("", "DequantizeLinear"), [integers(rng, np.int32, 50), scales(rng)])


@in_one_item()
@pytest.mark.parametrize("shift", [0.0, 5.0, -5.0])
def test_dynamic_quantisation(rng, shift):
    dynamic = registry.get("", "DynamicQuantizeLinear")
    for size in (1, 7, 300):
        equal(dynamic, [(rng.standard_normal(size) + shift).astype(np.float32)], 3)
    for special in (
        [0.0, 0.0],
        [],
        [np.nan, 1.0, 2.0],
        [np.inf, 1.0],
        [-np.inf, np.inf, 1.0],
        [1e38, -3e38],
        [1e-42, 0],
    ):
        equal(dynamic, [np.array(special, np.float32)], 3)


@in_one_item()
@pytest.mark.parametrize(("left", "right"), PAIRS, ids=lambda d: d.__name__)
def test_products(rng, left, right):
    for depth, shapes in [(1, ((3,), ())), (64, ((2, 3), ())), (300, ((4,), ())), (7, ((2, 3), (2,)))]:
        a, b = integers(rng, left, *shapes[0], depth), integers(rng, right, *shapes[1], depth, 9)
        a_zero, b_zero = integers(rng, left), integers(rng, right, *(9,) * (b.ndim == 2))
        equal(registry.get("", "MatMulInteger"), [a, b, a_zero, b_zero])
        a_scale, b_scale = scales(rng), scales(rng, *b_zero.shape)
        y = [np.asarray(a_scale * b_scale.mean() * np.sqrt(depth) * 40, np.float32), integers(rng, left)]
        equal(registry.get("", "QLinearMatMul"), [a, a_scale, a_zero, b, b_scale, b_zero, *y])
        bias = rng.standard_normal(9).astype(np.float32)
        equal(MatMulIntegerToFloat, [a, b, a_scale, b_scale, a_zero, b_zero, bias], domain=MICROSOFT)
        if a.ndim == 2 and b.ndim == 2:
            c = integers(rng, np.int16, 9).astype(np.int32)
            first = [a, a_scale, a_zero, b, b_scale, b_zero, c]
            equal(QGemm, [*first, *y], domain=MICROSOFT)
            equal(QGemm, first, domain=MICROSOFT, alpha=0.5)


def test_a_product_quantised_on_the_way(rng):
    a, b = rng.standard_normal((4, 30)).astype(np.float32), integers(rng, np.int8, 30, 5)
    bias = rng.standard_normal(5).astype(np.float32)
    equal(DynamicQuantizeMatMul, [a, b, scales(rng, 5), integers(rng, np.int8, 5), bias], domain=MICROSOFT)


@in_one_item()
@pytest.mark.parametrize(("image", "weights"), PAIRS, ids=lambda d: d.__name__)
def test_convolutions(rng, image, weights):
    for group, channels, filters, kernel in [(1, 3, 4, 3), (2, 4, 6, 3), (8, 8, 8, 3), (1, 5, 7, 1)]:
        x = integers(rng, image, 2, channels, 9, 8)
        w = integers(rng, weights, filters, channels // group, kernel, kernel)
        where = {"group": group, "pads": (1, 0, 1, 2), "strides": (2, 1), "dilations": (1, 2)}
        x_zero, w_zero = integers(rng, image), integers(rng, weights)
        equal(registry.get("", "ConvInteger"), [x, w, x_zero, w_zero], **where)
        x_scale, w_scale = scales(rng), scales(rng, filters)
        y_scale = np.asarray(x_scale * w_scale.mean() * np.sqrt(w[0].size) * 50, np.float32)
        bias = integers(rng, np.int16, filters).astype(np.int32)
        zeros = np.full(filters, w_zero, weights)
        operands = [x, x_scale, x_zero, w, w_scale, zeros, y_scale, integers(rng, image), bias]
        equal(registry.get("", "QLinearConv"), operands, **where)


@in_one_item()
@pytest.mark.parametrize("dtype", [np.uint8, np.int8], ids=lambda d: d.__name__)
@pytest.mark.parametrize("cls", [QLinearAdd, QLinearMul], ids=lambda c: c.__name__)
def test_sums_and_products_of_every_pair_of_bytes(rng, cls, dtype):
    info = np.iinfo(dtype)
    everything = np.arange(info.min, info.max + 1).astype(dtype)
    a, b = (np.ascontiguousarray(v).reshape(-1) for v in np.meshgrid(everything, everything))
    for _ in range(6):
        # Ratios of small integers make ties.
        a_scale = scales(rng)
        of_b, of_y = (np.asarray(a_scale * rng.integers(1, 8) / rng.integers(1, 8), np.float32) for _ in range(2))
        zeros = [integers(rng, dtype) for _ in range(3)]
        equal(cls, [a, a_scale, zeros[0], b, of_b, zeros[1], of_y, zeros[2]], domain=MICROSOFT)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8], ids=lambda d: d.__name__)
def test_means(rng, dtype):
    x = integers(rng, dtype, 30, 7, 3, 4)
    for _ in range(5):
        x_scale = scales(rng)
        y_scale = np.asarray(x_scale * rng.integers(1, 8) / rng.integers(4, 8), np.float32)
        operands = [x, x_scale, integers(rng, dtype), y_scale, integers(rng, dtype)]
        equal(QLinearGlobalAveragePool, operands, domain=MICROSOFT)
