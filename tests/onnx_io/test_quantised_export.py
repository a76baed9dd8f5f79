"""Quantisation in files of older and newer opsets: the written file has the same results in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from combinations import in_one_item
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.errors import UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F

X = (np.random.default_rng(0).standard_normal((2, 4)) * 5).astype(np.float32)
# The first opset that has the type.
SINCE = {"int8": 13, "uint8": 13, "float8_e4m3fn": 19, "int16": 21, "int4": 21}


def network(dtype, back=None, **attributes) -> gk.Model:
    x, at = gk.input("x", X.shape), np.float32(0.1)
    y = F.dequantize_linear(F.quantize_linear(x, at, output_dtype=dtype, **attributes), at, output_dtype=back)
    return gk.Model({"y": F.cast(y, to="float32")})


@in_one_item("pairs")
@pytest.mark.parametrize("opset", [13, 19, 21, 23, 24])
@pytest.mark.parametrize("back", [None, "float16"])
@pytest.mark.parametrize("dtype", sorted(SINCE))
def test_types_of_results(dtype, back, opset):
    net = network(dtype, back)
    if opset < SINCE[dtype]:
        with pytest.raises(UnsupportedError, match=f"cannot be expressed at opset {opset}"):
            net.to_onnx(opset=opset)
        return
    (theirs,) = OnnxRuntimeModel(net.to_onnx(opset=opset), threads=1).run({"x": X}).values()
    np.testing.assert_array_equal(net.compile().run({"x": X})["y"], theirs)


def test_a_precision_of_its_own_is_new():
    net = network("int8", precision="float16")
    with pytest.raises(UnsupportedError, match="precision"):
        net.to_onnx(opset=22)
    assert "precision" in str(net.to_onnx(opset=23).graph.node)
    assert "precision" not in str(network("int8", precision="float32").to_onnx(opset=22).graph.node)


@in_one_item()
@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_files_of_older_opsets(opset):
    """One scale; from 13 on one for each channel; all without attributes that came later."""
    channels = opset >= 13
    scale = np.array([0.1, 0.2, 0.3, 0.4], np.float32) if channels else np.array(0.1, np.float32)
    zero = np.zeros(scale.shape, np.uint8) + np.uint8(100)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    constants = [onnx.numpy_helper.from_array(scale, "s"), onnx.numpy_helper.from_array(zero, "z")]
    graph = helper.make_graph(nodes, "old", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    net = gk.load(model)
    assert not net.params  # scales are settings, not weights
    (theirs,) = OnnxRuntimeModel(model, threads=1).run({"x": X}).values()
    np.testing.assert_array_equal(net.compile().run({"x": X})["y"], theirs)
