"""What the key-value store and the trainer ask of a group of processes."""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Communicator(Protocol):
    """A group of processes that call every collective in the same order."""

    rank: int
    size: int

    def allreduce(self, array: np.ndarray) -> np.ndarray:
        """The elementwise sum over all processes, in a new array of the same dtype and shape."""
        ...

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """The root's array, in a new array; all processes pass one of the same dtype and shape."""
        ...

    def barrier(self) -> None: ...


class LocalCommunicator:
    """A group of one process."""

    rank = 0
    size = 1

    def allreduce(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        return array.copy()

    def barrier(self) -> None:
        return None
