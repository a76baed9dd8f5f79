"""The result of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.inference.class_scores import ClassScores, class_scores
from graphkit.inference.scoring import BINS, Calibration
from graphkit.text import quantity, short_repr

if TYPE_CHECKING:
    from graphkit.data import Dataset, IterableDataset


@dataclass(frozen=True)
class WorstSample:
    """A sample with one of the largest losses.

    Attributes:
        index: Position of the sample in the data, from 0.
        name: The file of an image, or the name that the data give to the sample; None for samples without names.
        loss: For classes, -log of the probability of the target; for yes or no and labels, the binary cross-entropy;
            for numbers, the squared error. If a sample has several targets, it is the mean.
        target, predicted: A class name or a number; None if the sample has several targets.
        probability: Probability of the predicted class; None for numbers and several targets.
    """

    index: int
    name: str | None
    loss: float
    target: str | float | None
    predicted: str | float | None
    probability: float | None


@dataclass(frozen=True)
class Evaluation:
    """The result of `gk.evaluate`.

    Attributes:
        model: Name of the model.
        data: Name of the data.
        output: Name of the output that was compared with the targets.
        task: "classification", "binary classification", "multi-label" or "regression".
        loss: The name of the loss, with its options.
        engine: "graphkit" or "onnxruntime".
        samples: Number of samples.
        seconds: Time that the engine took for all samples.
        metrics: Numbers by name; `loss` is the first one.
        classes: Names of the classes; empty if targets are not classes.
        confusion: int64 [classes, classes]: how often a target (row) was predicted as a class (column). None if the
            targets are not classes, or if there are more than 1,000 classes.
        calibration: Probabilities compared with the share of correct predictions; None if targets are not classes.
        worst: The samples with the largest losses, the largest first.
        nonfinite: Number of samples for which the output contains NaN or infinity.
        notes: Sentences about the data, for example that classes were matched by name.
        pairs: For a regression, float64 [2, K]: target and prediction of up to 1,500 samples. Otherwise None.
        dataset: The data, with the class numbers of the model.
    """

    model: str
    data: str
    output: str
    task: str
    loss: str
    engine: str
    samples: int
    seconds: float
    metrics: Mapping[str, float]
    classes: tuple[str, ...] = ()
    confusion: np.ndarray | None = None
    calibration: Calibration | None = None
    worst: tuple[WorstSample, ...] = ()
    nonfinite: int = 0
    notes: tuple[str, ...] = ()
    pairs: np.ndarray | None = None
    dataset: Dataset | IterableDataset | None = field(default=None, compare=False)

    @property
    def class_scores(self) -> list[ClassScores]:
        """Precision, recall, F1 and number of samples of each class; empty without a confusion matrix."""
        return [] if self.confusion is None else class_scores(self.confusion, self.classes)

    @property
    def calibration_error(self) -> float:
        """The expected calibration error with 15 bins; NaN if the targets are not classes."""
        return float("nan") if self.calibration is None else self.calibration.error

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data, for JSON. Numbers that do not exist are None."""
        return {
            "model": self.model, "data": self.data, "output": self.output, "task": self.task, "loss": self.loss,
            "engine": self.engine, "samples": self.samples, "seconds": self.seconds, "metrics": dict(self.metrics),
            "classes": [
                {name: _number(value) for name, value in asdict(score).items()} for score in self.class_scores
            ],
            "confusion": None if self.confusion is None else self.confusion.tolist(),
            "calibration": None if self.calibration is None else _calibration(self.calibration),
            "worst": [asdict(sample) for sample in self.worst],
            "nonfinite": self.nonfinite, "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.model)
        yield f"{quantity(self.samples, 'sample')} of {self.data}"
        yield from (f"{name} {value:.4g}" for name, value in self.metrics.items())


def _calibration(found: Calibration) -> dict[str, Any]:
    bins = [
        {
            "from": i / BINS, "to": (i + 1) / BINS, "count": int(found.count[i]),
            "probability": _number(float(found.probability[i])), "accuracy": _number(float(found.accuracy[i])),
        }
        for i in range(BINS)
    ]  # fmt: skip
    return {"expected_error": found.error, "bins": bins}


def _number(value: Any) -> Any:
    """Return None for NaN: the quotient of a class or bin without samples."""
    return None if isinstance(value, float) and math.isnan(value) else value
