"""What the progress engine needs to reach other ranks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np


class Links(Protocol):
    """Exchanges of small messages, sums, and heartbeats."""

    rank: int
    size: int
    steps: int

    def tell(self, mine: bytes) -> list[bytes]:
        """Return the messages of all ranks. All have the same length."""
        ...

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...
    def allgather(self, array: np.ndarray) -> np.ndarray: ...
    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Start a sum. Return a request with a method `Test`, and the array for the sum, which may be `out`."""
        ...

    def doing(self, call: bytes) -> None:
        """Report progress: this rank has reached this call."""
        ...

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]:
        """Context in which this rank waits for others: to make progress, or only to exist."""
        ...

    def lost(self) -> str | None:
        """Return why another rank is considered lost; None if none is."""
        ...
