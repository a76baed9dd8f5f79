"""The standard ONNX backend interface."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphkit as gk
from graphkit.checks import backend
from graphkit.errors import InputError, UsageError


def model_proto() -> object:
    x = gk.input("x", ["N", 3])
    return gk.Model({"y": gk.relu(x), "z": x * 2.0}).to_onnx()


X = np.float32([[-1.0, 0.0, 2.0]])


def test_prepare_and_run() -> None:
    prepared = backend.prepare(model_proto())
    outputs = prepared.run([X])
    np.testing.assert_array_equal(outputs[0], np.maximum(X, 0))
    np.testing.assert_array_equal(outputs["z"], X * 2)
    np.testing.assert_array_equal(prepared.run({"x": X}).y, np.maximum(X, 0))
    np.testing.assert_array_equal(prepared.run(X)[0], np.maximum(X, 0))


def test_run_model() -> None:
    np.testing.assert_array_equal(backend.run_model(model_proto(), [X])[1], X * 2)


def test_run_node() -> None:
    node = helper.make_node("Gemm", ["a", "b", ""], ["y"], transB=1)
    a, b = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])
    np.testing.assert_array_equal(backend.run_node(node, [a, b])[0], a @ b.T)
    with pytest.raises(InputError, match="2 inputs, but got 1"):
        backend.run_node(node, [a])


def test_run_node_of_an_older_opset() -> None:
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    assert backend.run_node(node, [X], opset_version=11)[0].shape == (3,)


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("TPU")
    with pytest.raises(UsageError, match=r"^device 'TPU:0' is not supported; known: CPU$"):
        backend.prepare(model_proto(), "TPU:0")


def test_is_compatible() -> None:
    assert backend.is_compatible(model_proto())
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("NoSuchThing", ["x"], ["y"])], "g", [info], [info])
    assert not backend.is_compatible(helper.make_model(graph))


def test_too_many_inputs() -> None:
    with pytest.raises(InputError, match="takes 1: x"):
        backend.prepare(model_proto()).run([X, X])


def test_unsigned_integers_stand_for_the_bits_of_bfloat16() -> None:
    x = gk.input("x", [2], dtype="bfloat16")
    n = gk.input("n", [2], dtype="uint16")
    prepared = backend.prepare(gk.Model({"y": x * 2.0, "m": gk.identity(n)}).to_onnx())
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1 and -2
    y, m = prepared.run([bits, bits])
    np.testing.assert_array_equal(y.astype(np.float32), [2, -4])
    np.testing.assert_array_equal(m, bits)


def test_types_of_a_node_s_inputs() -> None:
    """Lists are sequences of tensors of one or several ranks; dicts are maps. An absent value has no known type."""
    kinds = {
        "tensor": X,
        "text": np.array(["a"], object),
        "alike": [X, X],
        "sizes": [X, X[0]],
        "texts": ["a", "b"],
        "map": {"a": np.float32(1), "b": np.float32(2)},
        "maps": [{1: np.float64(2)}],
    }
    number, text = TensorProto.FLOAT, TensorProto.STRING
    tensor, sequence, mapping = (
        helper.make_tensor_type_proto,
        helper.make_sequence_type_proto,
        helper.make_map_type_proto,
    )
    assert {name: backend._type_of(name, value) for name, value in kinds.items()} == {
        "tensor": tensor(number, [1, 3]),
        "text": tensor(text, [1]),
        "alike": sequence(tensor(number, [1, 3])),
        "sizes": sequence(tensor(number, None)),
        "texts": sequence(tensor(text, [])),
        "map": mapping(text, tensor(number, [])),
        "maps": sequence(mapping(TensorProto.INT64, tensor(TensorProto.DOUBLE, []))),
    }
    for nothing, why in ((None, "empty optional"), ([], "empty sequence"), ([X, np.int64(1)], "several types")):
        with pytest.raises(InputError, match=why):
            backend._type_of("x", nothing)
