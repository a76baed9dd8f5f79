"""ONNX Runtime as a reference, and what counts as equal."""

from __future__ import annotations

import builtins

import ml_dtypes
import numpy as np
import pytest

from graphkit.errors import InputError, InvalidModel, MissingDependency, RuntimeFailure
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel, compare_arrays, compare_outputs
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "string"])
def test_element_types_that_numpy_lacks(dtype):
    numbers = np.array([["a", "b"]], object) if dtype == "string" else np.array([[1.5, -2.0]])
    x = numbers if dtype == "string" else numbers.astype(getattr(ml_dtypes, dtype, dtype))
    y = OnnxRuntimeModel(model(dtype)).run({"x": x})["y"]
    assert y.dtype == x.dtype
    assert (y == x).all()


def test_without_onnxruntime(monkeypatch):
    real = builtins.__import__

    def fake(name, *rest):
        if name == "onnxruntime":
            raise ImportError("no module")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", fake)
    with pytest.raises(MissingDependency, match="pip install onnxruntime"):
        OnnxRuntimeModel(model())


def test_differences():
    expected = np.array([[1.0, 2.0], [0.0, 4.0]], np.float32)
    found = compare_arrays("y", expected, expected + np.float32([[0, 0.5], [0, -8]]), rtol=0.1, atol=0)
    assert not found.passed
    assert (found.elements, found.mismatched, found.classes) == (4, 2, 1)
    assert (found.max_abs, found.mean_abs, found.max_rel) == (8, 8.5 / 4, 2)
    assert found.needed_rtol == 2
    assert found.needed_atol == pytest.approx(7.6)
    assert compare_arrays("y", expected, expected + np.float32([[0, 0.5], [0, -8]]), rtol=0.1, atol=7.7).passed
    assert "FAILED" in str(found)
    assert "2 of 4" in str(found)


def test_special_values():
    special = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32)
    assert compare_arrays("y", special, special).passed
    assert compare_arrays("y", special, special[[1, 1, 2, 3]]).mismatched == 1
    assert compare_arrays("y", special, -special).mismatched == 2
    assert compare_arrays("y", np.zeros((0, 3)), np.zeros((0, 3))).passed


@pytest.mark.parametrize(
    ("expected", "actual", "problem"),
    [
        (np.zeros(2, np.float32), np.zeros(2), "dtype float64, expected float32"),
        (np.zeros(2), np.zeros((2, 1)), r"shape \[2, 1\], expected \[2\]"),
    ],
)
def test_other_shapes_and_types_fail(expected, actual, problem):
    found = compare_arrays("y", expected, actual)
    assert not found.passed
    assert found.problem.replace("[", r"\[").replace("]", r"\]") == problem or found.problem == problem


def test_integers_and_strings_are_compared_exactly():
    assert compare_arrays("y", np.array([1, 2]), np.array([1, 3])).mismatched == 1
    big = np.array([2**62 + 1])
    assert not compare_arrays("y", big, big - 1).passed
    assert compare_arrays("y", np.array(["a"], object), np.array(["a"], object)).passed
    assert not compare_arrays("y", np.array(["a"], object), np.array(["b"], object)).passed


def test_missing_extra_and_sequence_outputs():
    one = np.ones(1, np.float32)
    found = compare_outputs({"a": one, "s": [one, one]}, {"s": [one, 2 * one], "z": one})
    assert [(d.name, d.passed) for d in found] == [("a", False), ("s[0]", True), ("s[1]", False), ("z", False)]
    assert not compare_outputs({"s": [one]}, {"s": []})[0].passed
