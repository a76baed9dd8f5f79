"""Which work beside the program is worth a worker of the dependency engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# To wake a worker, to pass the GIL there and back, and to take a core from the team that runs the program costs a short
# step about 0.06 ms (bench/input_pipeline.py); shorter work is done sooner on the thread that asks for it.
WORTH_SECONDS = 0.2e-3


class Handoff:
    """Watches how long some repeated work takes, wherever it is done."""

    def __init__(self) -> None:
        # Two, so that one call that the system held up decides nothing.
        self._latest: deque[float] = deque((0.0, 0.0), maxlen=2)

    def timed(self, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._latest.append(time.perf_counter() - start)

    @property
    def pays(self) -> bool:
        """Whether the work took long, the last two times."""
        return min(self._latest) > WORTH_SECONDS
