"""Comparison of two models: which inputs and outputs belong together, which engines run, and the limits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import planted
import pytest
from combinations import in_one_item
from onnx import ModelProto, helper, numpy_helper

import graphkit as gk
from graphkit.checks.lower_precision import precision_of
from graphkit.errors import UsageError


def two_layers(names: tuple[str, str] = ("p", "q"), x: str = "x", seed: int = 0) -> gk.Model:
    value = gk.input(x, ["N", 4])
    first = gk.tanh(gk.nn.linear(value, 5, name="fc1"))
    return gk.Model({names[0]: first, names[1]: gk.nn.linear(first, 3, name="fc2")}, seed=seed)


def test_two_models_with_equal_parameters_agree(tmp_path: Path) -> None:
    net = two_layers()
    net.save(tmp_path / "net.onnx")
    net.save(tmp_path / "net.json")
    for against in (net, gk.load(tmp_path / "net.json"), tmp_path / "net.json", tmp_path / "net.onnx", net.to_onnx()):
        report = gk.verify(net, against=against)
        assert report.passed, str(report)
        assert [o.name for o in report.outputs] == ["p", "q"]
        assert report.notes == ()
    assert gk.verify(net, against=tmp_path / "net.onnx").sides == ("graphkit", "ONNX Runtime")
    assert gk.verify(net, against=tmp_path / "net.json").opset is None


@in_one_item()
@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
@pytest.mark.parametrize("against_engine", ["graphkit", "onnxruntime"])
def test_other_parameters_fail_in_every_engine(engine: str, against_engine: str) -> None:
    net, other = two_layers(), two_layers(seed=1)
    engines = {"engine": engine, "against_engine": against_engine}
    assert gk.verify(net, against=two_layers(), **engines).passed
    report = gk.verify(net, against=other, **engines)
    assert report.verdict == "FAILED"
    assert all(o.noise is not None for o in report.outputs)


def test_results_are_those_of_numpy() -> None:
    """The errors are computed from the two models' own outputs."""
    net, other = two_layers(), two_layers(seed=1)
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    report = gk.verify(net, {"x": x}, against=other)
    for output in report.outputs:
        expected = np.abs(net.run({"x": x})[output.name].astype(np.float64) - other.run({"x": x})[output.name]).max()
        assert output.max_abs == pytest.approx(expected)


def test_names_that_differ_are_matched_by_position() -> None:
    report = gk.verify(two_layers(), against=two_layers(("a", "q"), "data"))
    assert report.passed, str(report)
    assert report.notes == ("inputs matched by position: x and data", "outputs matched by position: p and a")
    assert report.as_dict()["notes"] == list(report.notes)


def test_outputs_in_another_order_are_matched_by_name() -> None:
    net = two_layers()
    report = gk.verify(net, against=net.select("q", "p").to_onnx())
    assert report.passed, str(report)
    assert [o.name for o in report.outputs] == ["p", "q"]


def test_outputs_of_one_side_only_are_noted() -> None:
    net = two_layers()
    report = gk.verify(net, against=net.select("q"))
    assert report.passed
    assert report.notes == ("output 'p' exists only in the first model: it is not compared",)
    assert [o.name for o in report.outputs] == ["q"]


def test_nothing_in_common_is_an_error() -> None:
    x = gk.input("x", [4])
    net = gk.Model({"y": gk.relu(x)})
    with pytest.raises(UsageError, match="the outputs cannot be matched by name or position"):
        gk.verify(net, against=gk.Model({"a": gk.relu(x), "b": gk.tanh(x)}))
    with pytest.raises(UsageError, match="the outputs cannot be matched by name or position"):
        gk.verify(net, against=gk.Model({"a": gk.reduce_sum(x, keepdims=False)}))
    with pytest.raises(UsageError, match="the inputs cannot be matched by name or position"):
        gk.verify(net, against=gk.Model({"y": gk.relu(gk.input("a", [4])) + gk.input("b", [4])}))


