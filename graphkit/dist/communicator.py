"""What the key-value store and the trainer ask of a group of processes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np


class Communicator(Protocol):
    """A group of processes that call every collective in the same order."""

    rank: int
    size: int
    steps: int  # that this process has begun, for errors

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this process gave to be exchanged with other hosts."""
        ...

    def agree(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        """Wait until every process is about to make the same call with arrays of the same types.

        Raises RuntimeFailure in all processes, naming ranks and steps, where they are not. The collectives below take
        for granted that they are.
        """
        ...

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The elementwise sum over all processes, in a new array of the same dtype and shape, or written into `out`."""
        ...

    def allgather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, one behind the other along a new first axis; all pass one of the same type."""
        ...

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """The root's array, in a new array; all processes pass one of the same dtype and shape."""
        ...

    def barrier(self) -> None: ...

    def working(self) -> AbstractContextManager[None]:
        """What takes long, and others may wait for, goes on meanwhile: this process has not stalled."""
        ...


def placed(result: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """The result, written into `out` when given."""
    if out is None:
        return result
    np.copyto(out, result)
    return out


class LocalCommunicator:
    """A group of one process."""

    rank = 0
    size = 1
    steps = 0
    sent_between_hosts = 0

    def agree(self, call: str, arrays: Sequence[np.ndarray] = ()) -> None:
        return None

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return placed(array.copy() if out is None else array, out)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        return array[None].copy()

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        return array.copy()

    def barrier(self) -> None:
        return None

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()
