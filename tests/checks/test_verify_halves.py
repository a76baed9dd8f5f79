"""gk.verify of files of gk.reduce_precision: limits of float16, planted faults, and files of bfloat16."""

from __future__ import annotations

import numpy as np
import onnx
import planted
import pytest

import graphkit as gk
from graphkit import cli
from graphkit.errors import InvalidModel

FAULTS = {"convnet": ("w2", 0.3), "transformer": ("wd", 0.3)}
NOTE = "the model computes in float16: the limits are those of float16"


def half_of(name, precision="fp16"):
    return gk.reduce_precision(gk.load(planted.model_of(name)), precision, data=planted.feeds_of(name)["x"]).message


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
