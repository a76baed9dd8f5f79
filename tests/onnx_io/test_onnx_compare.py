"""ONNX Runtime as a reference, and the definition of equality."""

from __future__ import annotations

import builtins

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, InvalidModel, MissingDependency, RuntimeFailure
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.onnx_io.exporter import export
from graphkit.ops import F


def model(dtype="float32"):
    x = Value(TensorType(dtype, ["N", 2]), "x")
    return export(Graph([x], [F.identity(x)], output_names=["y"]), {})


def test_running_and_its_errors(tmp_path):
    runtime = OnnxRuntimeModel(model(), threads=1)
    assert (runtime.inputs, runtime.outputs) == (("x",), ("y",))
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(runtime.run({"x": x})["y"], x)
    with pytest.raises(InputError, match="no input 'xs'; did you mean 'x'"):
        runtime.run({"xs": x})
    with pytest.raises(RuntimeFailure, match="fails"):
        runtime.run({"x": x.astype(np.int32)})
    with pytest.raises(InvalidModel, match="refuses the model"):
        OnnxRuntimeModel(tmp_path / "none.onnx")
    with pytest.raises(InvalidModel, match="refuses the model"):
        OnnxRuntimeModel(b"nonsense")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_may_be_listed_twice(dtype):
    proto = model(dtype)
    proto.graph.output.append(proto.graph.output[0])
    runtime = OnnxRuntimeModel(proto)
    assert runtime.outputs == ("y", "y_1")
    x = np.ones((3, 2), getattr(ml_dtypes, dtype, dtype))
    for y in runtime.run({"x": x}).values():
        np.testing.assert_array_equal(y, x)
    assert len(gk.verify(gk.load(proto), against=proto).outputs) == 2


@in_one_item()
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "string"])
def test_element_types_that_numpy_lacks(dtype):
    numbers = np.array([["a", "b"]], object) if dtype == "string" else np.array([[1.5, -2.0]])
    x = numbers if dtype == "string" else numbers.astype(getattr(ml_dtypes, dtype, dtype))
    y = OnnxRuntimeModel(model(dtype)).run({"x": x})["y"]
    assert y.dtype == x.dtype
    assert (y == x).all()


def test_a_bound_call():
    x = np.ones((3, 2), np.float32)
    (y,) = OnnxRuntimeModel(model(), threads=1).bound({"x": x})()
    np.testing.assert_array_equal(y, x)
    with pytest.raises(InputError, match="numpy's own element types"):
        OnnxRuntimeModel(model("bfloat16")).bound({"x": x.astype(ml_dtypes.bfloat16)})


def test_without_onnxruntime(monkeypatch):
    real = builtins.__import__

    def fake(name, *rest):
        if name == "onnxruntime":
            raise ImportError("no module")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(MissingDependency, match="pip install onnxruntime"):
        OnnxRuntimeModel(model())
