"""Throughput, waiting time and replaced samples of an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np


class Throughput:
    """Measures samples per second, and the share of time spent waiting for other ranks. waited: returns the seconds
    waited so far.
    """

    def __init__(self, waited: Callable[[], float]):
        self._waited = waited
        self._waited_before = waited()
        self._start = time.monotonic()
        self._samples = 0
        self._lap = (self._start, 0)

    def add(self, samples: int) -> None:
        self._samples += samples

    def lap(self) -> float:
        now = time.monotonic()
        (start, samples), self._lap = self._lap, (now, self._samples)
        return (self._samples - samples) / max(now - start, 1e-9)

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._start, 1e-9)

    @property
    def waited(self) -> float:
        return self._waited() - self._waited_before

    @property
    def samples_per_second(self) -> float:
        return self._samples / self.seconds

    def __str__(self) -> str:
        return f"{self.samples_per_second:.4g} samples/s, waiting {self.waited / self.seconds:.0%}"


class ReplacedSamples:
    """A metric that counts the samples that replaced damaged ones (`on_damaged="skip"`).

    It is part of checkpoints within an epoch, and is summed over processes.
    """

    name = "data.damaged"

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.count = 0

    def update(self, output: np.ndarray, target: np.ndarray) -> None: ...

    def add(self, replaced: int) -> None:
        self.count += replaced

    @property
    def value(self) -> int:
        return self.count

    def state(self) -> dict[str, np.ndarray]:
        return {"count": np.asarray(self.count, np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.count = int(state["count"])

    def merge(self, state: Mapping[str, np.ndarray]) -> None:
        self.count += int(state["count"])
