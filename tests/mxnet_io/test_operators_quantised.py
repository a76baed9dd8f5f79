"""Quantised operators. The expected integers are those of MXNet 1.9.1 on the CPU, unless a comment says otherwise."""

import json

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.mxnet_io.importer import import_model
from tests.mxnet_io.operator_cases import case, floats, node, symbol, variable
from tests.mxnet_io.operator_checks import check

X = np.float32([[-1.0, -0.5, 0.02, 0.5, 1.0, 2.0]])
WIDE = np.int32([[0, 1 << 30, -(1 << 30), 1 << 28, -(1 << 20)]])
I8 = np.int8
U8 = np.uint8


def one(*numbers):
    return [np.float32([number]) for number in numbers]


def quantised(x, magnitude, dtype=I8):
    steps, least, most = (127.5, -128, 127) if dtype is I8 else (255.5, 0, 255)
    return np.clip(np.round(x * (steps / magnitude)), least, most).astype(dtype)


CONVERSIONS = [
    case("_contrib_quantize_v2", X, gives=[I8([[-64, -32, 1, 32, 64, 127]]), *one(-2, 2)]),
    case(
        "_contrib_quantize_v2",
        X,
        gives=[I8([[-85, -42, 2, 42, 85, 127]]), *one(-1.5, 1.5)],
        min_calib_range=-1.5,
        max_calib_range=1.0,
    ),
    case("_contrib_quantize_v2", np.abs(X), gives=[U8([[128, 64, 3, 64, 128, 255]]), *one(0.02, 2)], out_type="uint8"),
    case(
        "_contrib_quantize_v2",
        X,
        gives=[U8([[0, 0, 5, 128, 255, 255]]), *one(0.5, 1)],
        out_type="uint8",
        min_calib_range=0.5,
        max_calib_range=1.0,
    ),
    case(
        "_contrib_quantize_v2",
        X,
        gives=[U8([[0, 0, 5, 128, 255, 255]]), *one(0, 1)],
        out_type="auto",
        min_calib_range=0.0,
        max_calib_range=1.0,
    ),
    case(
        "_contrib_quantize_v2",
        X,
        gives=[I8([[-128, -64, 3, 64, 127, 127]]), *one(-1, 1)],
        out_type="auto",
        min_calib_range=-0.1,
        max_calib_range=1.0,
    ),
    case("_contrib_quantize", np.abs(X), *one(0, 2), gives=[U8([[128, 64, 3, 64, 128, 255]]), *one(0, 2)]),
    case(
        "_contrib_quantize",
        X,
        *one(-1, 1.5),
        gives=[I8([[-85, -42, 2, 42, 85, 127]]), *one(-1.5, 1.5)],
        out_type="int8",
    ),
    case("_contrib_dequantize", I8([[-127, 0, 64]]), *one(-1, 2), gives=np.float32([[-127, 0, 64]]) * 2 / 127.5),
    case("_contrib_dequantize", U8([[0, 64, 255]]), *one(0, 2), gives=np.float32([[0, 64, 255]]) * 2 / 255.5),
    case(
        "_contrib_requantize",
        WIDE,
        *one(-4, 4),
        gives=[I8([[0, 127, -128, 42, 0]]), *one(-1.5, 1.5)],
        min_calib_range=-1.0,
        max_calib_range=1.5,
    ),
    case("_contrib_requantize", WIDE, *one(-4, 4), gives=[I8([[0, 127, -127, 32, 0]]), *one(-2, 2)]),
    case(
        "_contrib_requantize",
        WIDE,
        *one(-4, 4),
        gives=[U8([[0, 170, 0, 42, 0]]), *one(0, 3)],
        out_type="auto",
        min_calib_range=0.0,
        max_calib_range=3.0,
    ),
]

NORM = [np.float32(v) for v in ([1, 2], [0.5, 0], [0.1, 0.2], [1, 1])]  # scale, shift, mean and variance
DATA, WEIGHT, BIAS = np.array([[10, 20, 30], [1, 2, 3]]), I8([[1, -2, 3], [4, 5, -6]]), I8([50, -100])
RANGES, BIAS_RANGE = one(-1, 1, -2, 2), one(-0.5, 0.5)
SIGNED, UNSIGNED = 2 / 127**2 * (2**31 - 1), 2 / 127 / 255 * (2**31 - 1)
IMAGE = np.random.default_rng(0).integers(0, 127, (2, 2, 5, 6))
KERNELS = np.random.default_rng(1).integers(-127, 127, (3, 2, 3, 2)).astype(I8)


