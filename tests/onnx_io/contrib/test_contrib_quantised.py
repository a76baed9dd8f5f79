"""ONNX Runtime's quantised operators on import, compared with ONNX Runtime on the same node."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper, numpy_helper

import graphkit as gk
from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel

RNG = np.random.default_rng(0)
U8, I8 = np.uint8, np.int8


def numbers(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def scale(value, *shape):
    return np.asarray(value * RNG.uniform(0.5, 1.5, shape), np.float32)


def model(name, arrays, dynamic, outputs, opset, attributes):
    """One node of com.microsoft; the operands at `dynamic` are inputs, the others initialisers."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(arrays)]
    inputs, initializers = [], []
    for place, (label, array) in enumerate(zip(names, arrays, strict=True)):
        if array is None:
            continue
        if place in dynamic:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            inputs.append(helper.make_tensor_value_info(label, kind, [f"d{place}_{i}" for i in range(array.ndim)]))
        else:
            initializers.append(numpy_helper.from_array(array, label))
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    node = helper.make_node(name, names, [r.name for r in results], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "one", inputs, results, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(name, *arrays, dynamic=(0,), tolerance=0.0, opset_import=21, **attributes):
    made = model(name, arrays, dynamic, 1, opset_import, attributes)
    feeds = {f"x{place}": arrays[place] for place in dynamic}
    (theirs,) = OnnxRuntimeModel(made, threads=1, optimize=False).run(feeds).values()
    net = gk.load(made)
    (ours,) = net.compile().run(feeds).values()
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=tolerance, atol=tolerance)
    return net


@pytest.mark.parametrize("dtype", [U8, I8], ids=lambda d: d.__name__)
def test_elementwise(dtype):
    a, b = (numbers(dtype, 3, 4), scale(0.05), numbers(dtype)), (numbers(dtype, 4), scale(0.05), numbers(dtype))
    y = (scale(0.07), numbers(dtype))
    check("QLinearAdd", *a, *b, *y, dynamic=(0, 3))
    check("QLinearMul", *a, *b, scale(3.0), numbers(dtype), dynamic=(0, 3))
    check("QLinearAdd", *a, *b, y[0], dynamic=(0, 3))
    check("QLinearSigmoid", *a, np.float32(1 / 256), numbers(dtype))
    check("QLinearLeakyRelu", *a, *y, alpha=0.2)
    condition = np.array([[True], [False], [True]])
    check("QLinearWhere", condition, *a, *b, *y, dynamic=(0, 1, 4))
    check("QLinearConcat", *y, *a, numbers(dtype, 3, 2), scale(0.1), numbers(dtype), dynamic=(2, 5), axis=1)


@pytest.mark.parametrize("dtype", [U8, I8], ids=lambda d: d.__name__)
def test_pools_and_means(dtype):
    x = (numbers(dtype, 2, 3, 6, 5), scale(0.05), numbers(dtype))
    last = (np.ascontiguousarray(x[0].transpose(0, 2, 3, 1)), *x[1:])
    y = (scale(0.03), numbers(dtype))
    window = {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1], "strides": [1, 2]}
    check("QLinearAveragePool", *x, *y, **window)
    check("QLinearAveragePool", *last, *y, **window, channels_last=1, count_include_pad=1)
    check("QLinearGlobalAveragePool", *x, *y)
    check("QLinearGlobalAveragePool", *last, *y, channels_last=1)
    check("NhwcMaxPool", last[0], **window)


def test_a_mean_that_onnxruntime_only_declares():
    x, at, zero = numbers(U8, 2, 3, 4), np.float32(0.5), U8(100)
    made = model("QLinearReduceMean", [x, at, zero, at, zero], (0,), 1, 21, {"axes": [-1], "keepdims": 0})
    (found,) = gk.load(made).compile().run({"x0": x}).values()
    np.testing.assert_array_equal(found, np.rint((x.astype(np.float64) - 100).mean(-1)) + 100)


def test_softmax():
    x = (numbers(U8, 2, 3, 5), scale(0.05), numbers(U8))
    check("QLinearSoftmax", *x, np.float32(1 / 256), U8(0), axis=-1, opset=13)
    check("QLinearSoftmax", *x, np.float32(1 / 256), U8(0), axis=1, opset=12)


