"""What carries a channel between processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np


class Links(Protocol):
    """What carries a channel: exchanges of small messages, sums, and signs of life."""

    rank: int
    size: int
    steps: int

    def tell(self, mine: bytes) -> list[bytes]:
        """The messages of all processes, all of one length."""
        ...

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...
    def allgather(self, array: np.ndarray) -> np.ndarray: ...
    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Begin a sum: something with a method `Test`, and where the sum will be, which may be `out`."""
        ...

    def doing(self, call: bytes) -> None:
        """This process goes on, with this call."""
        ...

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]:
        """The others are awaited meanwhile: to go on, or only to be there."""
        ...

    def lost(self) -> str | None:
        """Why another process is given up; None as long as there is hope."""
        ...
