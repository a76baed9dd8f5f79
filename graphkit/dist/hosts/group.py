"""Sums and copies among some processes of a job: all of them, those of a host, or one of each host."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

# Waits for a request; the objects that it uses are named, and kept as long as it may write to them.
Complete: TypeAlias = Callable[..., None]

# Larger sums go in parts of so many bytes: MPI's calls that do not block cut nothing themselves.
PART = 16 << 20


class Group(Protocol):
    """Some processes of a job, of which each calls the same; `rank` counts among them."""

    rank: int
    size: int

    def sum_in_first(self, array: np.ndarray) -> np.ndarray | None:
        """The elementwise sum in a new array, in the first of them; None in the others."""
        ...

    def allgather(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all, one behind the other along a new first axis; all pass one of the same type."""
        ...

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """The bytes of each, of which there are so many by rank; they are at multiples of 8 in memory."""
        ...

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """The array of the first, in a new one; all pass one of the same dtype and shape."""
        ...


class Levels(NamedTuple):
    """Two levels of a job over several hosts, of which one has several processes.

    What goes `inside` of a host first, and is then exchanged by the `leaders` of all hosts, of which this process may
    be one, crosses between hosts as if each had one process. leading: the leaders' ranks in the job.
    """

    inside: Group
    leaders: Group | None
    leading: tuple[int, ...]


class MpiGroup:
    """The processes of a communicator of MPI's. given: called with the bytes that are brought to all of them."""

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
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def begins_of(sizes: Sequence[int]) -> list[int]:
    """Where parts of so many bytes, one behind the other, begin; the last is the end of all."""
    return [0, *itertools.accumulate(sizes)]


def parts_of(data: np.ndarray, begins: Sequence[int]) -> list[np.ndarray]:
    """The parts of bytes, at multiples of 8 in memory."""
    parts = [data[begin:end] for begin, end in itertools.pairwise(begins)]
    return [part.copy() if begin % 8 else part for part, begin in zip(parts, begins, strict=False)]
