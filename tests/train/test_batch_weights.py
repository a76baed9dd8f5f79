"""Losses and gradients do not depend on how samples are divided into batches, micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.ops import F
from graphkit.train.position import Position

CLASS_WEIGHTS = [1.0, 2.0, 3.0, 40.0]
RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((24, 3)).astype(np.float32)
CLASSES = np.sort(RNG.integers(0, 4, 24))
WEIGHTS = RNG.standard_normal((3, 4)).astype(np.float32)
# Batches of sequences of different lengths. One of them is as long as all others together.
LENGTHS = (2, 10, 3, 1)
SEQUENCES = [(RNG.standard_normal((4, n, 3)).astype(np.float32), RNG.integers(0, 4, (4, n))) for n in LENGTHS]
# The mask of each row: 0 for all rows of the first batch, 1 for all rows of the last.
MASK = (np.arange(24) >= 6).astype(np.float32)


def cross_entropy(inputs: np.ndarray, classes: np.ndarray, factors: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the weighted mean loss of rows, and its gradient, in float64."""
    logits = inputs.astype(np.float64) @ WEIGHTS
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    losses = -np.log(shares[np.arange(len(classes)), classes])
    slopes = (shares - np.eye(4)[classes]) * factors[:, None]
    return float(losses @ factors / factors.sum()), inputs.T @ slopes / factors.sum()


def masked(y: gk.Value, target: gk.Value, mask: gk.Value) -> tuple[gk.Value, gk.Value]:
    """Return the sum of a masked loss, and its weight."""
    loss, _ = F.softmax_cross_entropy_loss(y, target, reduction="none")
    return gk.reduce_sum(loss * mask, keepdims=False), gk.reduce_sum(mask, keepdims=False)


class Case:
    """A loss of a linear network, batches, and the expected loss and gradient of all batches together."""

    def __init__(self, rank: int, loss: Any, batches: list[Any], truth: tuple[float, np.ndarray], **options: Any):
        self.shape, self.loss, self.batches, self.options = ["N", "T", "U"][: rank - 1], loss, batches, options
        self.value, self.gradient = truth

    def trainer(self, rate: float, **options: Any) -> gk.Trainer:
        net = gk.Model({"y": gk.mat_mul(gk.input("x", [*self.shape, 3]), gk.parameter("w", [3, 4]))}, name="net")
        net.params["w"] = WEIGHTS.copy()
        return gk.Trainer(net, self.loss, gk.optim.SGD(rate), threads=1, **{**self.options, **options})

    def check(self, trainer: gk.Trainer) -> None:
        """Check the parameters after one step with learning rate 1."""
        np.testing.assert_allclose(WEIGHTS - np.array(trainer.net.params["w"]), self.gradient, rtol=1e-4, atol=1e-6)


def cases() -> dict[str, Case]:
    weighted = gk.losses.get("softmax_cross_entropy", class_weights=CLASS_WEIGHTS)
    rows = [(INPUTS[i : i + 6], CLASSES[i : i + 6]) for i in range(0, 24, 6)]
    flat = [np.concatenate([pair[k].reshape(-1, *pair[k].shape[2:]) for pair in SEQUENCES]) for k in (0, 1)]
    types = {"target": gk.TensorType("int64", ["N"]), "mask": gk.TensorType("float32", ["N"])}
    masks = [(x, {"target": y, "mask": MASK[6 * i : 6 * i + 6]}) for i, (x, y) in enumerate(rows)]
    targets = [(x, np.eye(4, dtype=np.float32)[y]) for x, y in SEQUENCES]
    difference = flat[0].astype(np.float64) @ WEIGHTS - np.eye(4)[flat[1]]
    mse = float((difference**2).mean()), flat[0].T @ difference * 2 / difference.size
    return {
        "class weights": Case(2, weighted, rows, cross_entropy(INPUTS, CLASSES, np.array(CLASS_WEIGHTS)[CLASSES])),
        "a mask": Case(2, masked, masks, cross_entropy(INPUTS, CLASSES, MASK), targets=types),
        "lengths": Case(3, "softmax_cross_entropy", SEQUENCES, cross_entropy(*flat, np.ones(len(flat[1])))),
        "lengths, mse": Case(3, "mse", targets, mse),
        "lengths and class weights": Case(
            3, weighted, SEQUENCES, cross_entropy(*flat, np.array(CLASS_WEIGHTS)[flat[1]])
        ),
    }


CASES = cases()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def batches_of(case: Case) -> Callable[[], Any]:
    return lambda: iter(case.batches)


def test_losses_of_epochs_and_of_validation(case: Case) -> None:
    (record,) = case.trainer(0.0).fit(batches_of(case), batches_of(case), epochs=1, progress=False)
    np.testing.assert_allclose([record["loss"], record["valid_loss"]], case.value, rtol=1e-5)
    assert len({len(x) * x.ndim for x, _ in case.batches}) == 1, "the means of batches are not the mean"


