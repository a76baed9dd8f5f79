"""Experimental operators of ai.onnx before opset 10 that no runtime has any more, by their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from graphkit.errors import InvalidModel, UnsupportedError, UnsupportedOperator
from graphkit.onnx_io.importer import import_model
from graphkit.ops.evaluate import evaluate

GENERATOR = np.random.default_rng(0)


def normal(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


def built(op, *inputs, opset=8, **attrs):
    fixed = [numpy_helper.from_array(np.asarray(a), f"c{i}") for i, a in enumerate(inputs)]
    node = helper.make_node(op, [t.name for t in fixed], ["y"], name="node", **attrs)
    anything = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])]
    graph = helper.make_graph([node], "g", anything, [ValueInfoProto(name="y")], fixed)
    return import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5))


def result(op, *inputs, **attrs):
    found = built(op, *inputs, **attrs)
    arrays = [found.params.get(n, np.zeros(1, np.float32)) for n in found.graph.input_names]
    return evaluate(found.graph, arrays)[0]


@in_one_item()
@pytest.mark.parametrize(
    ("inputs", "attrs", "expected"),
    [
        ((), {"shape": [2, 3], "value": 1.5}, np.full((2, 3), 1.5, np.float32)),
        ((), {"shape": [2], "value": 3.0, "dtype": TensorProto.INT64}, np.array([3, 3])),
        ((normal(2, 3),), {"value": 1.0, "dtype": TensorProto.BOOL}, np.ones((2, 3), bool)),
        ((normal(2, 3),), {"extra_shape": [4], "value": 2.0}, np.full((2, 3, 4), 2, np.float32)),
        ((np.array([3, 2]),), {"input_as_shape": 1}, np.zeros((3, 2), np.float32)),
        ((np.array([3, 0]),), {"input_as_shape": 1, "extra_shape": [2]}, np.zeros((3, 0, 2), np.float32)),
    ],
)
def test_constant_fill(inputs, attrs, expected):
    found = result("ConstantFill", *inputs, **attrs)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_given_tensor_fill():
    values = [0.5, 1.5, 2.5, 3.5]
    np.testing.assert_array_equal(result("GivenTensorFill", values=values, shape=[2, 2]), np.reshape(values, (2, 2)))
    found = result("GivenTensorFill", np.array([2]), values=values, input_as_shape=1, extra_shape=[2, 1])
    np.testing.assert_array_equal(found, np.reshape(values, (2, 2, 1)))


@in_one_item()
@pytest.mark.parametrize(("shape", "axis"), [((5, 6), 1), ((5, 2, 3), 1), ((5, 2, 6), 2)])
def test_fully_connected(shape, axis):
    x, w, b = normal(*shape), normal(4, 6), normal(4)
    expected = x.reshape(*shape[:axis], -1) @ w.T + b
    np.testing.assert_allclose(result("FC", x, w, b, axis=axis), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_step_of_a_gru(dropped):
    # caffe2/operators/gru_unit_op.h
    hidden, gates, sequence, t = (
        normal(1, 3, 4),
        normal(1, 3, 12),
        np.array([5, 2, 3], np.int32),
        np.array([2], np.int32),
    )
    update, output = gates[..., 4:8], gates[..., 8:]
    u = 1 / (1 + np.exp(-update))
    expected = u * hidden + (1 - u) * np.tanh(output)
    expected[:, 1] = 0 if dropped else hidden[:, 1]
    found = result("GRUUnit", hidden, gates, sequence, t, drop_states=dropped)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_what_is_refused():
    with pytest.raises(UnsupportedError, match=r"node 'node' \(ATen\): PyTorch's operator gather"):
        built("ATen", normal(2), operator="gather")
    with pytest.raises(InvalidModel, match="as an operand and as the attribute 'shape'"):
        built("ConstantFill", normal(2), shape=[2])
    with pytest.raises(UnsupportedOperator, match=r"ai\.onnx\.Affine"):
        built("Affine", normal(2), opset=10)
