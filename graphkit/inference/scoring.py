"""Statistics of predictions, added up batch by batch: confusion matrix, calibration, the worst samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.inference.task import BINARY, CLASSES, LABELS, REGRESSION, Task

# With more classes, there is no confusion matrix.
MOST_CLASSES = 1_000
# Number of equal-width bins of the expected calibration error, as in Guo et al. (2017).
BINS = 15
# Largest number of pairs (target, prediction) that a regression keeps for a plot.
PAIRS = 1_500


def logits_of(task: Task, scores: np.ndarray) -> np.ndarray:
    """Return scores as logits, in their type. Probabilities 0 (and 1 for yes or no) become large finite logits."""
    if not task.probabilities or task.kind == REGRESSION:
        return scores
    tiny, below_one = np.finfo(scores.dtype).tiny, 1.0 - np.finfo(scores.dtype).epsneg
    with np.errstate(invalid="ignore"):
        if task.kind == CLASSES:
            return np.asarray(np.log(np.maximum(scores, tiny)))
        bounded = np.clip(scores, tiny, below_one)
        return np.asarray(np.log(bounded) - np.log1p(-bounded))


def log_probabilities(task: Task, logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities of classes along a last axis, float64. See `logits_of`."""
    values = logits.astype(np.float64)
    if task.kind != CLASSES:
        return np.stack([-np.logaddexp(0.0, values), -np.logaddexp(0.0, -values)], axis=-1)
    with np.errstate(invalid="ignore"):
        values = values - values.max(axis=-1, keepdims=True)
        return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True)
class Calibration:
    """How far probabilities of predicted classes are from the share of correct predictions (Guo et al., 2017).

    Predictions are divided into BINS bins of equal width by the probability p of the predicted class: bin i contains
    i / BINS < p <= (i + 1) / BINS.

    Attributes:
        count: int64 [BINS], number of predictions in each bin.
        probability: float64 [BINS], mean probability of the predicted class; NaN for an empty bin.
        accuracy: float64 [BINS], share of correct predictions; NaN for an empty bin.
        error: Expected calibration error: sum of count * |accuracy - probability| over all bins, divided by the number
            of predictions. NaN if a probability is not finite.
    """

    count: np.ndarray
    probability: np.ndarray
    accuracy: np.ndarray
    error: float


class CalibrationSum:
    """Adds up the bins of a Calibration."""

    def __init__(self) -> None:
        self._count = np.zeros(BINS, np.int64)
        self._sums = np.zeros((2, BINS), np.float64)
        self._finite = True

    def add(self, probability: np.ndarray, correct: np.ndarray) -> None:
        """Add predictions: probability of the predicted class, float64 [N], and whether it is the target, bool [N]."""
        finite = np.isfinite(probability)
        self._finite &= bool(finite.all())
        probability, correct = probability[finite], correct[finite]
        bins = np.clip(np.ceil(probability * BINS).astype(np.int64) - 1, 0, BINS - 1)
        self._count += np.bincount(bins, minlength=BINS)
        self._sums += [np.bincount(bins, weights, BINS) for weights in (probability, correct.astype(np.float64))]

    def result(self) -> Calibration:
        with np.errstate(invalid="ignore"):
            probability, accuracy = self._sums / self._count
        gaps = np.abs(np.subtract(*self._sums))  # count * |accuracy - probability| of each bin
        error = float(gaps.sum() / self._count.sum()) if self._finite and self._count.any() else float("nan")
        return Calibration(self._count, probability, accuracy, error)


@dataclass(frozen=True)
class Worst:
    """The samples with the largest losses, the largest first. NaN counts as largest.

    Attributes:
        index: int64 [K], position of each sample in the data.
        loss: float64 [K].
        target, predicted, probability: float64 [K], of samples with one target; NaN for others. Classes are numbers;
            `probability` is that of the predicted class.
    """

    index: np.ndarray
    loss: np.ndarray
    target: np.ndarray
    predicted: np.ndarray
    probability: np.ndarray


class WorstSamples:
    """Keeps the `count` samples with the largest losses."""

    def __init__(self, count: int):
        self._count = count
        self._columns = np.zeros((5, 0), np.float64)

    def add(self, *columns: np.ndarray) -> None:
        """Add samples. columns: those of Worst, in their order."""
        whole = np.concatenate([self._columns, np.stack(columns).astype(np.float64)], axis=1)
        loss = np.where(np.isnan(whole[1]), np.inf, whole[1])
        self._columns = whole[:, np.lexsort((whole[0], -loss))[: self._count]]

    def result(self) -> Worst:
        return Worst(self._columns[0].astype(np.int64), *self._columns[1:])


