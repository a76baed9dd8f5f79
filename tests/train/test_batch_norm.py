"""BatchNormalization in training: by the statistics of the batch, or by the running statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.cli import invoke
from graphkit.errors import UsageError
from graphkit.passes.training.to_training import to_training

RNG = np.random.default_rng(0)
X, Y = RNG.normal(2.0, 3.0, (12, 5)).astype(np.float32), RNG.integers(0, 3, 12)
MEAN, VARIANCE = RNG.normal(size=6).astype(np.float32), RNG.uniform(0.5, 2.0, 6).astype(np.float32)


def network(in_branch: bool = False) -> gk.Model:
    x = gk.input("x", ["N", 5])
    h = gk.nn.linear(x, 6, name="first")
    normal = gk.nn.batch_norm(h, name="norm")
    if in_branch:
        normal = gk.cond(gk.reduce_sum(x, keepdims=False) > -1e9, lambda: gk.identity(normal), lambda: h)
    net = gk.Model({"y": gk.nn.linear(gk.tanh(normal), 3, name="last")}, name="net", seed=1)
    net.params["norm_running_mean"], net.params["norm_running_var"] = MEAN, VARIANCE
    return net


def written_out() -> gk.Model:
    """Return the network with the normalisation by running statistics written as a formula."""
    h = gk.nn.linear(gk.input("x", ["N", 5]), 6, name="first")
    scale, offset = gk.parameter("norm_weight", [6], "ones"), gk.parameter("norm_bias", [6], "zeros")
    normal = (h - MEAN) / np.sqrt(VARIANCE + np.float32(1e-5)) * scale + offset
    return gk.Model({"y": gk.nn.linear(gk.tanh(normal), 3, name="last")}, name="net", seed=1)


def trained(net: gk.Model, **options: Any) -> gk.Model:
    trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.1), threads=1, **options)
    for _ in range(3):
        trainer.step(X, Y)
    return net


@in_one_item()
@pytest.mark.parametrize("form", ["built", "file for inference", "file for training"])
def test_frozen_statistics_are_used_and_kept(form: str, tmp_path: Path) -> None:
    net, expected = network(), written_out()
    for name in expected.params:
        expected.params[name] = np.array(net.params[name])
    if form != "built":
        if form == "file for training":
            net = gk.Model.from_graph(to_training(net.graph), net.params.entries())
        net.save(tmp_path / "net.onnx")
        net = gk.load(tmp_path / "net.onnx")
    trained(expected)
    found = trained(net, batch_norm="frozen")
    for name in expected.params:
        np.testing.assert_allclose(found.params[name], expected.params[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert np.array(found.params["norm_running_mean"]).tobytes() == MEAN.tobytes()
    assert np.array(found.params["norm_running_var"]).tobytes() == VARIANCE.tobytes()


def test_running_statistics_change_by_default() -> None:
    found = trained(network())
    first = written_out()
    assert not np.allclose(found.params["norm_running_mean"], MEAN)
    assert not np.allclose(found.params["last_weight"], trained(first).params["last_weight"], rtol=1e-3)


@pytest.mark.parametrize("batch_norm", ["train", "frozen"])
def test_normalisation_in_branches_equals_plain_one(batch_norm: str) -> None:
    plain, branched = (trained(network(inside), batch_norm=batch_norm) for inside in (False, True))
    for name in plain.params:
        np.testing.assert_allclose(branched.params[name], plain.params[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_command_reports_batch_norm_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    network().save(tmp_path / "net.json")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    command = ["train", str(tmp_path / "net.json"), "--data", str(tmp_path / "data.npz"), "--batch-size", "4"]
    assert invoke([*command, "-o", str(tmp_path / "run")]) == 0
    assert "BatchNormalization (1 node): normalises by the statistics of each batch" in capsys.readouterr().err
    assert invoke([*command, "-o", str(tmp_path / "frozen"), "--batch-norm", "frozen"]) == 0
    assert "BatchNormalization" not in capsys.readouterr().err
    kept = gk.load(tmp_path / "frozen").params["norm_running_mean"]
    assert np.array(kept).tobytes() == MEAN.tobytes()


def test_unknown_batch_norm_mode_is_an_error() -> None:
    with pytest.raises(UsageError, match="batch_norm must be 'train' or 'frozen', not 'eval'"):
        gk.Trainer(network(), batch_norm="eval")
    with pytest.raises(UsageError, match="has no effect with batch_norm='frozen'"):
        gk.Trainer(network(), batch_norm="frozen", sync_batch_norm=True)


@in_one_item("values")
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_running_variance_by_the_rule_of_pytorch(dtype, rows):
    """Unbiased variances, and a count of batches. PyTorch refuses one element per channel; here its variance is 0."""
    x = gk.input("x", ["N", 3], dtype=dtype)
    values = [gk.parameter(name, (3,), "ones", dtype=dtype) for name in ("weight", "bias")]
    states = [
        gk.Value(gk.TensorType(dtype, (3,)), f"bn.{name}", role="state") for name in ("running_mean", "running_var")
    ]
    count = gk.Value(gk.TensorType("int64", ()), "bn.num_batches_tracked", role="state")
    y = gk.batch_normalization(x, *values, *states, momentum=0.75)
    arrays = {"bn.running_mean": np.zeros(3, dtype), "bn.running_var": np.full(3, 2, dtype), count.name: np.int64(4)}
    graph = gk.Graph([x, *values, *states, count], [y], meta={"running_statistics": "pytorch"})
    net = gk.Model.from_graph(graph, arrays)
    data = np.random.default_rng(rows).standard_normal((rows, 3)).astype(dtype)
    gk.Trainer(net, lambda y: gk.reduce_mean(y * y, keepdims=False), "sgd", targets={}).step(data, {})
    variance = data.astype(np.float64).var(0, ddof=1) if rows > 1 else np.zeros(3)
    bound = 2e-3 if dtype == "float16" else 1e-6
    np.testing.assert_allclose(net.params["bn.running_var"].astype(float), 1.5 + 0.25 * variance, rtol=bound)
    assert net.params[count.name] == 5
    frozen = gk.Model.from_graph(graph, arrays | {n: np.ones(3, dtype) for n in ("weight", "bias")})
    gk.Trainer(
        frozen, lambda y: gk.reduce_mean(y * y, keepdims=False), "sgd", targets={}, batch_norm="frozen"
    ).step(data, {})  # fmt: skip
    assert frozen.params[count.name] == 4
