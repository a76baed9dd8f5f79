"""Collectives among some processes of a job: all of them, those of one host, or one of each host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

# Waits for a request, given the objects that it uses, which stay alive as long as it may write to them.
Complete: TypeAlias = Callable[..., None]

# Larger sums are divided into parts of this many bytes, because MPI's non-blocking calls do not divide them.
PART = 16 << 20


class Group(Protocol):
    """Some processes of a job, all of which make the same calls. `rank` counts among them."""

    rank: int
    size: int

    def sum_in_first(self, array: np.ndarray) -> np.ndarray | None:
        """Return the elementwise sum in a new array on the first process; None on the others."""
        ...

    def allgather(self, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all processes along a new first axis. All pass one of the same type."""
        ...

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return the bytes of each process. sizes: their numbers, by rank. Each part is aligned to 8 bytes."""
        ...

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return the array of the first process, in a new one. All pass one of the same dtype and shape."""
        ...


class Levels(NamedTuple):
    """Two levels of communication, for a job over several hosts that have several processes.

    `inside` connects the processes of this host. `leaders` connects the first processes of all hosts; None on others.
    Data is combined inside each host first, so that it crosses the network once per host. leading: ranks of the
    leaders.
    """

    inside: Group
    leaders: Group | None
    leading: tuple[int, ...]


class MpiGroup:
    """The processes of an MPI communicator. given: called with the number of bytes that this process contributes."""

    def __init__(self, processes: Any, complete: Complete, given: Callable[[int], None]):
        self._processes, self._complete, self._given = processes, complete, given
        self.rank: int = processes.rank
        self.size: int = processes.size

    def sum_in_first(self, array: np.ndarray) -> np.ndarray | None:
        source = np.ascontiguousarray(array).reshape(-1)
        result = np.empty_like(source) if self.rank == 0 else None
        step = PART // source.itemsize
        for at in range(0, source.size, step):
            given = source[at : at + step]
            total = None if result is None else result[at : at + step]
            self._complete(self._processes.Ireduce(given, total), given, total)
        return None if result is None else result.reshape(array.shape)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        source = np.ascontiguousarray(array)
        self._given(source.nbytes)
        result = np.empty((self.size, *source.shape), source.dtype)
        # As bytes, so that every dtype travels.
        mine, all_ = as_bytes(source), as_bytes(result)
        self._complete(self._processes.Iallgather(mine, all_), mine, all_)
        return result

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        source = np.ascontiguousarray(data)
        self._given(source.nbytes)
        begins = begins_of(sizes)
        result = np.empty(begins[-1], np.uint8)
        layout = [result, (list(sizes), begins[:-1])]
        self._complete(self._processes.Iallgatherv(source, layout), source, layout)
        return parts_of(result, begins)

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        result = np.array(array, order="C", copy=True)
        data = as_bytes(result)
        self._complete(self._processes.Ibcast(data), data)
        return result


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the memory of a contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8)


def begins_of(sizes: Sequence[int]) -> list[int]:
    """Return where parts of these sizes begin if they are stored one after the other; the last number is the end."""
    return [0, *itertools.accumulate(sizes)]


def parts_of(data: np.ndarray, begins: Sequence[int]) -> list[np.ndarray]:
    """Return the parts of `data`, each aligned to 8 bytes."""
    parts = [data[begin:end] for begin, end in itertools.pairwise(begins)]
    return [part.copy() if begin % 8 else part for part, begin in zip(parts, begins, strict=False)]
