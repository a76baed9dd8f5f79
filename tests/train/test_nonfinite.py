"""Steps with a loss or gradients that are not finite: they raise an error, are skipped, or update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import NotFinite, UsageError
from graphkit.ops import F

NAN = float("nan")
RNG = np.random.default_rng(0)


def network() -> gk.Model:
    x = gk.input("x", ["N", 3, 4, 4])
    h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 4, kernel=3, pad=1, name="conv"), name="bn"))
    h = F.log(F.add(F.reduce_mean(h, np.array([2, 3]), keepdims=False), 1.0), name="logarithm")
    return gk.Model(gk.nn.linear(h, 2, name="fc"), name="net")


def trained(**options: Any) -> gk.Trainer:
    options.setdefault("optimizer", gk.optim.Adam(0.01))
    return gk.Trainer(network(), **options)


def batch(value: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    x = RNG.standard_normal((4, 3, 4, 4)).astype(np.float32)
    if value is not None:
        x[1, 2, 3, 0] = value
    return x, np.array([0, 1, 0, 1])


def everything(trainer: gk.Trainer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in {**trainer.net.params, **trainer._stepper.slots}.items()}


OPTIMIZERS = pytest.mark.parametrize(
    "optimizer", [gk.optim.SGD(0.1), gk.optim.SGD(0.1, momentum=0.9), gk.optim.Adam(0.01), gk.optim.Lamb(0.01)],
    ids=["sgd", "momentum", "adam", "lamb"],
)  # fmt: skip
ACCUMULATE = pytest.mark.parametrize("accumulate", [1, 2])


@OPTIMIZERS
def test_nonfinite_error_names_origin_and_changes_nothing(optimizer: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    trainer = trained(optimizer=optimizer, ema=0.9, clip_norm=1.0)
    for _ in range(2):
        trainer.step(*batch())
    before = everything(trainer)
    with pytest.raises(NotFinite, match=r"the loss is nan at update 3, from input 'x': 1 NaN of 192 elements"):
        trainer.step(*batch(NAN))
    assert everything(trainer) == before
    assert np.isfinite(float(trainer.step(*batch())))
    assert trainer.updates == 3


def test_error_names_the_node() -> None:
    x = gk.input("x", ["N", 3])
    net = gk.Model(F.log(gk.nn.linear(x, 2, name="fc"), name="logarithm"), name="net")
    net.params["fc_bias"] = np.full(2, -100.0, np.float32)
    with pytest.raises(NotFinite, match=r"from node 'logarithm' Log\(.*8 NaN of 8 elements"):
        gk.Trainer(net, "mse").step(np.ones((4, 3), np.float32), np.ones((4, 2), np.float32))


@OPTIMIZERS
@ACCUMULATE
def test_skipped_step_changes_nothing(optimizer: Any, accumulate: int) -> None:
    data = [batch() for _ in range(4)]
    plain = trained(optimizer=optimizer, accumulate=accumulate, on_nonfinite="skip", seed=1)
    skipping = trained(optimizer=optimizer, accumulate=accumulate, on_nonfinite="skip", seed=1)
    for x, y in data:
        plain.step(x, y)
    for i, (x, y) in enumerate(data):
        if i == 2:
            before = everything(skipping)
            for _ in range(accumulate):
                assert np.isnan(float(skipping.step(*batch(NAN))))
            assert everything(skipping) == before
        skipping.step(x, y)
    assert (skipping.skipped, plain.skipped) == (1, 0)
    assert skipping.updates == plain.updates
    assert everything(skipping) == everything(plain)


@pytest.mark.parametrize(
    "build", [network, lambda: gk.Model(gk.nn.linear(gk.flatten(gk.input("x", ["N", 3, 4, 4])), 2))]
)
def test_nonfinite_batch_keeps_accumulated_gradients(build: Any) -> None:
    """The second network has no running statistics, so only the guard of the accumulators can raise the error."""
    first, second = batch(), batch()
    plain, raising = (gk.Trainer(build(), optimizer=gk.optim.Adam(0.01), accumulate=2, seed=1) for _ in range(2))
    plain.step(*first)
    plain.step(*second)
    raising.step(*first)
    before = everything(raising)
    with pytest.raises(NotFinite, match=r"the loss is nan at update 1, from input 'x'"):
        raising.step(*batch(NAN))
    assert everything(raising) == before
    raising.step(*second)
    assert raising.updates == plain.updates == 1
    assert everything(raising) == everything(plain)


@ACCUMULATE
def test_gradients_that_overflow_while_the_loss_does_not(accumulate: int) -> None:
    """At sqrt(0), the loss is 0 and the gradient infinite."""
    x = gk.input("x", ["N", 2])

    def build() -> gk.Model:
        return gk.Model({"y": F.sqrt(gk.nn.linear(x, 1, bias=False, init="zeros", name="fc"))}, name="net")

    def loss(y: Any) -> Any:
        return F.reduce_mean(y, keepdims=False)

    x_array = np.ones((2, 2), np.float32)
    skipping = gk.Trainer(build(), loss, gk.optim.SGD(0.1), targets={}, on_nonfinite="skip", accumulate=accumulate)
    for _ in range(accumulate):
        skipping.step(x_array, {})
    assert skipping.skipped == 1
    assert (skipping.net.params["fc_weight"] == 0).all()
    raising = gk.Trainer(build(), loss, gk.optim.SGD(0.1), targets={})
    raising.step(x_array, {})
    with pytest.raises(NotFinite, match=r"Sqrt.*parameter 'fc_weight' had infinities before"):
        raising.step(x_array, {})


def test_nonfinite_loss_is_ignored() -> None:
    trainer = trained(on_nonfinite="ignore")
    assert np.isnan(float(trainer.step(*batch(NAN))))
    assert np.isnan(trainer.net.params["fc_weight"]).any()
    assert trainer.updates == 1
    with pytest.raises(UsageError, match="did you mean 'skip'"):
        trained(on_nonfinite="skp")


def test_fit_counts_and_reports_skipped_steps(tmp_path: Path) -> None:
    x = np.concatenate([batch()[0] for _ in range(4)])
    x[5] = 3e38  # the sums of the convolution overflow
    y = np.arange(16) % 2
    trainer = trained(on_nonfinite="skip")
    history = trainer.fit((x, y), epochs=2, batch_size=4, metrics=["accuracy"], folder=tmp_path)
    assert [record["skipped"] for record in history] == [1, 1]
    assert all(np.isfinite(record["loss"]) for record in history)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in lines if line.get("event", "epoch") == "epoch"] == [1, 1]
    again = trained(on_nonfinite="skip")
    again.resume(tmp_path)
    assert again.skipped == 2
    with pytest.raises(NotFinite, match=r"the loss is nan at epoch 1, batch \d, from node 'bn' BatchNorm"):
        trained().fit((x, y), epochs=1, batch_size=4)


def test_epoch_of_skipped_steps_has_no_loss(tmp_path: Path) -> None:
    x, y = np.full((8, 3, 4, 4), 3e38, np.float32), np.arange(8) % 2
    watching = [gk.callbacks.EarlyStopping(9, "loss"), gk.callbacks.ReduceOnPlateau(9, 0.1, "loss")]
    kept = gk.callbacks.KeepBest("loss")
    trainer = trained(on_nonfinite="skip")
    history = trainer.fit((x, y), epochs=2, batch_size=4, folder=tmp_path, callbacks=[*watching, kept])
    assert [record["skipped"] for record in history] == [2, 2]
    assert np.isnan([record["loss"] for record in history]).all()
    assert [callback.wait for callback in watching] == [2, 2]
    assert [callback.best for callback in (*watching, kept)] == [None] * 3
    assert not list(tmp_path.glob("best*"))
    trained(on_nonfinite="skip").resume(tmp_path)


def test_ignore_adds_no_guards() -> None:
    def guards(**options: Any) -> int:
        return sum(n.op.name == "FiniteGuard" for program in trained(**options).graphs for n in program.nodes)

    assert guards(on_nonfinite="ignore") == 0
    # Learning rate, step and two statistics have guards. Arrays of the size of a parameter have none, to save time.
    assert guards() == 4
