"""Metrics over a stream of batches: `update(output, target)`, then `value`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from graphkit.errors import InputError, UsageError, did_you_mean


class Metric(Protocol):
    """`update` sees the model's first output and the first target of a batch."""

    name: str

    def reset(self) -> None: ...
    def update(self, output: np.ndarray, target: np.ndarray) -> None: ...
    @property
    def value(self) -> float: ...


class _Average:
    """A sum of per-sample scores over a count; NaN before the first update."""

    name = ""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total = 0.0
        self.count = 0

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else float("nan")

    def add(self, scores: np.ndarray) -> None:
        self.total += float(np.sum(scores, dtype=np.float64))
        self.count += scores.size


class Accuracy(_Average):
    """Share of samples whose largest output is at the target class. output: [..., classes]; target: ints [...]."""

    name = "accuracy"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        _check_classes(self.name, output, target)
        self.add(np.argmax(output, axis=-1) == target)


class TopK(_Average):
    """Share of samples whose target class is among the `k` largest outputs; of equal ones the lower class counts first.

    output: [..., classes]; target: ints [...].
    """

    def __init__(self, k: int = 5) -> None:
        if k < 1:
            raise UsageError(f"top-k accuracy needs k of at least 1, not {k}")
        self.k = k
        self.name = f"top{k}"
        super().__init__()

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        _check_classes(self.name, output, target)
        at_target = np.take_along_axis(output, target[..., None].astype(np.int64), axis=-1)
        earlier = np.arange(output.shape[-1]) < target[..., None]
        rank = np.sum((output > at_target) | ((output == at_target) & earlier), axis=-1)
        self.add((rank < self.k) & np.isfinite(at_target[..., 0]))


class F1:
    """F1 = 2 TP / (2 TP + FP + FN) of predicted classes (van Rijsbergen, 1979); a class without any of them has 0.

    output: [..., classes] for int targets [...]: of more than two classes the mean over those that occur ("macro"), of
    two that of class 1 ("binary"); or one logit per sample, which predicts class 1 where it is above 0.
    """

    name = "f1"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._hits = self._predicted = self._actual = np.zeros(0, np.int64)

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        if output.ndim == target.ndim + 1 and output.shape[-1] > 1:
            _check_classes(self.name, output, target)
            classes = output.shape[-1]
            predicted = np.argmax(output, axis=-1)
        else:
            classes, predicted = 2, (_scores(self.name, output, target) > 0).astype(np.int64)
        given, found = np.asarray(target).reshape(-1).astype(np.int64), predicted.reshape(-1)
        counts = [np.bincount(v, minlength=classes) for v in (given[given == found], found, given)]
        if self._hits.size:
            counts = [a + b for a, b in zip(counts, (self._hits, self._predicted, self._actual), strict=True)]
        self._hits, self._predicted, self._actual = counts

    @property
    def value(self) -> float:
        total = self._predicted + self._actual
        if not np.any(total):
            return float("nan")
        scores = 2 * self._hits / np.maximum(total, 1)
        return float(scores[1] if len(scores) == 2 else np.mean(scores[total > 0]))


class AUC:
    """Area under the ROC curve: the share of pairs (positive, negative) in which the positive scores higher.

    Ties count half (Hanley and McNeil, 1982). output: one score per sample, or [..., 2] logits, of which the
    difference counts; target: 0 or 1. All scores are kept. NaN while one of the two classes is missing.
    """

    name = "auc"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._seen: list[tuple[np.ndarray, np.ndarray]] = []

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        if output.ndim == target.ndim + 1 and output.shape[-1] == 2:
            scores = (output[..., 1].astype(np.float64) - output[..., 0]).reshape(-1)
        else:
            scores = _scores(self.name, output, target).astype(np.float64)
        self._seen.append((scores, np.asarray(target).reshape(-1) > 0))

    @property
    def value(self) -> float:
        if not self._seen:
            return float("nan")
        scores = np.concatenate([s for s, _ in self._seen])
        positive = np.concatenate([t for _, t in self._seen])
        positives = int(positive.sum())
        pairs = positives * (len(positive) - positives)
        if not pairs or np.isnan(scores).any():
            return float("nan")
        # The rank of equal scores is the mean of the places that they take.
        _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
        rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        return float((rank[positive].sum() - positives * (positives + 1) / 2) / pairs)


class Perplexity(_Average):
    """exp of the mean of -log softmax(output)[target]. output: logits [..., classes]; target: ints [...]."""

    name = "perplexity"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        _check_classes(self.name, output, target)
        logits = output.astype(np.float64)
        logits = logits - logits.max(axis=-1, keepdims=True)
        chosen = np.take_along_axis(logits, target[..., None].astype(np.int64), axis=-1)[..., 0]
        self.add(np.log(np.exp(logits).sum(axis=-1)) - chosen)

    @property
    def value(self) -> float:
        return float(np.exp(super().value))


class MeanSquaredError(_Average):
    """Mean of (output - target)^2."""

    name = "mse"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        self.add(np.square(output.astype(np.float64) - target))


class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of (output - target)^2 over all elements of all batches."""

    name = "rmse"

    @property
    def value(self) -> float:
        return float(np.sqrt(super().value))


class MeanAbsoluteError(_Average):
    """Mean of |output - target|."""

    name = "mae"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        self.add(np.abs(output.astype(np.float64) - target))


def _check_classes(name: str, output: np.ndarray, target: np.ndarray) -> None:
    if output.ndim != target.ndim + 1 or output.shape[:-1] != target.shape:
        raise InputError(
            f"{name}: output {list(output.shape)} needs class targets of one rank less, not {list(target.shape)}"
        )


def _scores(name: str, output: np.ndarray, target: np.ndarray) -> np.ndarray:
    """One score per sample, flat: [...] or [..., 1] for targets [...]."""
    if output.size != target.size:
        raise InputError(
            f"{name}: output {list(output.shape)} is not one score for each target of {list(target.shape)}"
        )
    return output.reshape(-1)


_METRICS: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "top5": TopK,
    "f1": F1,
    "auc": AUC,
    "perplexity": Perplexity,
    "mse": MeanSquaredError,
    "rmse": RootMeanSquaredError,
    "mae": MeanAbsoluteError,
}


def names() -> list[str]:
    return list(_METRICS)


def get(spec: Any) -> Metric:
    """A fresh metric by name (`top<k>` for any k), or `spec` itself when it is one."""
    if not isinstance(spec, str):
        spec.reset()
        metric: Metric = spec
        return metric
    if (found := re.fullmatch(r"top(\d+)", spec)) is not None:
        return TopK(int(found[1]))
    if spec not in _METRICS:
        raise UsageError(f"unknown metric {spec!r}{did_you_mean(spec, _METRICS)}")
    return _METRICS[spec]()


def get_all(specs: Sequence[Any]) -> list[Metric]:
    return [get(s) for s in specs]