@pytest.mark.parametrize("weights", [U8, I8], ids=lambda d: d.__name__)
def test_convolutions(weights):
    w = (numbers(weights, 4, 3, 3, 3), scale(0.02, 4), np.zeros(4, weights))
    y = (scale(0.5), numbers(U8), numbers(np.int16, 4).astype(np.int32))
    x = (numbers(U8, 2, 3, 6, 5), scale(0.05), numbers(U8))
    last = (np.ascontiguousarray(x[0].transpose(0, 2, 3, 1)), *x[1:])
    check("QLinearConv", *x, *w, *y, pads=[1, 1, 0, 0])
    check("QLinearConv", *last, *w, *y, pads=[1, 1, 0, 0], channels_last=1)


@pytest.mark.parametrize("weights", [U8, I8], ids=lambda d: d.__name__)
def test_products(weights):
    a = (numbers(U8, 3, 8), scale(0.05), numbers(U8))
    b = (numbers(weights, 5, 8), scale(0.02, 5), np.zeros(5, weights))
    c = numbers(np.int16, 5).astype(np.int32)
    y = (scale(0.6), numbers(U8))
    net = check("QGemm", *a, *b, c, *y, transB=1)
    assert any(n.op.name == "DequantizeLinear" for n in net.graph.nodes)
    check("QGemm", *a, *b, c, transB=1, alpha=0.5, tolerance=1e-6)
    check("QGemm", *a, *b, None, *y, transB=1)
    flat = (numbers(weights, 8, 5), scale(0.02, 5), numbers(weights, 5))
    bias = RNG.standard_normal(5).astype(np.float32)
    # The integers are the same; scale and bias are one operation here, which rounds once.
    check("MatMulIntegerToFloat", a[0], flat[0], a[1], flat[1], a[2], flat[2], bias, tolerance=1e-6)
    check("MatMulIntegerToFloat", a[0], flat[0], a[1], scale(0.1))
    x = RNG.standard_normal((2, 3, 8)).astype(np.float32)
    check("DynamicQuantizeMatMul", x, *flat, bias, tolerance=1e-6)
    check("MatMulInteger16", numbers(np.int16, 3, 8), numbers(np.int16, 8, 5), dynamic=(0, 1))


def test_linear_quantisation():
    x = (RNG.standard_normal((3, 4)) * 9).astype(np.float32)
    check("QuantizeLinear", x, scale(0.1), U8(100))
    check("QuantizeLinear", x, scale(0.1, 3), numbers(np.int16, 3), axis=0)
    check("DequantizeLinear", numbers(I8, 3, 4), scale(0.1, 4), numbers(I8, 4), axis=1)


