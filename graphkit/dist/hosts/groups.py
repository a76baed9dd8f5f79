"""Collectives that cross the network once per host.

Data is combined inside each host first, through shared memory. One process of each host, the leader, exchanges the
result with other leaders. With one host, or one process per host, MPI's own call is used.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from graphkit.dist.arrays import as_bytes
from graphkit.named_tuples import NamedTuple

# Waits for an MPI request. The further arguments are its buffers, which stay alive as long as MPI may write to them.
Complete: TypeAlias = Callable[..., None]

# Larger sums are divided into parts of this many bytes: MPI's non-blocking calls do not divide them.
PART = 16 << 20


class Group(Protocol):
    rank: int
    size: int

    def sum_in_first(self, array: np.ndarray) -> np.ndarray | None:
        """Return the elementwise sum in a new array on the first process; None on the others."""
        ...

    def allgather(self, array: np.ndarray) -> np.ndarray: ...

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Return the bytes of each process, aligned to 8 bytes. sizes: number of bytes, by rank."""
        ...

    def broadcast(self, array: np.ndarray) -> np.ndarray:
        """Return the array of the first process. All processes pass the same dtype and shape."""
        ...


class Levels(NamedTuple):
    """Two levels of communication, for a job with several hosts and more processes than hosts.

    `inside` connects the processes of this host, `leaders` the first process of every host (None on other processes).
    leading: ranks of the leaders.
    """

    inside: Group
    leaders: Group | None
    leading: tuple[int, ...]


class MpiGroup:
    """The processes of an MPI communicator. count: called with the number of bytes that this process all-gathers."""

    def __init__(self, processes: Any, complete: Complete, count: Callable[[int], None]):
        self._processes, self._complete, self._count = processes, complete, count
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
        self._count(source.nbytes)
        result = np.empty((self.size, *source.shape), source.dtype)
        mine, all_ = as_bytes(source), as_bytes(result)  # MPI lacks types for some dtypes
        self._complete(self._processes.Iallgather(mine, all_), mine, all_)
        return result

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        source = np.ascontiguousarray(data)
        self._count(source.nbytes)
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


def begins_of(sizes: Sequence[int]) -> list[int]:
    return [0, *itertools.accumulate(sizes)]


def parts_of(data: np.ndarray, begins: Sequence[int]) -> list[np.ndarray]:
    parts = [data[begin:end] for begin, end in itertools.pairwise(begins)]
    return [part.copy() if begin % 8 else part for part, begin in zip(parts, begins, strict=False)]


class Host(NamedTuple):
    """A host: its name and its ranks in order. The first rank is the leader."""

    name: str
    ranks: tuple[int, ...]


