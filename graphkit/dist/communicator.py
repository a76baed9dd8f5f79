"""The interface of a group of processes, for the key-value store and the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from graphkit.dist.hosts.groups import Done, Levels
from graphkit.dist.progress.engine import ProgressEngine
from graphkit.dist.progress.pending import Action, Pending, placed
from graphkit.dist.wire.messages import Messages
from graphkit.errors import UsageError
from graphkit.text import short_repr


class Communicator(Protocol):
    rank: int
    size: int
    local: int  # number of this process on its host
    steps: int  # number of begun steps, for errors

    @property
    def sent_between_hosts(self) -> int: ...

    @property
    def levels(self) -> Levels | None:
        """Groups for collectives inside this host, then between hosts; None if two levels save nothing."""
        ...

    def post(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        later: bool = True,
        operation: str = "",
    ) -> Pending:
        """Post an operation: it runs once all processes have posted it. See `ProgressEngine.post`."""
        ...

    def perform(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        operation: str = "",
    ) -> Any: ...

    def flush(self) -> None: ...

    # Only actions may call the following collectives. Arrays have the same dtype and shape on all processes.

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return the elementwise sum over all processes, in a new array or in `out`."""
        ...

    def allgather(self, array: np.ndarray) -> np.ndarray: ...

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        """Return this process's slice of the sum of vectors. Slice r is bounds[r] to bounds[r + 1]."""
        ...

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]: ...

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray: ...

    @property
    def messages(self) -> Messages: ...

    def working(self) -> AbstractContextManager[None]:
        """Context of long work: other processes do not consider this one stalled."""
        ...

    def running(self, code: str) -> AbstractContextManager[None]:
        """Context in which user code runs. Errors contain its name, `code`, and others wait only until the timeout."""
        ...

    def waiting(self, for_progress: bool) -> AbstractContextManager[None]:
        """Context in which this process waits for others. A process that sends no heartbeats then counts as lost.

        for_progress: A process without progress counts as lost, too.
        """
        ...

    def lost(self) -> str | None:
        """Return why another process is considered lost, or None."""
        ...

    def depart(self, number: int) -> None:
        """Send a number to the other processes: whether this process can stop, and after which step.

        `graphkit.dist.job.departure` defines the numbers.
        """
        ...

    def departures(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the values that ranks passed to `depart`, and their numbers of steps, by job rank.

        None if this process does not receive the heartbeats of all processes.
        """
        ...

    def fail(self, reason: str) -> None:
        """Stop all collectives. Threads that wait for a collective, or start one, get the reason as an error."""
        ...


class LocalCommunicator:
    rank = 0
    size = 1
    local = 0
    steps = 0
    sent_between_hosts = 0
    levels = None

    def __init__(self) -> None:
        self._departure = 0
        self.engine = ProgressEngine(self)
        self.post, self.perform, self.flush = self.engine.post, self.engine.perform, self.engine.flush

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return placed(array.copy() if out is None else array, out)

    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        return Done(), self.allreduce(array, out)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        return array[None].copy()

    def allgather_bytes(self, mine: bytes) -> list[bytes]:
        return [mine]

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        return array.copy()

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        return [data.copy()]

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        return array.copy()

    @property
    def messages(self) -> Messages:
        raise UsageError("a local store has no other process to send messages to")

    def doing(self, call: bytes) -> None: ...

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def running(self, code: str) -> AbstractContextManager[None]:
        return nullcontext()

    def waiting(self, for_progress: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def lost(self) -> str | None:
        return None

    def depart(self, number: int) -> None:
        self._departure = number

    def departures(self) -> tuple[np.ndarray, np.ndarray] | None:
        return np.array([self._departure]), np.array([self.steps])

    def fail(self, reason: str) -> None:
        raise UsageError(f"a local store has no other process to notify: {reason}")

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"rank {self.rank} of {self.size}"