def test_accumulated_gradients_equal_one_large_batch(case: Case) -> None:
    trainer = case.trainer(1.0, accumulate=4)
    for x, y in case.batches:
        trainer.step(x, y)
    assert trainer.updates == 1
    case.check(trainer)


RANKED = [{}, {"shard_optimizer": True, "clip_norm": 1e9}, {"deterministic": True}]


@pytest.mark.parametrize("options", RANKED, ids=str)
def test_gradients_of_ranks(case: Case, on_ranks: Callable[..., list[Any]], options: dict[str, Any]) -> None:
    """Each of two ranks trains on two of the batches."""

    def work(store: Any) -> gk.Trainer:
        trainer = case.trainer(1.0, kvstore=store, accumulate=2, **options)
        for x, y in case.batches[2 * store.rank : 2 * store.rank + 2]:
            trainer.step(x, y)
        return trainer

    for trainer in on_ranks(work):
        case.check(trainer)


@pytest.mark.parametrize("options", RANKED, ids=str)
def test_steps_of_ranks(on_ranks: Callable[..., list[Any]], options: dict[str, Any]) -> None:
    """Each rank has a part of the batch, with different classes."""
    case = CASES["class weights"]

    def work(store: Any) -> tuple[float, gk.Trainer]:
        trainer = case.trainer(1.0, kvstore=store, **options)
        rows = slice(0, 10) if store.rank == 0 else slice(10, 24)
        return float(trainer.step(INPUTS[rows], CLASSES[rows])), trainer

    for loss, trainer in on_ranks(work):
        np.testing.assert_allclose(loss, case.value, rtol=1e-5)
        case.check(trainer)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_of_epochs_of_ranks(on_ranks: Callable[..., list[Any]], accumulate: int) -> None:
    case, data = CASES["class weights"], (INPUTS, CLASSES)

    def work(store: Any) -> dict[str, float]:
        trainer = case.trainer(0.0, kvstore=store, accumulate=accumulate)
        return trainer.fit(data, data, epochs=1, batch_size=5, progress=False)[0]

    for record in on_ranks(work):
        np.testing.assert_allclose([record["loss"], record["valid_loss"]], case.value, rtol=1e-5)


def test_a_rank_without_samples_weighs_nothing(on_ranks: Callable[..., list[Any]]) -> None:
    case = CASES["class weights"]

    def work(store: Any) -> tuple[float, np.ndarray]:
        trainer = case.trainer(1.0, kvstore=store)
        rows = slice(0, 24) if store.rank == 0 else slice(0, 0)
        return float(trainer.step(INPUTS[rows], CLASSES[rows])), np.array(trainer.net.params["w"])

    for loss, found in on_ranks(work):
        np.testing.assert_allclose(loss, case.value, rtol=1e-5)
        np.testing.assert_allclose(WEIGHTS - found, case.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("class_weights", [None, CLASS_WEIGHTS], ids=["plain", "class weights"])
def test_mixed_targets_are_weighted_by_shares(class_weights: list[float] | None) -> None:
    """A sample with shares of two classes equals two samples with these weights."""
    loss = gk.losses.get("softmax_cross_entropy", class_weights=class_weights)
    x = gk.input("x", ["N", 3])
    net = gk.Model({"y": gk.mat_mul(x, gk.parameter("w", [3, 4]))}, name="net")
    net.params["w"] = WEIGHTS
    graph = gk.losses.attach(net.graph, loss, mixed=True, weighted=True)
    second = (CLASSES + 1) % 4
    feeds = {"x": INPUTS, "target": CLASSES, "target_second": second, "mix": np.float32(0.3)}
    results = gk.Model.from_graph(graph, net.params.entries()).compile(threads=1).run(feeds)
    factors = np.ones(4) if class_weights is None else np.array(class_weights)
    both = np.concatenate([0.3 * factors[CLASSES], 0.7 * factors[second]])
    right, _ = cross_entropy(np.concatenate([INPUTS, INPUTS]), np.concatenate([CLASSES, second]), both)
    np.testing.assert_allclose(results["loss"], right, rtol=1e-5)
    if class_weights is None:
        assert "batch_weight" not in results
    else:
        np.testing.assert_allclose(results["batch_weight"], both.sum(), rtol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_gradient_flows_through_a_weight(accumulate: int) -> None:
    """For sum(y * target) / sum(|y|), the gradient is that of the numerator only."""
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3]), gk.parameter("w", [3, 4]))}, name="net")
    net.params["w"] = WEIGHTS.copy()
    targets = RNG.standard_normal((24, 4)).astype(np.float32)

    def loss(y: gk.Value, target: gk.Value) -> tuple[gk.Value, gk.Value]:
        return gk.reduce_sum(y * target, keepdims=False), gk.reduce_sum(gk.abs(y), keepdims=False)

    types = {"target": gk.TensorType("float32", ["N", 4])}
    trainer = gk.Trainer(net, loss, gk.optim.SGD(1.0), targets=types, accumulate=accumulate, threads=1)
    for rows in np.split(np.arange(24), accumulate):
        trainer.step(INPUTS[rows], targets[rows])
    expected = INPUTS.T @ targets / np.abs(INPUTS @ WEIGHTS).sum()
    np.testing.assert_allclose(WEIGHTS - np.array(trainer.net.params["w"]), expected, rtol=1e-4, atol=1e-6)


