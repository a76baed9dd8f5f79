"""KVStore: arrays by key, shared by the processes of a job (the interface of MXNet's).

`local` lives in one process. `dist_sync` sums what all processes push: every process pushes the same keys.
`dist_async`, `dist_bounded` and `elastic` keep values on servers, which change them as pushes come.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphkit import config
from graphkit.dist.arguments import whole
from graphkit.dist.communicator import LocalCommunicator
from graphkit.dist.job.start import checked_timeout
from graphkit.dist.rounds.channel import OVERLAPS
from graphkit.dist.store import KVStore
from graphkit.dist.sums.rows import RowSparse
from graphkit.errors import UsageError, did_you_mean
from graphkit.signatures import check_argument

if TYPE_CHECKING:
    from graphkit.dist.job.mpi import MpiCommunicator

__all__ = ["REMOTE", "TYPES", "KVStore", "RowSparse", "create"]

# Those with servers.
REMOTE = ("dist_async", "dist_bounded", "elastic")
TYPES = ("local", "dist_sync", *REMOTE)
# What MXNet calls them, and the store that is meant here.
_ALIASES = {
    "device": "local", "dist": "dist_sync", "dist_device_sync": "dist_sync", "dist_sync_device": "dist_sync",
    "dist_device_async": "dist_async", "dist_async_device": "dist_async",
}  # fmt: skip

# Steps by which a worker of dist_bounded may be ahead, by default.
_STALENESS = 3


def create(
    type: str = "local",
    *,
    timeout: float | None = None,
    overlap: str = "chained",
    bucket_bytes: int | None = None,
    servers: int | None = None,
    staleness: int | None = None,
    period: int | None = None,
    strength: float | None = None,
    replicate: bool = False,
) -> KVStore:
    """A store of one of TYPES, or by MXNet's names. All but `local` need MPI (MissingDependency says what to install).

    timeout: seconds after which a process that gives no sign ends the job, or one that has not come here (10 at least);
    GRAPHKIT_RANK_TIMEOUT, 60, by default.
    overlap: how sums get on while a process computes: "chained", one after the other, on a thread; "concurrent",
    several at a time, as they become ready; "funnelled", not before somebody waits for them.
    bucket_bytes: of gradients that are summed at once; as many as the measured latency of a sum asks for, by default.

    `dist_async`, `dist_bounded` and `elastic` keep values on the last `servers` processes of the job (default:
    GRAPHKIT_SERVERS, 1): there, this call serves the others until they have ended, and ends the process with them. A
    job has one of these stores.
    staleness: of `dist_bounded`, how many steps a worker may be ahead of the slowest one; 3 by default.
    period, strength: of `elastic`, updates between two exchanges of a worker with the centre, 10 by default, and how
    far they move together in one, in (0, 1], over all workers: 0.9 by default. They are tau and beta of Zhang,
    Choromanska and LeCun (NIPS 2015).
    replicate: each server's state is on another one too, so that the job goes on when a server is lost and the launcher
    of MPI was told to let it (docs/processes.md). It needs two servers, and functions on them that give the same twice.
    """
    check_argument("gk.kvstore.create", "type", "str", type)
    type = _ALIASES.get(type, type)
    if type not in TYPES:
        raise UsageError(f"unknown kvstore {type!r}{did_you_mean(type, TYPES)}")
    if overlap not in OVERLAPS:
        raise UsageError(f"unknown overlap {overlap!r}{did_you_mean(str(overlap), OVERLAPS)}")
    checked_timeout(timeout)
    if bucket_bytes is not None:
        bucket_bytes = whole("bucket_bytes", bucket_bytes, 1)
    _check_options(type, servers, replicate, staleness, period, strength)
    many = config.SERVERS.get() if servers is None else servers
    if type == "local":
        return KVStore(type, LocalCommunicator())
    from graphkit.dist.job.ending import join

    remote = type in REMOTE
    communicator = join(many if remote else 0, timeout, replicate)
    communicator.channel.overlap = overlap
    if timeout is not None:
        communicator.set_timeout(timeout)
    if not remote:
        return KVStore(type, communicator, bucket_bytes)
    if communicator.stores:
        raise UsageError("a job has one store with servers, where keys are the same for all: use that one")
    communicator.stores = True
    bound = _STALENESS if staleness is None else staleness
    elastic = {name: v for name, v in (("period", period), ("strength", strength)) if v is not None}
    return (_replicated if replicate else _remote)(type, communicator, bound, elastic)


def _check_options(
    type: str, servers: int | None, replicate: bool, staleness: int | None, period: int | None, strength: float | None
) -> None:
    """Raise UsageError for what a store of such a type does not take."""
    for name, given, low, types in (
        ("staleness", staleness, 0, ("dist_bounded",)),
        ("period", period, 1, ("elastic",)),
        ("servers", servers, 1, REMOTE),
    ):
        if given is not None:
            if type not in types:
                raise UsageError(f"{name}={given!r}: {type!r} does not take it; it is for {', '.join(types)}")
            whole(name, given, low)
    if strength is not None:
        if type != "elastic":
            raise UsageError(f"strength={strength!r}: {type!r} does not take it; it is for elastic")
        if isinstance(strength, bool) or not isinstance(strength, numbers.Real) or not 0 < strength <= 1:
            raise UsageError(f"strength must be a number above 0 and at most 1, not {strength!r}")
    many = config.SERVERS.get() if servers is None else servers
    if replicate and (type not in REMOTE or many < 2):
        raise UsageError(f"replicate=True: two servers at least, of {', '.join(REMOTE)}; here {type!r} has {many}")


def _remote(type: str, communicator: MpiCommunicator, staleness: int, elastic: Mapping[str, Any]) -> KVStore:
    """A worker's store; a server does not come back from here."""
    from graphkit.dist.job.ending import before_end, end_of_server
    from graphkit.dist.servers.post import WorkersPost, serve
    from graphkit.dist.servers.remote import RemoteStore
    from graphkit.dist.servers.server import Server

    assert communicator.mail is not None, "it has servers"
    workers = communicator.processes - communicator.servers
    if communicator.serves:
        serve(Server(workers), communicator.mail, communicator)
        end_of_server(communicator)
    post = WorkersPost(communicator.mail, communicator, workers, communicator.servers)
    store = RemoteStore(type, communicator, post, staleness if type == "dist_bounded" else None, **elastic)
    before_end(store.leave, store.dismiss if communicator.rank == 0 else _nothing)
    return store


def _replicated(type: str, communicator: MpiCommunicator, staleness: int, elastic: Mapping[str, Any]) -> KVStore:
    """The same with replicated servers."""
    from graphkit.dist.job.ending import before_end, end_of_server
    from graphkit.dist.servers import replicated
    from graphkit.dist.servers.remote import RemoteStore

    if communicator.serves:
        replicated.serve(communicator)
        end_of_server(communicator)
    post = replicated.post_of(communicator)
    store = RemoteStore(type, communicator, post, staleness if type == "dist_bounded" else None, **elastic)

    def leave() -> None:
        store.leave()
        post.settle()

    def last() -> None:
        if communicator.rank == 0:
            post.dismiss()
        post.close()

    before_end(leave, last)
    return store


def _nothing() -> None:
    """Another worker sees to it."""
