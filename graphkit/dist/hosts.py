"""Which processes of a job share a host, and sums and copies that cross the network between hosts once for each host.

A call over several hosts goes inside of each host first, through the memory that its processes share; one of them, the
leader, exchanges the result with the other leaders, and passes on what it got. Where each host has one process, or
there is but one host, MPI's own call is as good.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

# Waits for a request; the objects that it uses are named, and kept as long as it may write to them.
Complete: TypeAlias = Callable[..., None]


class Host(NamedTuple):
    """A host of the job: its name, and its ranks in order. The first one leads."""

    name: str
    ranks: tuple[int, ...]


class Hosts:
    """The hosts of a communicator's processes.

    world: the communicator, of which every process calls this. inside: that of the processes that share this one's
    host. apart: processes are taken to be on different hosts, so many each; None for the hosts that there are.

    `all` are the hosts by their leaders' ranks, `index` is this process's. `sent` counts the bytes that this process
    gave to be exchanged between hosts.
    """

    def __init__(self, world: Any, inside: Any, in_place: Any, apart: int | None):
        number = 0 if apart is None else world.rank // apart
        # Every process splits, whatever it was told of hosts: a split is a call of all of them.
        self.inside = inside.Split(number, world.rank)
        self._world, self._in_place = world, in_place
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
        # Several hosts, of which one has several processes.
        self.levels = 1 < len(self.all) < world.size
        self.sent = 0

    def allreduce(self, source: np.ndarray, result: np.ndarray, in_place: bool, complete: Complete) -> None:
        """The elementwise sum of contiguous arrays of one type, the same bits in all processes.

        in_place: both are one. complete: waits for a request, which uses these arrays.
        """
        if not self.levels:
            complete(self._start(source, result, in_place), source, result)
            return
        self._count(source)
        if self.leads:
            complete(self.inside.Ireduce(self._in_place if in_place else source, result), source, result)
            complete(self.leaders.Iallreduce(self._in_place, result), result)
        else:
            complete(self.inside.Ireduce(source, None), source)
        complete(self.inside.Ibcast(result), result)

    def start_allreduce(self, source: np.ndarray, result: np.ndarray, in_place: bool, complete: Complete) -> Any:
        """Begin the same where it is one call, and do it where it is several; a request."""
        if not self.levels:
            return self._start(source, result, in_place)
        self.allreduce(source, result, in_place, complete)
        return _Done()

    def _start(self, source: np.ndarray, result: np.ndarray, in_place: bool) -> Any:
        self._count(source)
        return self._world.Iallreduce(self._in_place if in_place else source, result)

    def _count(self, source: np.ndarray) -> None:
        self.sent += source.nbytes if self.leads and self.several else 0

    def broadcast(self, data: np.ndarray, root: int, complete: Complete) -> None:
        """The root's bytes, written into those of the others."""
        place = next(index for index, host in enumerate(self.all) if root in host.ranks)
        here = place == self.index
        self.sent += data.nbytes if here and self.leads and self.several else 0
        if not self.levels:
            complete(self._world.Ibcast(data, root=root), data)
            return
        if here:
            complete(self.inside.Ibcast(data, root=self.all[place].ranks.index(root)), data)
        if self.leads:
            complete(self.leaders.Ibcast(data, root=place), data)
        if not here:
            complete(self.inside.Ibcast(data), data)

    def allgather(self, source: np.ndarray, result: np.ndarray, complete: Complete) -> None:
        """The bytes of all processes, one behind the other."""
        self.sent += source.nbytes if self.several else 0
        complete(self._world.Iallgather(source, result), source, result)

    def reduce_scatter(self, source: np.ndarray, result: np.ndarray, counts: Sequence[int], complete: Complete) -> None:
        """This process's slice of the sum of vectors; so many elements for each."""
        self._count(source)
        complete(self._world.Ireduce_scatter(source, result, counts), source, result)

    def allgather_parts(
        self, source: np.ndarray, result: np.ndarray, sizes: Sequence[int], begins: Sequence[int], complete: Complete
    ) -> None:
        """The bytes of all processes, of which each has so many, from such places on."""
        self.sent += source.nbytes if self.several else 0
        complete(self._world.Iallgatherv(source, [result, (list(sizes), list(begins))]), source, result)


class _Done:
    """A request of what is done."""

    def Test(self) -> bool:  # noqa: N802 - MPI's name
        return True
