"""The speed of an epoch, and the share of time spent waiting for other processes."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """From now on. waited: the seconds for which this process has waited for others so far."""

    def __init__(self, waited: Callable[[], float]):
        self._waited = waited
        self._before = waited()
        self._start = time.monotonic()
        self._samples = 0
        self._lap = (self._start, 0)

    def add(self, samples: int) -> None:
        """Of all processes."""
        self._samples += samples

    def lap(self) -> float:
        """Samples per second since the last call, or the beginning."""
        now = time.monotonic()
        (start, samples), self._lap = self._lap, (now, self._samples)
        return (self._samples - samples) / max(now - start, 1e-9)

    @property
    def seconds(self) -> float:
        return max(time.monotonic() - self._start, 1e-9)

    @property
    def waited(self) -> float:
        return self._waited() - self._before

    @property
    def samples_per_second(self) -> float:
        return self._samples / self.seconds

    def __str__(self) -> str:
        return f"{self.samples_per_second:.4g} samples/s, waiting {self.waited / self.seconds:.0%}"
