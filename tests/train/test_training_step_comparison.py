"""The comparison of exported steps with graphkit finds wrong steps, and refuses batches that do not fit."""

import dataclasses

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import CheckFailed, UsageError
from graphkit.ops import F
from graphkit.train.exported import export, metrics
from graphkit.train.exported import graph as exported_graph
from graphkit.train.exported.graph import standalone_step

X = np.ones((4, 6), np.float32)


def small(dropout=0.0):
    h = gk.tanh(gk.nn.linear(gk.input("x", ["N", 6]), 8, name="fc1"))
    h = gk.nn.dropout(h, dropout) if dropout else h
    return gk.Model({"logits": gk.nn.linear(h, 3, name="fc2")}, name="small", seed=0)


def spoil_rate(spec, rate):
    return standalone_step(spec, dataclasses.replace(rate, scale=1.04))


def spoil_decay(spec, rate):
    rule = dataclasses.replace(spec.rule, optimizer=gk.optim.AdamW(0.01, weight_decay=0.0))
    return standalone_step(dataclasses.replace(spec, rule=rule), rate)


def spoil_output(spec, rate, position=1):
    graph = standalone_step(spec, rate)
    outputs = list(graph.outputs)
    outputs[position] = F.mul(outputs[position], np.float32(7))
    return graph.replace(outputs=outputs, output_names=graph.output_names)


def spoil_weight(spec, rate):
    assert spec.graph.output_names[-1] == "batch_weight"
    return spoil_output(spec, rate, -1)


def spoil_flush(spec, rate):
    graph = standalone_step(spec, rate)
    fed = next(v for v in graph.inputs if graph.name_of(v) == "flush")
    never = F.constant(value=np.asarray(False))
    graph = exported_graph._replaced(graph, {fed: never})
    return graph.replace(inputs=[v for v in graph.inputs if v is not never])


def spoil_skipping(spec, rate):
    rule = dataclasses.replace(spec.rule, on_nonfinite="ignore")
    return standalone_step(dataclasses.replace(spec, rule=rule), rate)


@in_one_item()
@pytest.mark.parametrize(("spoilt", "settings", "role"), [
    (spoil_rate, {}, "parameter"), (spoil_decay, {}, "parameter"), (spoil_output, {}, "output"),
    (spoil_weight, {"weighted": True}, "batch_weight"), (spoil_flush, {"accumulate": 2}, "step"),
    (spoil_skipping, {}, "skipped_step"), (spoil_skipping, {"accumulate": 2}, "skipped_step"),
])  # fmt: skip
def test_a_wrong_step_is_not_written(tmp_path, monkeypatch, spoilt, settings, role):
    monkeypatch.setattr(export, "standalone_step", spoilt)
    settings = dict(settings)
    weighted = settings.pop("weighted", False)
    trainer = gk.Trainer(small(), optimizer=gk.optim.AdamW(0.01, weight_decay=0.01), **settings)
    if weighted:
        trainer.step(X, [0, 1, 2, 0], np.ones(4))
    with pytest.raises(CheckFailed, match=f"{role}: "):
        trainer.to_onnx(tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())


def test_a_wrong_metric_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(metrics._METRICS, "accuracy", lambda output, target: F.constant(value=np.float32(0.3)))
    with pytest.raises(CheckFailed, match="metric: "):
        gk.Trainer(small()).to_onnx(tmp_path / "step.onnx", metrics="accuracy")


@in_one_item()
@pytest.mark.parametrize("options", [
    {}, {"accumulate": 3}, {"on_nonfinite": "skip"}, {"on_nonfinite": "ignore"},
    {"accumulate": 2, "on_nonfinite": "skip"},
])  # fmt: skip
def test_the_comparison_takes_a_step_that_is_not_finite(tmp_path, options):
    trainer = gk.Trainer(small(dropout=0.2), optimizer="adam", **options)
    report = trainer.to_onnx(tmp_path / "step.onnx", loss_scaling="on_nonfinite" in options).report
    assert report.passed
    assert ("skipped_step" in [r.role for r in report.roles]) == (options.get("on_nonfinite") != "ignore")
    limits = {r.role: r.limit for r in report.roles}
    assert limits["parameter"] == 1e-3
    assert "output" in limits


def test_a_batch_without_a_finite_loss_tests_nothing(tmp_path):
    inputs = np.full((2, 6), np.nan, np.float32)
    with pytest.raises(CheckFailed, match="batch="):
        gk.Trainer(small()).to_onnx(tmp_path / "step.onnx", batch=(inputs, np.zeros(2, np.int64)))
    assert not list(tmp_path.iterdir())


def test_a_step_is_compared_with_graphkit_and_not_with_a_backend(tmp_path):
    calls = []

    def compile_group(graph):
        calls.append(graph)
        return gk.Model.from_graph(graph, {}).compile()

    backend = gk.backend.Backend(name="other", supports=lambda node: True, compile=compile_group, dynamic=True)
    assert gk.Trainer(small(), backends=backend).to_onnx(tmp_path / "step.onnx").report.passed
    assert not calls


@in_one_item()
@pytest.mark.parametrize(("batch", "text"), [
    ((X,), r"pair \(inputs, targets\)"),
    (X, r"pair \(inputs, targets\)"),
    ((X, [0, 1, 2]), "dimension N is 4 in input 'x' and 3 in input 'target'"),
    ((X[:, :5], [0, 1, 2, 0]), "axis 1 is 5, not 6"),
    ((X[:0], np.zeros(0, np.int64)), "at least one sample"),
    (({"y": X}, [0, 1, 2, 0]), "no input 'y'"),
    (({}, [0, 1, 2, 0]), "no array for 'x'"),
])  # fmt: skip
def test_batches_that_do_not_fit_have_clear_errors(tmp_path, batch, text):
    with pytest.raises(UsageError, match=text):
        gk.Trainer(small()).to_onnx(tmp_path / "step.onnx", batch=batch)
    assert not list(tmp_path.iterdir())