def convolved(x, w):
    rows, columns = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    y = np.zeros((len(x), len(w), rows, columns), np.int64 if w.dtype.kind == "i" else np.float64)
    for i, j in np.ndindex(w.shape[2:]):
        y += np.einsum("nchw,fc->nfhw", x[..., i : i + rows, j : j + columns], w[..., i, j])
    return y.astype(np.int32) if w.dtype.kind == "i" else y


PRODUCTS = [
    case(
        "_contrib_quantized_fully_connected",
        DATA.astype(I8),
        WEIGHT,
        BIAS,
        *RANGES,
        *BIAS_RANGE,
        num_hidden=2,
        gives=[np.int32([[1653, -3227], [1599, -3191]]), *one(-SIGNED, SIGNED)],
        weights=[1, 2],
    ),
    case(
        "_contrib_quantized_fully_connected",
        DATA.astype(U8),
        WEIGHT,
        BIAS,
        *RANGES,
        *BIAS_RANGE,
        num_hidden=2,
        gives=[np.int32([[3253, -6427], [3199, -6391]]), *one(-UNSIGNED, UNSIGNED)],
    ),
    case(
        "_contrib_quantized_fully_connected",
        DATA.astype(U8),
        WEIGHT,
        *RANGES,
        num_hidden=2,
        no_bias=True,
        gives=[np.int32([[60, -40], [6, -4]]), *one(-UNSIGNED, UNSIGNED)],
    ),
    case(
        "_contrib_quantized_embedding",
        np.float32([1, 0]),
        WEIGHT,
        *one(-1, 1),
        gives=[WEIGHT[[1, 0]], *one(-1, 1)],
        input_dim=2,
        output_dim=3,
    ),
]
# MXNet's CPU kernel writes the range of signed data, and adds the bias of int8 as it is.
CONVOLUTIONS = [
    case(
        "_contrib_quantized_conv",
        IMAGE.astype(U8),
        KERNELS,
        *RANGES,
        kernel=(3, 2),
        num_filter=3,
        no_bias=True,
        gives=[convolved(IMAGE, KERNELS), *one(-UNSIGNED, UNSIGNED)],
    ),
    case(
        "_contrib_quantized_conv",
        IMAGE.astype(U8),
        KERNELS,
        I8([50, -100, 3]),
        *RANGES,
        *BIAS_RANGE,
        kernel=(3, 2),
        num_filter=3,
        gives=[convolved(IMAGE, KERNELS) + np.int32([3193, -6387, 191]).reshape(3, 1, 1), *one(-UNSIGNED, UNSIGNED)],
    ),
]
# ONNX Runtime has no ConvInteger of int8 data.
SIGNED_CONVOLUTION = [
    case(
        "_contrib_quantized_conv",
        IMAGE.astype(I8),
        KERNELS,
        *RANGES,
        kernel=(3, 2),
        num_filter=3,
        no_bias=True,
        gives=[convolved(IMAGE, KERNELS), *one(-SIGNED, SIGNED)],
    ),
]

