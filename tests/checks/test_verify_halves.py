"""gk.verify of files of gk.reduce_precision: limits of float16, planted faults, and files of bfloat16."""

from __future__ import annotations

import numpy as np
import onnx
import planted
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import cli
from graphkit.checks.bisect import bisect
from graphkit.errors import InvalidModel
from graphkit.ops import F

FAULTS = {"convnet": ("w2", 0.3), "transformer": ("wd", 0.3)}
NOTE = "the model computes in float16: the limits are those of float16"


def half_of(name, precision="fp16"):
    return gk.reduce_precision(gk.load(planted.model_of(name)), precision, data=planted.feeds_of(name)["x"]).message


@in_one_item()
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("engine", ["graphkit", "onnxruntime"])
def test_files_of_float16_pass(name, engine):
    half, feeds = half_of(name), planted.feeds_of(name)
    assert half.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    report = gk.verify(gk.load(half), feeds, source=half, engine=engine)
    assert report.passed, str(report)
    # The limits of float32 are too narrow, so the test would fail with them.
    strict = gk.verify(gk.load(half), feeds, source=half, engine=engine, rtol=1e-4, atol=1e-5)
    assert not strict.passed
    assert report.notes == (NOTE,)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_weight_of_a_file_of_float16_is_found(name):
    half, feeds = half_of(name), planted.feeds_of(name)
    net = gk.load(half)
    weight, change = FAULTS[name]
    found = next(t.name for t in half.graph.initializer if t.name.startswith(weight))
    planted.with_weight(half, found, 3, change)
    report = gk.verify(net, feeds, source=half)
    assert not report.passed, str(report)
    assert NOTE in report.notes


def test_a_wrong_kernel_is_found(monkeypatch):
    half, feeds = half_of("transformer"), planted.feeds_of("transformer")
    assert gk.verify(gk.load(half), feeds, source=half).passed
    planted.with_wrong_kernel(monkeypatch, "Softmax", axis=0)
    assert not gk.verify(gk.load(half), feeds, source=half).passed


def test_files_of_float32_keep_their_limits():
    proto, feeds = planted.model_of("convnet"), planted.feeds_of("convnet")
    net = gk.load(proto)
    planted.with_weight(proto, "w2", 3, 2e-3)
    report = gk.verify(net, feeds, source=proto)
    assert not report.passed
    assert report.notes == ()


def test_outputs_of_float16_keep_their_limits():
    half = planted.in_float16(planted.model_of("convnet"))
    feeds = {"x": planted.feeds_of("convnet")["x"].astype(np.float16)}
    net = gk.load(half)
    assert gk.verify(net, feeds, source=half).notes == ()
    planted.with_weight(half, "w2", 3, 1.0)
    report = gk.verify(net, feeds, source=half)
    assert not report.passed
    assert report.notes == ()


@pytest.mark.parametrize("name", FAULTS)
def test_files_of_bfloat16_can_be_compared_with_their_original(name, tmp_path, capsys):
    proto, half, feeds = planted.model_of(name), half_of(name, "bf16"), planted.feeds_of(name)
    net = gk.load(half)
    with pytest.raises(InvalidModel, match=r"no kernels for bfloat16 on CPUs.*--against FLOAT32.onnx"):
        gk.verify(net, feeds, source=half)
    assert gk.verify(net, feeds, against=proto).passed
    onnx.save(half, tmp_path / "half.onnx")
    onnx.save(proto, tmp_path / "net.onnx")
    assert cli.invoke(["verify", str(tmp_path / "half.onnx")]) == 4
    assert "--against" in capsys.readouterr().err
    assert cli.invoke(["verify", str(tmp_path / "half.onnx"), "--against", str(tmp_path / "net.onnx")]) == 0
    planted.with_weight(half, next(t.name for t in half.graph.initializer if t.name.startswith(FAULTS[name][0])), 3, 1)
    assert not gk.verify(gk.load(half), feeds, against=proto).passed


def with_a_half_beside(change=0.0, half=True):
    """Return a model whose output `y` is float32 throughout. Its output `k` depends on a node in float16."""
    x, k = gk.input("x", ["N", 16]), gk.input("k", [3])
    y = gk.nn.linear(gk.tanh(gk.nn.linear(x, 16, name="a")), 4, name="b")
    net = gk.Model({"y": y, "k": F.cast(F.cast(k, to="float16"), to="float32") if half else F.abs(k)}, seed=0)
    net.params["b_weight"] = np.array(net.params["b_weight"]) * np.float32(1 + change)
    return net


def test_float16_beside_an_output_does_not_widen_its_limits():
    report = gk.verify(with_a_half_beside(), against=with_a_half_beside(1e-3))
    assert [output.passed for output in report.outputs] == [False, True]
    assert report.notes == (f"k: {NOTE}",)
    assert gk.verify(with_a_half_beside(), against=with_a_half_beside()).passed


def test_bisect_finds_a_node_in_float32_beside_float16():
    result = bisect(with_a_half_beside(), against=with_a_half_beside(1e-3))
    assert not result.passed
    assert result.found is not None
    assert result.found.node == "b"


def test_lower_precision_beside_an_output_does_not_widen_its_limits():
    feeds = {"x": np.ones((2, 16), np.float32), "k": np.array([0.1, 0.2, 0.3], np.float32)}
    for first, second in ((True, False), (False, True)):
        report = gk.verify(with_a_half_beside(half=first), feeds, against=with_a_half_beside(1e-3, half=second))
        assert [output.passed for output in report.outputs] == [False, True]
        assert report.notes == ("k: the precisions differ: the limits are those of float16",)


def test_float16_within_a_subgraph_widens_the_limits():
    x = gk.input("x", [8])

    def net(change):
        def narrow(value):
            return F.cast(F.cast(value, to="float16"), to="float32")

        y = gk.cond(F.greater(F.reduce_sum(x, keepdims=0), np.float32(-1e9)), lambda: narrow(x), lambda: F.neg(x))
        return gk.Model({"y": F.mul(y, np.float32(1 + change))})

    report = gk.verify(net(0), {"x": np.ones(8, np.float32) / 3}, against=net(5e-4))
    assert report.passed, str(report)
    assert report.notes == (NOTE,)


def test_wide_outputs_after_float16_need_the_measured_effect_of_rounding():
    """An error of 0.9% is within the tolerances of float16, but 9 times as large as its epsilon."""
    x = gk.input("x", [64])

    def net(change):
        y = F.cast(F.cast(x, to="float16"), to="float32")
        return gk.Model({"y": F.mul(y, np.float32(1 + change))})

    assert gk.verify(net(0), against=net(5e-4)).passed
    report = gk.verify(net(0), {"x": np.linspace(50, 100, 64, dtype=np.float32)}, against=net(9e-3))
    assert not report.passed, str(report)
    assert report.notes == (NOTE,)
