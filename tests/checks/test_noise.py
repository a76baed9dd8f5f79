"""The verdict by noise: rounding errors that both engines have pass; other errors fail, even small ones."""

from __future__ import annotations

import itertools
import json
import os

import numpy as np
import pytest
from combinations import full, in_one_item
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import graphkit as gk
from graphkit.checks import rounding
from graphkit.checks.noise import judge
from graphkit.checks.rounding import in_double_precision
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops.nn import conv


def normal(*shape):
    return np.random.default_rng(5).standard_normal(shape)


def cancelling() -> gk.Model:
    """Sums of 4,096 terms of size 100 that nearly cancel: every engine loses digits, each its own."""
    x = gk.input("x", ["N", 4096])
    net = gk.Model({"y": gk.nn.linear(x, 96, bias=False, name="fc")}, seed=0)
    net.params["fc_weight"] = normal(*net.params["fc_weight"].shape).astype(np.float32)
    return net


def cancelling_inputs() -> dict[str, np.ndarray]:
    return {"x": (100 * normal(32, 4096)[:, ::-1]).astype(np.float32)}


class Altered:
    """An executor whose results somebody has changed."""

    def __init__(self, executor, change):
        self._executor, self._change = executor, change

    def run(self, feeds):
        return {name: self._change(array.copy()) for name, array in self._executor.run(feeds).items()}


def altered(monkeypatch, net, change):
    compiled = net.compile()
    monkeypatch.setattr(type(net), "compile", lambda self, **_: Altered(compiled, change))


def with_error_of_the_other(monkeypatch, net, feeds, times):
    """Make graphkit's error `times` times ONNX Runtime's error, with the opposite sign."""
    truth = in_double_precision(net, feeds)["y"]
    other = OnnxRuntimeModel(net.to_onnx()).run(feeds)["y"]
    altered(monkeypatch, net, lambda y: (truth - times * (other - truth)).astype(np.float32))


@in_one_item()
@pytest.mark.parametrize("times", [0.5, 1.0, 1.8])
def test_rounding_that_both_engines_share_passes(monkeypatch, times):
    net, feeds = cancelling(), cancelling_inputs()
    with_error_of_the_other(monkeypatch, net, feeds, times)
    strict = gk.verify(net, feeds, strict_tolerance=True).outputs[0]
    assert (strict.passed, strict.criterion, strict.noise) == (False, "tolerance", None)
    report = gk.verify(net, feeds)
    (y,) = report.outputs
    assert report.passed, str(report)
    assert y.criterion == "noise"
    assert 0 < y.noise.max_abs <= 2 * y.noise.other_max_abs
    assert "by noise" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["outputs"][0]["noise"]["other_max_abs"] == y.noise.other_max_abs
    # Tolerances that somebody names are what decides.
    assert not gk.verify(net, feeds, rtol=1e-4).passed
    assert gk.verify(net, feeds, rtol=1e-4, strict_tolerance=False).passed


def test_rounding_is_measured_until_every_output_passes(monkeypatch):
    net, feeds = cancelling(), cancelling_inputs()
    runs = []

    def verified():
        runs.clear()
        return gk.verify(net, feeds, progress=lambda *numbers: runs.append(numbers))

    with_error_of_the_other(monkeypatch, net, feeds, 1 / 40)  # the other engine fails without the measurement
    assert verified().passed
    assert runs == [(0, 4)]
    with_error_of_the_other(monkeypatch, net, feeds, 3.0)  # the measurement does not help graphkit
    assert not verified().passed
    assert runs == [(0, 4), (1, 4), (2, 4), (3, 4)]
    monkeypatch.setattr(rounding, "_ELEMENTS", 1)
    (y,) = verified().outputs
    assert runs == [(0, 4)]
    assert y.reason.endswith("(rounding was measured in 1 run instead of 4, because the model is large)")


def test_more_runs_never_lower_the_measured_rounding():
    net, feeds = cancelling(), {"x": cancelling_inputs()["x"][:1]}
    truth = in_double_precision(net, feeds)
    found = [spread["y"].tensors for spread in rounding.spreads(net, feeds, truth)]
    assert len(found) == rounding.DRAWS
    for less, more in itertools.pairwise(found):
        assert less.mean < more.mean
        assert (less.highest <= more.highest).all()
    runs = [
        np.abs(in_double_precision(net, feeds, rounding.Rounding(0.0, 2.0**-23, seed))["y"] - truth["y"]).mean()
        for seed in range(rounding.DRAWS)
    ]
    assert found[-1].mean == pytest.approx(np.mean(runs))