def test_one_model_in_one_engine_twice() -> None:
    for engine in ("graphkit", "onnxruntime"):
        assert gk.verify(two_layers(), engine=engine, against_engine=engine).passed
    assert gk.verify(two_layers(), engine="onnxruntime").sides == ("ONNX Runtime", "graphkit")


@in_one_item()
@pytest.mark.parametrize("name", ["convnet", "transformer", "lstm"])
def test_limits_come_from_the_lower_precision(name: str) -> None:
    """A float16 export passes against its original, in both directions; a wrong weight fails."""
    proto = planted.model_of(name)
    half, feeds = planted.in_float16(proto), planted.feeds_of(name)
    net, other = gk.load(proto), gk.load(half)
    assert gk.verify(net, feeds, against=half).passed
    assert gk.verify(other, {"x": feeds["x"].astype(np.float16)}, against=proto).passed
    strict = gk.verify(net, feeds, against=half, rtol=1e-5, atol=1e-6)
    assert not strict.passed
    weight = {"convnet": "w2", "transformer": "wd", "lstm": "wg"}[name]
    planted.with_weight(half, weight, 3, 1.0)
    report = gk.verify(net, feeds, against=half)
    assert not report.passed, str(report)
    assert report.notes == ("the precisions differ: the limits are those of float16",)


def quantised(proto: ModelProto, part_of_range: float = 1.0) -> ModelProto:
    """The weights of matrix products and convolutions, rounded to 8 bits, in QDQ form."""
    copy = ModelProto()
    copy.CopyFrom(proto)
    for tensor in list(copy.graph.initializer):
        array = numpy_helper.to_array(tensor)
        if array.dtype != np.float32 or array.ndim < 2:
            continue
        scale = np.float32(np.abs(array).max() / 127 * part_of_range)
        integers = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
        name = tensor.name
        copy.graph.initializer.remove(tensor)
        copy.graph.initializer.extend(
            numpy_helper.from_array(np.asarray(value), f"{name}_{part}")
            for part, value in (("q", integers), ("s", scale), ("z", np.int8(0)))
        )
        copy.graph.node.insert(0, helper.make_node("DequantizeLinear", [f"{name}_{p}" for p in "qsz"], [name]))
    return copy


@pytest.mark.parametrize("name", ["convnet", "transformer"])
def test_quantised_models_are_compared_with_float_ones(name: str) -> None:
    """Rounding to 8 bits passes. If a quarter of the range is cut off, the model fails."""
    proto, feeds = planted.model_of(name), planted.feeds_of(name)
    net = gk.load(proto)
    good = quantised(proto)
    precision = precision_of(gk.load(good).graph)
    assert precision is not None
    assert (precision.name, precision.epsilon) == ("8-bit quantisation", 2.0**-7)
    assert gk.verify(net, feeds, against=good).passed
    assert gk.bisect(net, feeds, source=proto, against=good).passed
    wrong = quantised(proto, 0.25)
    assert not gk.bisect(net, feeds, source=proto, against=wrong).passed
    if name == "transformer":
        assert not gk.verify(net, feeds, against=wrong).passed


def test_sizes_that_only_the_other_model_fixes() -> None:
    weights = gk.constant(np.ones((3, 2), np.float32))
    free, fixed, three = (gk.Model({"y": gk.mat_mul(gk.input("x", [n, 3]), weights)}) for n in ("N", 8, 3))
    for found in (
        gk.verify(free, against=fixed),
        gk.bisect(free, against=fixed),
        gk.diff(free, fixed, run=True).behaviour,
    ):
        assert found.verdict == "PASSED"
    with pytest.raises(UsageError, match=r"no array fits both"):
        gk.verify(fixed, against=three)
    with pytest.raises(UsageError, match=r"input 'x' of .* is float32\[8, 3\]; the array has the shape \[2, 3\]"):
        gk.verify(free, {"x": np.ones((2, 3), np.float32)}, against=fixed)
