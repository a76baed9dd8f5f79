"""Decide which work is worth moving to a worker of the dependency engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# To wake a worker, and to pass the GIL there and back, costs a short step about 0.06 ms; work that computes also slows
# the threads that run the program, by up to half of what it takes itself (bench/input_pipeline.py). Shorter
# work is done sooner on the thread that asks for it.
WORTH_SECONDS = 0.5e-3


class Offload:
    """Watches how long some repeated work takes, wherever it is done; above `worth` seconds it pays to hand it over."""

    def __init__(self, worth: float = WORTH_SECONDS) -> None:
        self._worth = worth
        # Two, so that one call that the system held up decides nothing.
        self._latest: deque[float] = deque((0.0, 0.0), maxlen=2)

    def timed(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._latest.append(time.perf_counter() - start)

    @property
    def worthwhile(self) -> bool:
        """Whether the work took long, the last two times."""
        return min(self._latest) > self._worth
