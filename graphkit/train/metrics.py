"""Metrics over a stream of batches: `update(output, target)`, then `value`."""

from __future__ import annotations

from collections.abc import Sequence
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
        if output.ndim != target.ndim + 1:
            raise InputError(
                f"accuracy: output {list(output.shape)} needs class targets of one rank less, not {list(target.shape)}"
            )
        self.add(np.argmax(output, axis=-1) == target)


class MeanSquaredError(_Average):
    """Mean of (output - target)^2."""

    name = "mse"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        self.add(np.square(output.astype(np.float64) - target))


class MeanAbsoluteError(_Average):
    """Mean of |output - target|."""

    name = "mae"

    def update(self, output: np.ndarray, target: np.ndarray) -> None:
        self.add(np.abs(output.astype(np.float64) - target))


_METRICS: dict[str, type[_Average]] = {m.name: m for m in (Accuracy, MeanSquaredError, MeanAbsoluteError)}


def names() -> list[str]:
    return list(_METRICS)


def get(spec: Any) -> Metric:
    """A fresh metric by name, or `spec` itself when it is one."""
    if not isinstance(spec, str):
        spec.reset()
        metric: Metric = spec
        return metric
    if spec not in _METRICS:
        raise UsageError(f"unknown metric {spec!r}{did_you_mean(spec, _METRICS)}")
    return _METRICS[spec]()  # type: ignore[return-value]


def get_all(specs: Sequence[Any]) -> list[Metric]:
    return [get(s) for s in specs]