def test_more_noise_than_the_other_engine_makes_fails(monkeypatch):
    net, feeds = cancelling(), cancelling_inputs()
    with_error_of_the_other(monkeypatch, net, feeds, 3.0)
    (y,) = gk.verify(net, feeds).outputs
    assert not y.passed
    assert "more than 2 times" in y.reason


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_another_weight_in_the_file_fails(scale):
    """graphkit is right about its own model: that ONNX Runtime is far from it is not ONNX Runtime's rounding."""
    net, feeds = cancelling(), cancelling_inputs()
    proto = net.to_onnx()
    weight = next(t for t in proto.graph.initializer if t.name == "fc_weight")
    array = numpy_helper.to_array(weight).copy()
    array.flat[7] += scale
    weight.CopyFrom(numpy_helper.from_array(array, "fc_weight"))
    (y,) = gk.verify(net, feeds, against=proto).outputs
    assert not y.passed
    assert "another function" in y.reason


def test_an_operator_that_is_read_otherwise_fails():
    x = gk.input("x", [64, 64])
    net = gk.Model({"y": gk.leaky_relu(x, alpha=0.01)})
    proto = net.to_onnx()
    proto.graph.node[0].attribute[0].f = 0.0101
    assert not gk.verify(net, against=proto).passed


@in_one_item()
@pytest.mark.parametrize("error", [1.0, 0.05, np.nan, np.inf])
def test_one_wrong_element_fails(monkeypatch, error):
    net, feeds = cancelling(), cancelling_inputs()

    def change(y):
        y.flat[abs(y).argmin()] += error
        return y

    altered(monkeypatch, net, change)
    (y,) = gk.verify(net, feeds).outputs
    assert not y.passed
    assert y.noise is not None


def test_errors_everywhere_fail(monkeypatch):
    net, feeds = cancelling(), cancelling_inputs()
    altered(monkeypatch, net, lambda y: y + (np.clip(normal(*y.shape), -1, 1) * 0.02).astype(np.float32))
    (y,) = gk.verify(net, feeds).outputs
    assert not y.passed
    assert "more than 2 times" in y.reason


def test_small_elements_are_not_held_against_large_ones():
    truth = np.concatenate([np.full(500, 1e4), np.full(500, 1e-3)])
    noise = np.concatenate([np.full(500, 1e-2), np.full(500, 1e-9)])
    other = (truth + noise).astype(np.float32)
    ours = other.copy()
    ours[700] += 1e-3
    verdict = judge(ours, other, truth, ours != other)
    assert verdict.max_abs < verdict.other_max_abs
    assert not verdict.passed
    assert judge(other, other, truth, np.ones(1000, bool)).passed


def test_special_values_stay_where_they_are():
    truth = np.array([1.0, np.nan, np.inf, 2.0])
    fine = np.array([1.0, np.nan, np.inf, 2.0], np.float32)
    for wrong in ([np.nan, np.nan, np.inf, 2.0], [1.0, 3.0, np.inf, 2.0], [1.0, np.nan, -np.inf, 2.0]):
        assert not judge(np.array(wrong, np.float32), fine, truth, np.ones(4, bool)).passed
        assert not judge(fine, np.array(wrong, np.float32), truth, np.ones(4, bool)).passed
    assert judge(fine, fine, truth, np.ones(4, bool)).passed


def test_where_there_is_no_double_precision_the_tolerances_decide(monkeypatch):
    net = gk.Model({"y": gk.exp(gk.input("x", [8]))})
    altered(monkeypatch, net, lambda y: y * 1.01)
    monkeypatch.setattr(os, "sysconf", lambda name: 1)
    (y,) = gk.verify(net).outputs
    assert not y.passed
    assert y.criterion == "tolerance"
    assert "cannot be measured in double precision: inputs and parameters need" in y.reason


def root_of_sigmoid() -> tuple[gk.Model, dict[str, np.ndarray]]:
    """ONNX Runtime's Sigmoid of -20 is 0. This error is tiny next to the largest elements, but large for its root."""
    x = np.array([[-80.0, -20.0, -15.0], [-9.0, 0.0, 3.0]], np.float32)
    return gk.Model({"y": gk.sqrt(gk.sigmoid(gk.input("x", ["N", 3])))}), {"x": x}


def quantised(folder, seed) -> tuple[gk.Model, dict[str, np.ndarray]]:
    """Products of activations that are quantised by their own range: a last digit may move one by a whole step."""
    h = gk.input("x", ["N", 64])
    for layer, width in enumerate((256, 256, 256, 10)):
        h = gk.gelu(gk.nn.layer_norm(gk.nn.linear(h, width, name=f"fc{layer}"), name=f"norm{layer}"))
    gk.Model({"y": h}, seed=seed).save(folder / "net.onnx")
    quantize_dynamic(folder / "net.onnx", folder / "quantised.onnx", weight_type=QuantType.QInt8)
    x = np.random.default_rng(seed).standard_normal((256, 64)).astype(np.float32)
    return gk.load(folder / "quantised.onnx"), {"x": x}