SMALL = np.array([[10, 20]])
SQUARE = np.arange(16).reshape(1, 1, 4, 4)
OTHERS = [
    case("_contrib_quantized_flatten", SQUARE.astype(I8), *one(-1, 2), gives=[SQUARE.astype(I8).reshape(1, 16),
         *one(-1, 2)]),
    case("_contrib_quantized_act", I8([[-5, 0, 7]]), *one(-1, 2), gives=[I8([[0, 0, 7]]), *one(-1, 2)],
         act_type="relu"),
    case("_contrib_quantized_pooling", SQUARE.astype(U8), *one(-1, 2), gives=[U8([[[[5, 7], [13, 15]]]]), *one(-1, 2)],
         kernel=(2, 2), stride=(2, 2), pool_type="max"),
    case("_contrib_quantized_pooling", SQUARE.astype(I8) * 8, *one(-1, 2), gives=[I8([[[[20, 36], [84, 100]]]]),
         *one(-1, 2)],
         kernel=(2, 2), stride=(2, 2), pool_type="avg"),
    case("_contrib_quantized_pooling", SQUARE.astype(I8), *one(-1, 2), gives=[I8([[[[8]]]]), *one(-1, 2)], kernel=(2,
         2),
         pool_type="avg", global_pool=True),
    case("_contrib_quantized_concat", SMALL.astype(I8), I8([[30, 40]]), *one(-1, 1, -2, 2), gives=[I8([[5, 10, 30,
         40]]), *one(-2, 2)],
         num_args=2, dim=1),
    case("_contrib_quantized_concat", SMALL.astype(I8), U8([[30, 200]]), *one(-1, 0, 0, 2), gives=[I8([[5, 10, 15,
         100]]), *one(-1, 2)],
         num_args=2, dim=1),
    case("_contrib_quantized_elemwise_add", SMALL.astype(I8), I8([[30, 100]]), *RANGES, gives=[I8([[28, 88]]),
         *one(-2.5, 2)],
         min_calib_range=-2.5, max_calib_range=2.0),
    case("_contrib_quantized_elemwise_add", SMALL.astype(U8), U8([[30, 100]]), *RANGES, gives=[U8([[28, 88]]),
         *one(-2.5, 2)],
         min_calib_range=-2.5, max_calib_range=2.0),
    # The products are divided by sqrt(1 + eps) twice, which gives 30.498, and not 30.5005.
    case("_contrib_quantized_batch_norm", I8([[10, 20]]), *NORM, *one(-1, 1), gives=[I8([[30, -6]]), *one(-2, 2)],
         min_calib_range=-2.0, max_calib_range=2.0, fix_gamma=False),
    # uint8 data become int8 first: 3 and 51 of 255.5 steps are 1 and 25 of 127.5 steps.
    case("_contrib_quantized_batch_norm", U8([[3, 51]]), *NORM, *one(0, 8), eps=3.0, gives=[I8([[30, 37]]),
         *one(-2, 2)], min_calib_range=-2.0, max_calib_range=2.0, fix_gamma=False),
]  # fmt: skip


# Fused operators, whose subgraphs compute on real numbers.
DENSE = symbol(
    [variable("x"), variable("w"), variable("b"), node("FullyConnected", "fc", [0, 1, 2], num_hidden=2),
     node("Activation", "relu", [3], act_type="relu")],
    [4],
)  # fmt: skip
CONVOLVED = symbol(
    [variable("x"), variable("w"), node("Convolution", "conv", [0, 1], kernel=(3, 2), num_filter=3, no_bias=True),
     variable("sum"), node("elemwise_add", "added", [2, 3]), node("Activation", "relu", [4], act_type="relu")],
    [5],
)  # fmt: skip
REAL = (DATA / 255.5) @ (WEIGHT * (2 / 127.5)).T + BIAS * (0.5 / 127.5)
# Weights that 8 bits contain exactly, so that MXNet's rounding of weights changes nothing.
EXACT = KERNELS.astype(np.float32)
EXACT[:, 0, 0, 0] = 127
ADDED = np.random.default_rng(2).integers(0, 255, (2, 3, 3, 5)).astype(U8)
NORMED = symbol(
    [*(variable(name) for name in ("x", "w", "gamma", "beta", "mean", "var")),
     node("Convolution", "conv", [0, 1], kernel=(3, 2), num_filter=3, no_bias=True),
     node("BatchNorm", "norm", [6, 2, 3, 4, 5], eps=1.0, fix_gamma=False)],
    [7],
)  # fmt: skip
GAMMA = np.float32([-3, 0, 0.25])
FACTORS = GAMMA.reshape(3, 1, 1, 1) / 2  # the deviation is sqrt(3 + 1)
SHIFTS = (np.float32([1, 2, 3]) - np.float32([4, 5, 6]) * GAMMA / 2).reshape(3, 1, 1)


def rounded(weight):
    """Return a weight rounded to 8 bits for each output channel, of 127.5 steps."""
    steps = 127.5 / np.abs(weight).max((1, 2, 3), keepdims=True).clip(1e-30)
    return (weight * steps).round().clip(-128, 127) / steps