# ONNX Runtime has no products of 8 bits whose zero points are floats.
@in_one_item()
@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "integers"), (4, "floats"), (8, "none"), (8, "integers")])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
def test_products_of_few_bits(bits, zeros, constant):
    depth, columns, block = 48, 5, 32
    blocks = 2
    b = numbers(U8, columns, blocks, block * bits // 8)
    zero = {
        "none": None,
        "integers": numbers(U8, columns * -(-blocks * bits // 8)),
        "floats": RNG.uniform(0, 9, columns * blocks).astype(np.float32),
    }[zeros]
    a = RNG.standard_normal((3, depth)).astype(np.float32)
    dynamic = (0,) if constant else (0, 1)
    sizes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    check("MatMulNBits", a, b, scale(0.1, columns * blocks), zero, dynamic=dynamic, tolerance=2e-5, **sizes)


def test_weights_that_are_too_few():
    a, b = np.ones((3, 48), np.float32), numbers(U8, 5, 2, 15)
    sizes = {"K": 48, "N": 5, "bits": 4, "block_size": 32}
    with pytest.raises(InvalidModel, match="the weights have 150 bytes, but its sizes need 160"):
        gk.load(model("MatMulNBits", [a, b, scale(0.1, 10)], (0,), 1, 21, sizes))
    with pytest.raises(UnsupportedError, match="3 bits"):
        gk.load(model("MatMulNBits", [a, b, scale(0.1, 10)], (0,), 1, 21, sizes | {"bits": 3}))
    operands = [np.asarray(v) for v in (scale(0.1), U8(0), numbers(U8, 3), scale(0.1))]
    with pytest.raises(InvalidModel, match="do not form triples"):
        gk.load(model("QLinearConcat", operands, (2,), 1, 21, {"axis": 0}))


@pytest.mark.parametrize("zeros", [True, False])
def test_rows_of_few_bits(zeros):
    indices = np.array([[1, 0], [3, 3]])
    data = numbers(U8, 4, 3, 32)  # 64 numbers of 4 bits
    zero = numbers(U8, 4, 3, 1) if zeros else None
    blocks = {"gather_axis": 0, "quantize_axis": 2, "block_size": 32, "bits": 4}
    check("GatherBlockQuantized", data, indices, scale(0.1, 4, 3, 2), zero, dynamic=(1,), **blocks)
    narrow = helper.make_tensor("w", TensorProto.INT4, [4, 32], RNG.integers(-8, 8, 128).tolist())
    table = scale(0.1, 4, 2)
    made = model("GatherBlockQuantized", [data, indices, table], (1,), 1, 21, {"quantize_axis": 1, "block_size": 16})
    made.graph.initializer[0].CopyFrom(narrow)
    made.graph.initializer[0].name = "x0"
    (theirs,) = OnnxRuntimeModel(made, threads=1, optimize=False).run({"x1": indices}).values()
    (ours,) = gk.load(made).compile().run({"x1": indices}).values()
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale for each gate's row"])
def test_an_lstm_of_quantised_weights(each):
    hidden, width = 6, 5
    w, r = numbers(I8, 1, width, 4 * hidden), numbers(I8, 1, hidden, 4 * hidden)
    shape = (1, 4 * hidden) if each else (1,)
    at = (scale(0.01, *shape), np.zeros(shape, I8))
    bias = (RNG.standard_normal((1, 8 * hidden)) * 0.1).astype(np.float32)
    x = RNG.standard_normal((4, 2, width)).astype(np.float32)
    # ONNX Runtime rounds x and the state to 8 bits.
    operands = (x, w, r, bias, None, None, None, None, *at, *at)
    check("DynamicQuantizeLSTM", *operands, tolerance=0.03, hidden_size=hidden)


def test_layers_whose_float_form_is_onnxruntimes_too():
    bias = RNG.standard_normal(24).astype(np.float32)
    x, w, at = numbers(U8, 2, 5, 8), numbers(I8, 8, 24), (np.float32(0.02), np.float32(0.01))
    lengths = np.array([5, 3], np.int32)
    check("QAttention", x, w, bias, *at, lengths, U8(120), I8(0), dynamic=(0, 5), tolerance=1e-5, num_heads=2)
    tokens, segments = np.array([[1, 2, 3], [3, 0, 1]], np.int32), np.array([[0, 1, 0], [1, 1, 0]], np.int32)
    tables = [numbers(U8, 7, 8), numbers(U8, 6, 8), numbers(U8, 2, 8), numbers(U8, 8), numbers(U8, 8)]
    scales, zeros = [np.float32(v) for v in (0.01, 0.02, 0.015, 0.01, 0.02)], [U8(v) for v in (120, 128, 100, 7, 128)]
    arrays = [tokens, segments, *tables, np.ones_like(tokens), *scales, *zeros]
    arrays = [np.asarray(a) for a in arrays]
    made = model("QEmbedLayerNormalization", arrays, (0, 1, 7), 2, 21, {"epsilon": 1e-5})
    feeds = {f"x{place}": arrays[place] for place in (0, 1, 7)}
    theirs = OnnxRuntimeModel(made, threads=1, optimize=False).run(feeds).values()
    for ours, expected in zip(gk.load(made).compile().run(feeds).values(), theirs, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("name", ["QLinearAdd", "QLinearAveragePool", "QLinearConv", "NhwcMaxPool", "MatMulNBits"])
def test_an_attribute_that_nobody_knows_is_refused(name):
    x = numbers(U8, 1, 2, 4, 4)
    at = (scale(0.05), U8(3))
    operands = {
        "QLinearAdd": (x, *at, x, *at, *at),
        "QLinearConv": (x, *at, numbers(U8, 2, 2, 1, 1), *at, *at),
        "NhwcMaxPool": (x,),
        "MatMulNBits": (np.ones((1, 32), np.float32), numbers(U8, 2, 1, 16), np.ones(2, np.float32)),
    }.get(name, (x, *at, *at))
    known = {"K": 32, "N": 2, "bits": 4, "block_size": 32} if name == "MatMulNBits" else {}
    known |= {"kernel_shape": [2, 2]} if "Pool" in name else {}
    arrays = [np.asarray(a) for a in operands]
    gk.load(model(name, arrays, (0,), 1, 21, known))
    with pytest.raises(UnsupportedError, match=rf"{name}.*unknown attributes: .*rounding_of_others"):
        gk.load(model(name, arrays, (0,), 1, 21, {**known, "rounding_of_others": 1}))
