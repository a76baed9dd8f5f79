"""Metrics over several batches, compared with their definitions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, UsageError

RNG = np.random.default_rng(4)
LOGITS = RNG.standard_normal((40, 6)).astype(np.float32)
CLASSES = RNG.integers(0, 5, 40)
SCORES = np.round(RNG.standard_normal(40), 1).astype(np.float32)
LABELS = (SCORES + RNG.standard_normal(40) > 0).astype(np.int64)


def measured(name: str, output: np.ndarray, target: np.ndarray) -> float:
    """Return the value after three batches of unequal size, for a metric that was used and reset before."""
    metric = gk.metrics.get(name)
    metric.update(output[::-1][:7], target[:7])
    metric.reset()
    assert np.isnan(metric.value)
    for part in (slice(0, 5), slice(5, 30), slice(30, None)):
        metric.update(output[part], target[part])
    return metric.value


@in_one_item()
@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_top_k_counts_targets_among_the_k_largest(k: int) -> None:
    hits = [target in np.argsort(-row, kind="stable")[:k] for row, target in zip(LOGITS, CLASSES, strict=True)]
    assert measured(f"top{k}", LOGITS, CLASSES) == pytest.approx(np.mean(hits))
    if k == 1:
        assert np.mean(hits) == pytest.approx(measured("accuracy", LOGITS, CLASSES))


def test_top_k_of_equal_and_of_nan_outputs() -> None:
    metric = gk.metrics.get("top2")
    metric.update(np.zeros((4, 4), np.float32), np.arange(4))
    assert metric.value == 0.5
    metric.reset()
    metric.update(np.full((1, 4), np.nan, np.float32), np.array([0]))
    assert metric.value == 0.0


def f1_of(predicted: np.ndarray, target: np.ndarray, cls: int) -> float:
    both = np.sum((predicted == cls) & (target == cls))
    return 2 * both / (np.sum(predicted == cls) + np.sum(target == cls))


def test_f1_is_macro_or_binary() -> None:
    predicted = LOGITS.argmax(-1)
    present = sorted({*predicted, *CLASSES})
    assert measured("f1", LOGITS, CLASSES) == pytest.approx(np.mean([f1_of(predicted, CLASSES, c) for c in present]))
    two = LOGITS[:, :2]
    assert measured("f1", two, LABELS) == pytest.approx(f1_of(two.argmax(-1), LABELS, 1))
    for shape in ((40,), (40, 1)):
        assert measured("f1", SCORES.reshape(shape), LABELS) == pytest.approx(f1_of(SCORES > 0, LABELS, 1))


def test_auc_is_the_share_of_ordered_pairs() -> None:
    positive, negative = SCORES[LABELS == 1], SCORES[LABELS == 0]
    pairs = [1.0 if p > n else 0.5 if p == n else 0.0 for p, n in itertools.product(positive, negative)]
    assert 0.5 in pairs
    assert measured("auc", SCORES, LABELS) == pytest.approx(np.mean(pairs))
    assert measured("auc", np.stack([-SCORES, SCORES], 1), LABELS) == pytest.approx(np.mean(pairs))
    only = gk.metrics.get("auc")
    only.update(SCORES, np.ones(40))
    assert np.isnan(only.value)


def test_perplexity_of_sequences() -> None:
    logits = np.stack([LOGITS, 100 * LOGITS], 1)
    target = np.stack([CLASSES, LOGITS.argmax(-1)], 1)
    wide = logits.astype(np.float64)
    chosen = np.take_along_axis(wide, target[..., None], -1)[..., 0]
    loss = np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1)) + wide.max(-1) - chosen
    assert measured("perplexity", logits, target) == pytest.approx(np.exp(loss.mean()))
    uniform = gk.metrics.get("perplexity")
    uniform.update(np.zeros((3, 8), np.float32), np.array([0, 5, 7]))
    assert uniform.value == pytest.approx(8)


def test_rmse_is_root_of_overall_mean() -> None:
    target = LOGITS + RNG.standard_normal(LOGITS.shape)
    assert measured("rmse", LOGITS, target) == pytest.approx(np.sqrt(np.mean((LOGITS - target) ** 2)))


def test_metrics_refuse_what_does_not_fit() -> None:
    for name in ("top5", "perplexity", "accuracy"):
        with pytest.raises(InputError, match=f"{name}: an output of shape .* needs class numbers"):
            gk.metrics.get(name).update(LOGITS, np.zeros((3,), np.int64))
    with pytest.raises(InputError, match="auc: needs one score per target"):
        gk.metrics.get("auc").update(LOGITS, LABELS)
    with pytest.raises(UsageError, match="k of at least 1"):
        gk.metrics.get("top0")
    with pytest.raises(UsageError, match="did you mean 'accuracy'"):
        gk.metrics.get("acuracy")


class Counted:
    name = "counted"

    def __init__(self, value: Any) -> None:
        self.value = value

    def reset(self) -> None:
        """Nothing is gathered."""

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        """Nothing is gathered."""


@pytest.mark.parametrize("processes", [1, 2])
def test_the_value_of_a_metric_is_any_number(tmp_path: Path, on_ranks: Any, processes: int) -> None:
    def work(store: Any) -> dict[str, float]:
        trainer = gk.Trainer(gk.models.build("mlp", inputs=6, hidden=(3,), classes=5), kvstore=store)
        metrics = [Counted(np.float32(2.5))]
        (record,) = trainer.fit((LOGITS, CLASSES), batch_size=8, folder=tmp_path, metrics=metrics)
        with pytest.raises(UsageError, match="the value of metric 'counted' must be a number, not None"):
            trainer.fit((LOGITS, CLASSES), batch_size=8, metrics=[Counted(None)])
        return record

    for rank, record in enumerate(on_ranks(work, processes)):
        assert record["counted" if processes == 1 else f"counted of rank {rank}"] == 2.5
    assert "2.5" in (tmp_path / "log.jsonl").read_text()


def distances(output: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.abs(output.argmax(-1) - target)


def share_right(output: np.ndarray, target: np.ndarray) -> float:
    return float(np.mean(output.argmax(-1) == target))


@pytest.mark.parametrize("batch_size", [8, 3])
@pytest.mark.parametrize("processes", [1, 2])
def test_functions_are_metrics(on_ranks: Any, processes: int, batch_size: int) -> None:
    """Numbers of samples, and a number of a batch, are averaged over all samples, however uneven the batches."""

    def work(store: Any) -> dict[str, float]:
        net = gk.models.build("mlp", inputs=6, hidden=(3,), classes=5)
        trainer = gk.Trainer(net, optimizer=gk.optim.SGD(0.0), kvstore=store)
        named = gk.metrics.FunctionMetric(share_right, "right")
        (record,) = trainer.fit((LOGITS, CLASSES), batch_size=batch_size, metrics=[distances, named, "accuracy"])
        found = trainer.evaluate((LOGITS, CLASSES), distances, batch_size=batch_size)
        assert found["distances"] == pytest.approx(record["distances"])
        return record

    predicted = gk.models.build("mlp", inputs=6, hidden=(3,), classes=5)(LOGITS).argmax(-1)
    for record in on_ranks(work, processes):
        assert record["distances"] == pytest.approx(np.abs(predicted - CLASSES).mean())
        assert record["right"] == pytest.approx(record["accuracy"])


def test_functions_that_are_no_metrics() -> None:
    metric = gk.metrics.get(lambda output, target: np.array(["a"]))
    assert metric.name == "<lambda>"
    with pytest.raises(UsageError, match=r"metric '<lambda>': the function must return numbers, not <U1"):
        metric.update(LOGITS, CLASSES)
    with pytest.raises(UsageError, match=r"metric 'len': the function must take two arguments, output and target"):
        gk.metrics.get(len)
    with pytest.raises(ZeroDivisionError):
        gk.metrics.get(lambda output, target: 1 / 0).update(LOGITS, CLASSES)