SUM = convolved(IMAGE, rounded(EXACT)) * (1 / 255.5) + ADDED * (400 / 255.5)
FUSED = [
    case(
        "_sg_mkldnn_fully_connected",
        np.float32(DATA / 9),
        np.float32(WEIGHT / 9),
        np.float32(BIAS / 9),
        subgraphs=[DENSE],
        gives=np.maximum(DATA @ WEIGHT.T / 81 + BIAS / 9, 0),
        with_eltwise=True,
    ),
    case(
        "_sg_mkldnn_fully_connected",
        DATA.astype(U8),
        WEIGHT,
        BIAS,
        *one(0, 1, -2, 2),
        *BIAS_RANGE,
        subgraphs=[DENSE],
        gives=[quantised(np.maximum(REAL, 0), 1.5, U8), *one(0, 1.5)],
        quantized=True,
        with_eltwise=True,
        min_calib_range=0.0,
        max_calib_range=1.5,
    ),
    case(
        "_sg_mkldnn_fully_connected",
        DATA.astype(U8),
        WEIGHT,
        BIAS,
        *one(0, 1, -2, 2),
        *BIAS_RANGE,
        subgraphs=[DENSE],
        gives=np.maximum(REAL, 0).astype(np.float32),
        quantized=True,
        with_eltwise=True,
        enable_float_output=True,
        tolerance=5e-3,
    ),
    case(
        "_sg_mkldnn_conv",
        IMAGE.astype(U8),
        EXACT,
        ADDED,
        *one(0, 1, 0, 400),
        subgraphs=[CONVOLVED],
        gives=[quantised(np.maximum(SUM, 0), 600, U8), *one(0, 600)],
        quantized="true",
        with_sum="true",
        with_postsum_act="true",
        min_calib_range=0.0,
        max_calib_range=600.0,
    ),
    # A normalisation scales the weights before they are rounded. A scale of 0 leaves its shift.
    case(
        "_sg_mkldnn_conv",
        IMAGE.astype(U8),
        EXACT,
        *(np.float32(v) for v in (GAMMA, [1, 2, 3], [4, 5, 6], [3, 3, 3])),
        *one(0, 1),
        subgraphs=[NORMED],
        gives=np.float32(convolved(IMAGE, rounded(EXACT * FACTORS)) / 255.5 + SHIFTS),
        quantized="true",
        with_bn="true",
        enable_float_output="true",
    ),
    # A summand of int8 limits the result to 127, because MXNet writes the result into its memory.
    case(
        "_sg_mkldnn_conv",
        IMAGE.astype(U8),
        EXACT,
        (ADDED // 2).astype(I8),
        *one(0, 1, -400, 400),
        subgraphs=[CONVOLVED],
        gives=[
            quantised(
                np.maximum(convolved(IMAGE, rounded(EXACT)) / 255.5 + (ADDED // 2) * (400 / 127.5), 0), 600, U8
            ).clip(0, 127),
            *one(0, 600),
        ],
        quantized="true",
        with_sum="true",
        with_postsum_relu="true",
        min_calib_range=0.0,
        max_calib_range=600.0,
    ),
]

# The products of MXNet 1.9.1; its int8 result wraps around where it is clipped here, at -128.
A, B = I8([[-118, 18, -13], [-126, 11, 70]]), I8([[62, 122, 7], [23, 119, -46]])
MULTIPLIED = [
    case("_contrib_quantized_elemwise_mul", A, B, *one(-1, 2, -3, 1), gives=[
        np.int32([[-7316, 2196, -91], [-2898, 1309, -3220]]), *one(-798865.5, 798865.5)]),
    case("_contrib_quantized_elemwise_mul", A, B, *one(-1, 2, -3, 1), min_calib_range=-1.0, max_calib_range=2.0,
         gives=[I8([[-128, 51, -2], [-68, 30, -75]]), *one(-1, 2)]),
    case("_contrib_quantized_elemwise_mul", A, B, *one(-1, 2, -3, 1), enable_float_output=True, gives=np.float32(
        [[-2.70025, 0.81052, -0.03359], [-1.06962, 0.48314, -1.18847]])),
]  # fmt: skip
LINE = np.linspace(-1.3, 2.1, 12, dtype=np.float32).reshape(2, 3, 2)
SHIFTED = [
    case("_contrib_quantize_asym", LINE, gives=[
        U8([0, 23, 46, 70, 93, 116, 139, 162, 185, 209, 232, 255]).reshape(2, 3, 2), *one(75, 97.5)]),
    case("_contrib_quantize_asym", LINE, min_calib_range=0.2, max_calib_range=1.0, gives=[
        U8([0, 0, 0, 0, 0, 14, 113, 212, 255, 255, 255, 255]).reshape(2, 3, 2), *one(318.75, -63.75)]),
]  # fmt: skip

# Self-attention of 2 heads with one feature each, [time, batch, head * (query, key, value)].
PACKED, WEIGHTS = I8([[[10, 20, -30, 40, 50, 60]], [[-70, 80, 90, 100, -110, 120]]]), U8([[[0, 255], [64, 128]]] * 2)
HEADS = PACKED.reshape(2, 2, 3).transpose(1, 2, 0)[..., None] * (3 / 127.5)  # [head, part, time, 1]
SCORED = HEADS[:, 0] @ HEADS[:, 1].swapaxes(1, 2)
MIXED = (WEIGHTS / 255.5 @ HEADS[:, 2]).transpose(1, 0, 2).reshape(2, 1, 2)
ATTENTION = [
    case("_sg_mkldnn_selfatt_qk", PACKED, *one(-3, 3), gives=SCORED, heads=2, quantized=True, enable_float_output=True),
    case("_sg_mkldnn_selfatt_qk", PACKED, *one(-3, 3), gives=[quantised(SCORED, 6), *one(-6, 6)], heads=2,
         quantized=True, min_calib_range=-6.0, max_calib_range=5.0),
    case("_sg_onednn_selfatt_valatt", PACKED, WEIGHTS, *one(-3, 3, 0, 1), gives=MIXED, heads=2, quantized=True,
         enable_float_output=True),
    case("_sg_mkldnn_selfatt_valatt", np.float32(PACKED), np.float32(WEIGHTS), gives=MIXED * (127.5 / 3) * 255.5,
         heads=2, quantized=False),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("cases", [CONVERSIONS, PRODUCTS, CONVOLUTIONS, OTHERS, FUSED, MULTIPLIED, SHIFTED, ATTENTION])
def test_values(cases, tmp_path):
    check(cases, tmp_path)


def test_convolution_of_signed_data(tmp_path):
    check(SIGNED_CONVOLUTION, tmp_path, exported=False)


def test_a_sum_without_calibration_is_int32(tmp_path):
    item = case("_contrib_quantized_elemwise_add", SMALL.astype(I8), I8([[30, 40]]), *RANGES, gives=[
        np.float64([[70, 100]]) / 127.5 / 3 * (2**31 - 1), *one(-3, 3)])  # fmt: skip
    item.gives[0] = np.round(np.float64([[70, 100]]) / 127.5 / 3 * (2**31 - 1)).astype(np.int32)
    item.tolerance = 1e-6
    check([item], tmp_path)


def test_a_quantised_network_is_near_the_real_one(tmp_path):
    """Quantise, multiply, requantise and dequantise as MXNet's quantize_model arranges it."""
    x, w, b = floats(5, 8), floats(4, 8, seed=1), floats(4, seed=2)
    params = {"w": quantised(w, np.abs(w).max()), "b": quantised(b, np.abs(b).max())}
    for name, array in (("w", w), ("b", b)):
        params |= {f"{name}_min": -np.abs(array).max()[None], f"{name}_max": np.abs(array).max()[None]}
    names = ["w", "b", "w_min", "w_max", "b_min", "b_max"]
    kinds = [np.int8, np.int8, *[np.float32] * 4]
    nodes = [variable("data"), *(variable(n, k) for n, k in zip(names, kinds, strict=True))]
    nodes += [
        node("_contrib_quantize_v2", "q", [0], out_type="auto", min_calib_range=-3.0, max_calib_range=3.0),
        node("_contrib_quantized_fully_connected", "fc", [7, 1, 2, (7, 1), (7, 2), 3, 4, 5, 6], num_hidden=4),
        node("_contrib_requantize", "r", [8, (8, 1), (8, 2)], min_calib_range=-8.0, max_calib_range=8.0),
        node("_contrib_dequantize", "d", [9, (9, 1), (9, 2)]),
    ]
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(symbol(nodes, [10])))
    found = import_model(path, params=params)
    (y,) = gk.Model.from_graph(found.graph, found.params).run({"data": x}).values()
    np.testing.assert_allclose(y, x @ w.T + b, atol=0.12)


def test_input_shape_of_a_quantised_convolution(tmp_path):
    """The shape of the data follows from the weight of the fused convolution that reads it, after its quantisation."""
    body = symbol([variable("x"), variable("w"), node("Convolution", "conv", [0, 1], kernel=(3, 2), num_filter=3,
                                                      no_bias=True, num_group=2)], [2])  # fmt: skip
    nodes = [
        variable("data"),
        node("_contrib_quantize_v2", "q", [0], min_calib_range=0.0, max_calib_range=1.0, out_type="auto"),
        variable("w"),
        node(
            "_sg_mkldnn_conv",
            "fused",
            [1, 2, (1, 1), (1, 2)],
            [body],
            quantized="true",
            min_calib_range=-9.0,
            max_calib_range=9.0,
        ),
    ]
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(symbol(nodes, [3])))
    graph = import_model(path, params={"w": floats(4, 2, 3, 2)}).graph
    assert str(graph.inputs[0].tensor) == "float32[N, 4, H, W]"