class Scoring:
    """Adds up the results of batches for a task.

    Args:
        task: The task.
        width: Number of classes; 0 if the targets are not classes.
        worst: Number of samples with the largest losses to keep.
        total: Number of samples, if known.
        flat: Whether every target is a sample, as in running text. Otherwise samples are counted along the first axis.
    """

    def __init__(self, task: Task, width: int, *, worst: int, total: int | None, flat: bool):
        self._task, self._width, self._flat = task, width, flat
        self.samples = self.targets = self.nonfinite = 0
        self.confusion = np.zeros((width, width), np.int64) if 0 < width <= MOST_CLASSES else None
        self._calibration = CalibrationSum()
        self._worst = WorstSamples(worst)
        self._every = 1 if total is None else max(1, -(-total // PAIRS))
        self._pairs: list[np.ndarray] = []
        self._kept = 0

    def add(self, scores: np.ndarray, target: np.ndarray, index: np.ndarray) -> None:
        """Add a batch: scores as `Task.scores` returns them, their targets, and the positions of the samples."""
        logits = logits_of(self._task, scores)
        if self._task.of_classes:
            columns = self._classes(scores, logits, target.astype(np.int64))
        else:
            columns = self._numbers(logits, target)
        finite = np.isfinite(scores).all(axis=-1) if self._task.kind == CLASSES else np.isfinite(scores)
        if self._flat:
            finite, columns = finite.reshape(-1), [column.reshape(-1) for column in columns]
        else:
            finite, columns = finite.reshape(len(finite), -1).all(axis=1), _by_sample(columns)
        self.nonfinite += int(np.count_nonzero(~finite))
        self.samples += len(finite)
        self.targets += target.size
        self._worst.add(index, *columns)
        self._keep_pairs(index, columns[1], columns[2])

    def _classes(self, scores: np.ndarray, logits: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        log_p = log_probabilities(self._task, logits)
        if self._task.kind == BINARY:
            predicted = (scores > (0.5 if self._task.probabilities else 0.0)).astype(np.int64)
        else:
            predicted = np.argmax(scores, axis=-1)
        target = target.reshape(predicted.shape)
        at_target, at_predicted = (
            np.take_along_axis(log_p, p[..., None], axis=-1)[..., 0] for p in (target, predicted)
        )
        if self.confusion is not None:
            pairs = np.bincount((target * self._width + predicted).reshape(-1), minlength=self._width**2)
            self.confusion += pairs.reshape(self._width, self._width)
        probability = np.exp(at_predicted)
        self._calibration.add(probability.reshape(-1), (target == predicted).reshape(-1))
        return [-at_target, target, predicted, probability]

    def _numbers(self, logits: np.ndarray, target: np.ndarray) -> list[np.ndarray]:
        outputs, goal = logits.astype(np.float64), target.astype(np.float64)
        if self._task.kind == LABELS:
            log_p = log_probabilities(self._task, logits)
            loss = -(goal * log_p[..., 1] + (1.0 - goal) * log_p[..., 0])
        else:
            loss = np.square(outputs - goal)
        return [loss, goal, outputs, np.full(loss.shape, np.nan)]

    def _keep_pairs(self, index: np.ndarray, target: np.ndarray, predicted: np.ndarray) -> None:
        if self._task.kind != REGRESSION or self._kept >= PAIRS:
            return
        chosen = index % self._every == 0
        self._pairs.append(np.stack([target[chosen], predicted[chosen]])[:, : PAIRS - self._kept])
        self._kept += self._pairs[-1].shape[1]

    @property
    def pairs(self) -> np.ndarray | None:
        """Pairs of target and prediction, float64 [2, K], of some samples of a regression with one target each."""
        found = np.concatenate(self._pairs, axis=1) if self._pairs else np.zeros((2, 0))
        return found if found.size and not np.isnan(found[0]).all() else None

    def calibration(self) -> Calibration | None:
        return self._calibration.result() if self._task.of_classes else None

    def worst(self) -> Worst:
        return self._worst.result()


def _by_sample(columns: list[np.ndarray]) -> list[np.ndarray]:
    """Return one number per sample. Of several targets, the first column becomes their mean, the others NaN."""
    count = len(columns[0])
    if columns[0].size == count:
        return [column.reshape(-1) for column in columns]
    return [columns[0].reshape(count, -1).mean(axis=1), *(np.full(count, np.nan) for _ in columns[1:])]