def test_an_engine_may_round_by_the_largest_elements(monkeypatch):
    net, feeds = root_of_sigmoid()
    (y,) = gk.verify(net, feeds).outputs
    assert (y.passed, y.criterion) == (True, "noise")
    assert y.max_abs > 1e-5
    assert not gk.verify(net, feeds, strict_tolerance=True).passed
    # graphkit's results may not have such an error.
    altered(monkeypatch, net, lambda y: np.where(y < 1e-4, y + np.float32(1.2e-4), y))
    assert not gk.verify(net, feeds).passed


def test_small_results_of_bounded_functions(monkeypatch):
    """The error of ONNX Runtime's Sigmoid is absolute, so it is large next to probabilities of 1e-4."""
    net, x = gk.Model({"y": gk.sigmoid(gk.input("x", ["N", 8]))}), np.linspace(-10, -8.5, 64, dtype=np.float32)
    feeds = {"x": x.reshape(8, 8)}
    (y,) = gk.verify(net, feeds).outputs
    assert (y.passed, y.criterion) == (True, "noise"), str(y)
    altered(monkeypatch, net, lambda y: y * np.float32(1.002))
    assert not gk.verify(net, feeds).passed


@in_one_item()
@pytest.mark.parametrize(
    ("of_model", "engine"),
    [("sigmoid", "graphkit"), ("tanh", "graphkit"), ("tanh", "onnxruntime"), ("erf", "onnxruntime")],
)
def test_faults_in_small_results_of_bounded_functions(of_model: str, engine: str):
    """Only ONNX Runtime's Sigmoid has an absolute error: small results of other functions have no large errors."""
    x = gk.input("x", ["N", 8])
    z = x - np.float32(20) if of_model == "sigmoid" else x * np.float32(1e-7)
    net, wrong = (gk.Model({"y": getattr(gk, of_model)(z) * np.float32(factor)}) for factor in (1, 1.5))
    feeds = {"x": normal(8, 8).astype(np.float32)}
    assert gk.verify(net, feeds).passed
    assert not gk.verify(net, feeds, against=wrong, against_engine=engine).passed


@pytest.mark.parametrize("seed", [0, full(3), full(5)])
def test_quantisation_moves_by_whole_steps(monkeypatch, tmp_path, seed):
    net, feeds = quantised(tmp_path, seed)
    (y,) = gk.verify(net, feeds, against=tmp_path / "quantised.onnx").outputs
    assert y.passed, str(y)
    for change in (lambda y: y * np.float32(1.001), lambda y: y + np.float32(0.001)):
        altered(monkeypatch, net, change)
        (y,) = gk.verify(net, feeds, against=tmp_path / "quantised.onnx").outputs
        assert not y.passed
        monkeypatch.undo()


def test_integers_and_float64_are_compared_by_tolerance_alone(monkeypatch):
    x = gk.input("x", [8], dtype="float64")
    net = gk.Model({"y": gk.exp(x), "best": gk.arg_max(x, axis=0)})
    altered(monkeypatch, net, lambda y: y + 1)
    assert [(o.passed, o.criterion, o.noise) for o in gk.verify(net).outputs] == [(False, "tolerance", None)] * 2


def test_double_precision_is_that_of_the_graph():
    x = gk.input("x", ["N", 3, 9, 9], dtype="float16")
    net = gk.Model({"y": gk.softmax(gk.flatten(gk.relu(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="conv"))))}, seed=0)
    feeds = {"x": normal(2, 3, 9, 9).astype(np.float16)}
    truth = in_double_precision(net, feeds)["y"]
    assert truth.dtype == np.float64
    np.testing.assert_allclose(truth.sum(axis=1), 1.0, rtol=1e-15)
    assert abs(truth - net.run(feeds)["y"]).max() < 1e-3


def test_convolutions_are_unfolded_piece_by_piece(monkeypatch):
    x, w = normal(2, 4, 9, 8), normal(6, 2, 3, 2)
    node = gk.conv(gk.input("x", x.shape, dtype="float64"), gk.input("w", w.shape, dtype="float64"), group=2).node
    whole = node.op.reference(gk.ops.xp.numpy_xp, x, w)
    largest = []
    chunks = conv._chunks
    monkeypatch.setattr(conv, "_UNFOLD_LIMIT", 400)
    monkeypatch.setattr(conv, "_chunks", lambda count, size: (largest.append(size), chunks(count, size))[1])
    np.testing.assert_allclose(node.op.reference(gk.ops.xp.numpy_xp, x, w), whole, rtol=1e-12)
    assert min(largest) <= 400
