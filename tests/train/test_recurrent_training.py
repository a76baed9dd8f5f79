"""Train recurrent layers with native gradient kernels, and with the equivalent Scans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from device_pipelines import patch_pipelines

import graphkit as gk
from graphkit.executor.run import device_passes


def language_model() -> gk.Model:
    return gk.models.build("lstm_lm", vocab=30, hidden=20, layers=2)


def gru_classifier() -> gk.Model:
    x = gk.input("x", [7, 4, 6])
    y, _ = gk.nn.gru(x, 20, name="gru")
    return gk.Model(gk.nn.linear(y, 30, name="head"), name="classifier")


@pytest.mark.parametrize("build", [language_model, gru_classifier])
def test_steps_are_those_of_scans(monkeypatch: pytest.MonkeyPatch, build: Callable[[], gk.Model]) -> None:
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 30, (7, 4))
    x = targets if build is language_model else rng.standard_normal((7, 4, 6)).astype(np.float32)
    histories, parameters = [], []
    for whole in (device_passes.runs_whole, lambda device, node: False):
        patch_pipelines(monkeypatch, runs_whole=whole)
        net = build()
        start = {name: np.array(net.params[name]) for name in net.params}
        trainer = gk.Trainer(net, loss="softmax_cross_entropy", optimizer=gk.optim.SGD(0.5), threads=2)
        histories.append([float(trainer.step(x, targets)) for _ in range(5)])
        parameters.append({name: np.array(net.params[name]) for name in net.params})
    np.testing.assert_allclose(*histories, rtol=1e-5)
    assert histories[0][-1] < histories[0][0]
    for name, ours in parameters[0].items():
        assert not np.array_equal(ours, start[name]), name
        np.testing.assert_allclose(ours, parameters[1][name], rtol=1e-4, atol=1e-5, err_msg=name)