class Hosts:
    """The hosts of the processes of a communicator. Every process must create it.

    Args:
        ranks_per_host: Treat each group of this many ranks as a host; None: use the real hosts.

    Attributes:
        all: The hosts, in the order of their leaders' ranks.
        sent: Bytes that this process contributed to exchanges between hosts.
        levels: None with one host, or one process per host.
    """

    def __init__(self, world: Any, inside: Any, in_place: Any, complete: Complete, ranks_per_host: int | None):
        number = 0 if ranks_per_host is None else world.rank // ranks_per_host
        # Collective: every process must split.
        self.inside = inside.Split(number, world.rank)
        self._world, self._in_place, self._complete = world, in_place, complete
        name = socket.gethostname() if ranks_per_host is None else f"{socket.gethostname()}:{number}"
        leader = self.inside.bcast(world.rank)
        found: dict[int, tuple[str, list[int]]] = {}
        for rank, (leads, named) in enumerate(world.allgather((leader, name))):
            found.setdefault(leads, (named, []))[1].append(rank)
        self.all = tuple(Host(named, tuple(ranks)) for _, (named, ranks) in sorted(found.items()))
        self.index = sorted(found).index(leader)
        self.leads = leader == world.rank
        self.leaders = world.Split(0 if self.leads else 1, world.rank)
        self.several = len(self.all) > 1
        self.sent = 0
        self._flat = MpiGroup(world, complete, self._count_sent if self.several else _count_nothing)
        self.levels: Levels | None = None
        if 1 < len(self.all) < world.size:
            leaders = MpiGroup(self.leaders, complete, self._count_sent) if self.leads else None
            self.levels = Levels(
                MpiGroup(self.inside, complete, _count_nothing), leaders, tuple(host.ranks[0] for host in self.all)
            )
        # `_order`: the ranks, host by host. `_places`: the position of each rank in `_order`. `_in_order`: whether
        # `_order` is sorted.
        self._order = [rank for host in self.all for rank in host.ranks]
        self._places = sorted(range(world.size), key=self._order.__getitem__)
        self._in_order = self._order == list(range(world.size))

    def _count_sent(self, size: int) -> None:
        self.sent += size

    def allreduce(self, source: np.ndarray, result: np.ndarray, in_place: bool) -> None:
        """Sum contiguous arrays elementwise, with the same bits on all processes. in_place: both are one array."""
        if self.levels is None:
            self._complete(self._start(source, result, in_place), source, result)
            return
        self._count(source)
        if self.leads:
            self._complete(self.inside.Ireduce(self._in_place if in_place else source, result), source, result)
            self._complete(self.leaders.Iallreduce(self._in_place, result), result)
        else:
            self._complete(self.inside.Ireduce(source, None), source)
        self._complete(self.inside.Ibcast(result), result)

    def start_allreduce(self, source: np.ndarray, result: np.ndarray, in_place: bool) -> Any:
        """Start an all-reduce and return a request. With `levels`, it is complete when this method returns."""
        if self.levels is None:
            return self._start(source, result, in_place)
        self.allreduce(source, result, in_place)
        return Done()

    def _start(self, source: np.ndarray, result: np.ndarray, in_place: bool) -> Any:
        self._count(source)
        return self._world.Iallreduce(self._in_place if in_place else source, result)

    def _count(self, source: np.ndarray) -> None:
        self.sent += source.nbytes if self.leads and self.several else 0

    def broadcast(self, data: np.ndarray, root: int) -> None:
        place = next(index for index, host in enumerate(self.all) if root in host.ranks)
        here = place == self.index
        self.sent += data.nbytes if here and self.leads and self.several else 0
        if self.levels is None:
            self._complete(self._world.Ibcast(data, root=root), data)
            return
        if here:
            self._complete(self.inside.Ibcast(data, root=self.all[place].ranks.index(root)), data)
        if self.leads:
            self._complete(self.leaders.Ibcast(data, root=place), data)
        if not here:
            self._complete(self.inside.Ibcast(data), data)

    def allgather(self, array: np.ndarray) -> np.ndarray:
        if self.levels is None:
            return self._flat.allgather(array)
        source = np.ascontiguousarray(array)
        found = self._host_by_host(as_bytes(source), [source.nbytes] * len(self._order))
        rows = found.view(source.dtype).reshape(len(self._order), *source.shape)
        return rows if self._in_order else rows[self._places]

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        if self.levels is None:
            return self._flat.allgather_parts(data, sizes)
        found = self._host_by_host(np.ascontiguousarray(data), sizes)
        parts = parts_of(found, begins_of([sizes[rank] for rank in self._order]))
        return [parts[place] for place in self._places]

    def _host_by_host(self, data: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        whole = np.empty(sum(sizes), np.uint8)
        counts = [sum(sizes[rank] for rank in host.ranks) for host in self.all]
        begins = begins_of(counts)[:-1]
        if self.leads:
            own = [sizes[rank] for rank in self.all[self.index].ranks]
            here = whole[begins[self.index] : begins[self.index] + counts[self.index]]
            self._complete(self.inside.Igatherv(data, [here, (own, begins_of(own)[:-1])]), data, here)
            self._count_sent(here.nbytes)
            layout = [whole, (counts, begins)]
            self._complete(self.leaders.Iallgatherv(self._in_place, layout), layout)
        else:
            self._complete(self.inside.Igatherv(data, None), data)
        self._complete(self.inside.Ibcast(whole), whole)
        return whole

    def reduce_scatter(self, source: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        """Return this process's slice of the sum of vectors. Slice r is bounds[r] to bounds[r + 1]."""
        counts = np.diff(bounds).tolist()
        result = np.empty(counts[self._world.rank], source.dtype)
        self._count(source)
        if self.levels is None:
            self._complete(self._world.Ireduce_scatter(source, result, counts), source, result)
            return result
        if not self._in_order:
            source = np.concatenate([source[bounds[rank] : bounds[rank + 1]] for rank in self._order])
        summed = self.levels.inside.sum_in_first(source)
        own = [counts[rank] for rank in self.all[self.index].ranks]
        layout = None
        if summed is not None:
            of_hosts = [sum(counts[rank] for rank in host.ranks) for host in self.all]
            here = np.empty(of_hosts[self.index], source.dtype)
            self._complete(self.leaders.Ireduce_scatter(summed, here, of_hosts), summed, here)
            layout = [here, (own, begins_of(own)[:-1])]
        self._complete(self.inside.Iscatterv(layout, result), layout, result)
        return result


def _count_nothing(size: int) -> None: ...


class Done:
    def Test(self) -> bool:  # noqa: N802 - MPI's name
        return True
