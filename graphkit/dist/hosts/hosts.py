"""Which processes of a job share a host, and sums and copies that cross the network between hosts once for each host.

A call over several hosts goes inside of each host first, through the memory that its processes share; one of them, the
leader, exchanges the result with the other leaders, and passes on what it got. Where each host has one process, or
there is but one host, MPI's own call is as good.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphkit.dist.hosts.group import Complete, Levels, MpiGroup, as_bytes, begins_of, parts_of


class Host(NamedTuple):
    """A host of the job: its name, and its ranks in order. The first one leads."""

    name: str
    ranks: tuple[int, ...]


class Hosts:
    """The hosts of a communicator's processes.

    world: the communicator, of which every process calls this. inside: that of the processes that share this one's
    host. complete: waits for a request. apart: processes are taken to be on different hosts, so many each; None for the
    hosts that there are.

    `all` are the hosts by their leaders' ranks, `index` is this process's. `sent` counts the bytes that this process
    gave to be exchanged between hosts. `levels`: None where MPI's own calls are as good.
    """

    def __init__(self, world: Any, inside: Any, in_place: Any, complete: Complete, apart: int | None):
        number = 0 if apart is None else world.rank // apart
        # Every process splits, whatever it was told of hosts: a split is a call of all of them.
        self.inside = inside.Split(number, world.rank)
        self._world, self._in_place, self._complete = world, in_place, complete
        name = socket.gethostname() if apart is None else f"{socket.gethostname()}:{number}"
        leader = self.inside.bcast(world.rank)
        found: dict[int, tuple[str, list[int]]] = {}
        for rank, (leads, named) in enumerate(world.allgather((leader, name))):
            found.setdefault(leads, (named, []))[1].append(rank)
        self.all = tuple(Host(named, tuple(ranks)) for _, (named, ranks) in sorted(found.items()))
        self.index = sorted(found).index(leader)
        self.leads = leader == world.rank
        # Of leaders among themselves; the others share one that they do not use.
        self.leaders = world.Split(0 if self.leads else 1, world.rank)
        self.several = len(self.all) > 1
        self.sent = 0
        self._everybody = MpiGroup(world, complete, self._give if self.several else _keep)
        self.levels: Levels | None = None
        if 1 < len(self.all) < world.size:
            leaders = MpiGroup(self.leaders, complete, self._give) if self.leads else None
            self.levels = Levels(
                MpiGroup(self.inside, complete, _keep), leaders, tuple(host.ranks[0] for host in self.all)
            )
        # Ranks host by host, and where each of them comes there.
        self._order = [rank for host in self.all for rank in host.ranks]
        self._places = sorted(range(world.size), key=self._order.__getitem__)

    def _give(self, size: int) -> None:
        self.sent += size

    def allreduce(self, source: np.ndarray, result: np.ndarray, in_place: bool) -> None:
        """The elementwise sum of contiguous arrays of one type, the same bits in all processes.

        in_place: both are one.
        """
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
        """Begin the same where it is one call, and do it where it is several; a request."""
        if self.levels is None:
            return self._start(source, result, in_place)
        self.allreduce(source, result, in_place)
        return _Done()

    def _start(self, source: np.ndarray, result: np.ndarray, in_place: bool) -> Any:
        self._count(source)
        return self._world.Iallreduce(self._in_place if in_place else source, result)

    def _count(self, source: np.ndarray) -> None:
        self.sent += source.nbytes if self.leads and self.several else 0

    def broadcast(self, data: np.ndarray, root: int) -> None:
        """The root's bytes, written into those of the others."""
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
        """The arrays of all processes, of one type, by rank along a new first axis."""
        if self.levels is None:
            return self._everybody.allgather(array)
        source = np.ascontiguousarray(array)
        found = self._host_by_host(as_bytes(source), [source.nbytes] * len(self._order))
        rows = found.view(source.dtype).reshape(len(self._order), *source.shape)
        return rows if self._in_order else rows[self._places]

    def allgather_parts(self, data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """The bytes of all processes, of which each has so many; they are at multiples of 8 in memory."""
        if self.levels is None:
            return self._everybody.allgather_parts(data, sizes)
        found = self._host_by_host(np.ascontiguousarray(data), sizes)
        parts = parts_of(found, begins_of([sizes[rank] for rank in self._order]))
        return [parts[place] for place in self._places]

    def _host_by_host(self, data: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
        """The bytes of all processes, one behind the other, in the order of the hosts."""
        whole = np.empty(sum(sizes), np.uint8)
        counts = [sum(sizes[rank] for rank in host.ranks) for host in self.all]
        begins = begins_of(counts)[:-1]
        if self.leads:
            own = [sizes[rank] for rank in self.all[self.index].ranks]
            here = whole[begins[self.index] : begins[self.index] + counts[self.index]]
            self._complete(self.inside.Igatherv(data, [here, (own, begins_of(own)[:-1])]), data, here)
            self._give(here.nbytes)
            layout = [whole, (counts, begins)]
            self._complete(self.leaders.Iallgatherv(self._in_place, layout), layout)
        else:
            self._complete(self.inside.Igatherv(data, None), data)
        self._complete(self.inside.Ibcast(whole), whole)
        return whole

    @property
    def _in_order(self) -> bool:
        """Whether the order of the hosts is that of the ranks."""
        return self._order == sorted(self._order)

    def reduce_scatter(self, source: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        """This process's slice of the sum of vectors, from its bound to the next."""
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


def _keep(size: int) -> None:
    """It stays on the host."""


class _Done:
    """A request of what is done."""

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        return True
