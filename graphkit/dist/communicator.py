"""What the key-value store and the trainer ask of a group of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from graphkit.dist.hosts.group import Levels
from graphkit.dist.rounds.posted import Action, Pending, alone, placed
from graphkit.dist.wire.transfers import Messages
from graphkit.errors import UsageError
from graphkit.text import short_repr


class Communicator(Protocol):
    """A group of processes that do things together."""

    rank: int
    size: int
    local: int  # the number of this process among those of its host
    steps: int  # that this process has begun, for errors

    @property
    def sent_between_hosts(self) -> int:
        """Bytes that this process gave to be exchanged with other hosts."""
        ...

    @property
    def levels(self) -> Levels | None:
        """What actions do inside of a host, and then between hosts; None where that saves nothing."""
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
        """Take part in a call with arrays of these types, once every process does; `action` is done then by all.

        Calls of equal names are done in their order. Of others those of higher priority are, where there is a choice.
        later: a thread does it; else the caller that waits for the result. operation: names what the action does, if
        calls of this name may do different things. Raises RuntimeFailure, naming ranks and steps, when the processes do
        not go on together; so does waiting.
        """
        ...

    def perform(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        operation: str = "",
    ) -> Any:
        """The same at once: what the action returns."""
        ...

    def flush(self) -> None:
        """Wait for all that was posted."""
        ...

    # The collectives, which only actions call.

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The elementwise sum over all processes, in a new array of the same dtype and shape, or written into `out`."""
        ...

    def allgather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all processes, one behind the other along a new first axis; all pass one of the same type."""
        ...

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        """This process's slice of the sum over all processes, from its bound to the next; the array is a vector."""
        ...

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """The bytes of each process, of which there are so many by rank; they are at multiples of 8 in memory."""
        ...

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """The root's array, in a new array; all processes pass one of the same dtype and shape."""
        ...

    @property
    def messages(self) -> Messages:
        """From this process to another one."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """What takes long, and others may wait for, goes on meanwhile: this process has not stalled."""
        ...

    def running(self, code: str) -> AbstractContextManager[None]:
        """Code of the user's runs meanwhile, which `code` names for errors: others do not wait for it for ever."""
        ...

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]:
        """The others are awaited meanwhile: to go on, or only to be there."""
        ...

    def lost(self) -> str | None:
        """Why another process is given up that was awaited for long enough; None as long as there is hope."""
        ...

    def fail(self, reason: str) -> None:
        """Nothing is done together from now on: whoever waits here, or comes to a call, is told the reason."""
        ...


class LocalCommunicator:
    """A group of one process."""

    rank = 0
    size = 1
    local = 0
    steps = 0
    sent_between_hosts = 0
    levels = None

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
        return alone(call, action)

    def perform(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        operation: str = "",
    ) -> Any:
        return alone(call, action).wait()

    def flush(self) -> None:
        return None

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return placed(array.copy() if out is None else array, out)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        return array[None].copy()

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        return array.copy()

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        return [data.copy()]

    def broadcast(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        return array.copy()

    @property
    def messages(self) -> Messages:
        raise UsageError("a local store has no other process to send messages to")

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def running(self, code: str) -> AbstractContextManager[None]:
        return nullcontext()

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def lost(self) -> str | None:
        return None

    def fail(self, reason: str) -> None:
        raise UsageError(f"a local store has no other process to notify: {reason}")

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield f"rank {self.rank} of {self.size}"
