"""Precision, recall and F1 per class, and the most frequent confusions, from a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class; NaN where a denominator is 0.

    precision: TP / (TP + FP). recall: TP / (TP + FN). f1: 2 TP / (2 TP + FP + FN) (van Rijsbergen, 1979). count: number
    of samples with this target. predicted: number of samples for which this class was predicted.
    """

    name: str
    precision: float
    recall: float
    f1: float
    count: int
    predicted: int


def class_scores(confusion: np.ndarray, names: Sequence[str]) -> list[ClassScores]:
    """Return the scores of all classes. confusion: int64 [classes, classes], rows are targets."""
    right = np.diagonal(confusion).astype(np.float64)
    targets, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    with np.errstate(invalid="ignore"):
        precision, recall = right / predicted, right / targets
        f1 = 2 * right / (predicted + targets)
    return [
        ClassScores(name, float(precision[i]), float(recall[i]), float(f1[i]), int(targets[i]), int(predicted[i]))
        for i, name in enumerate(names)
    ]


def most_confused(confusion: np.ndarray, count: int) -> list[tuple[int, int, int]]:
    """Return (target, predicted, count) of the most frequent wrong pairs, the most frequent first."""
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:count]
    rows, columns = np.unravel_index(order, wrong.shape)
    return [(int(r), int(c), int(wrong[r, c])) for r, c in zip(rows, columns, strict=True) if wrong[r, c]]