def test_small_weights_are_divisors() -> None:
    case = CASES["a mask"]
    found = case.trainer(0.0).step(INPUTS, {"target": CLASSES, "mask": MASK * np.float32(1e-32)})
    np.testing.assert_allclose(float(found), case.value, rtol=1e-5)


def test_smoothed_loss_of_samples_without_weight_is_not_large() -> None:
    """The mean over all classes contains weights above 0, although the weights of the samples are 0."""
    loss = gk.losses.get("softmax_cross_entropy", class_weights=[0.0, 1.0, 1.0, 1.0], label_smoothing=0.5)
    net = CASES["class weights"].trainer(0.0).net
    found = gk.Trainer(net, loss, gk.optim.SGD(0.0), threads=1).step(INPUTS[:3], np.zeros(3, np.int64))
    logits = INPUTS[:3].astype(np.float64) @ WEIGHTS
    log_shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(float(found), -0.5 / 4 * log_shares[:, 1:].sum(), rtol=1e-5)


def test_checkpoints_without_weights_count_samples() -> None:
    described = {"loss_sum": 6.0, "seen": 12}
    assert Position.read(described, {}).loss_weight == 12.0
    assert Position.read({**described, "loss_weight": 3.0}, {}).loss_weight == 3.0


def test_float16_weights_do_not_overflow() -> None:
    """The total weight of 100,000 samples of weight 40 overflows in float16."""
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3], "float16"), gk.parameter("w", [3, 4], dtype="float16"))})
    net.params["w"] = WEIGHTS.astype(np.float16)
    loss = gk.losses.get("softmax_cross_entropy", class_weights=CLASS_WEIGHTS)
    trainer = gk.Trainer(net, loss, gk.optim.SGD(0.0), threads=1)
    x, y = np.tile(INPUTS, (4200, 1)).astype(np.float16), np.tile(CLASSES, 4200)
    np.testing.assert_allclose(float(trainer.step(x, y)), CASES["class weights"].value, rtol=2e-3)


def test_resumed_epoch_keeps_weights_of_earlier_batches(tmp_path: Path) -> None:
    case = CASES["class weights"]

    class Stop(gk.Callback):
        name = "stop"

        def on_step_end(self, trainer: gk.Trainer, numbers: dict[str, Any]) -> None:
            if numbers["batch"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.trainer(0.0).fit(
            (INPUTS, CLASSES), epochs=1, batch_size=6, folder=tmp_path, progress=False, callbacks=[Stop()]
        )
    again = case.trainer(0.0)
    again.resume(tmp_path)
    assert again.position.batch == 2
    (record,) = again.fit((INPUTS, CLASSES), epochs=1, batch_size=6, folder=tmp_path, progress=False)
    np.testing.assert_allclose(record["loss"], case.value, rtol=1e-5)


def test_losses_over_different_numbers_are_named() -> None:
    x = gk.input("x", ["N", "T", 3])
    y = gk.nn.linear(x, 4)
    net = gk.Model({"tags": y, "score": gk.reduce_mean(y, np.array([1, 2]), keepdims=False)}, seed=0)
    with pytest.warns(UserWarning, match="losses of outputs 'tags' and 'score' have different divisors"):
        trainer = gk.Trainer(net, {"tags": "softmax_cross_entropy", "score": "mse"}, threads=1)
    assert "batch_weight" not in trainer.graph.output_names
    alike = gk.Model({"tags": y, "values": y * 1.0}, seed=0)
    trainer = gk.Trainer(alike, {"tags": "softmax_cross_entropy", "values": "softmax_cross_entropy"}, threads=1)
    assert "batch_weight" in trainer.graph.output_names


def test_a_function_returns_a_scalar_or_a_pair() -> None:
    case = CASES["a mask"]
    with pytest.raises(UsageError, match="a float scalar, or a pair of a sum and its weight, not 3 values"):
        gk.Trainer(case.trainer(0.0).net, lambda y, target, mask: (y, target, mask), **case.options)
