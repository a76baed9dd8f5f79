"""KVStore: arrays by key, shared by the processes of a job (MXNet's interface).

`local` uses one process. `dist_sync` sums what all processes push; every process pushes the same keys. `dist_async`,
`dist_bounded` and `elastic` store values on servers, which update them as pushes arrive.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphkit import config
from graphkit.dist.arguments import checked_integer
from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.communicator import LocalCommunicator
from graphkit.dist.job.start import checked_timeout
from graphkit.dist.local_store import LocalKVStore
from graphkit.dist.progress.engine import OVERLAPS
from graphkit.dist.store import KVStore
from graphkit.dist.transport import Transport
from graphkit.errors import UsageError, did_you_mean
from graphkit.signatures import check_argument

if TYPE_CHECKING:
    from graphkit.dist.job.mpi import MpiCommunicator

__all__ = ["REMOTE", "TYPES", "KVStore", "RowSparse", "create"]

REMOTE = ("dist_async", "dist_bounded", "elastic")
TYPES = ("local", "dist_sync", *REMOTE)
ALIASES = {
    "device": "local", "dist": "dist_sync", "dist_device_sync": "dist_sync", "dist_sync_device": "dist_sync",
    "dist_device_async": "dist_async", "dist_async_device": "dist_async",
}  # fmt: skip

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
    """Create a KVStore. All types except `local` need MPI.

    `dist_async`, `dist_bounded` and `elastic` store values on parameter servers: the last `servers` processes of the
    job. On a server this function does not return. It serves the workers until all of them have ended, and then exits
    the process; no code after the call runs there. A job can have only one store with servers.

    Args:
        type: "local" (one process), "dist_sync" (all-reduce), or with parameter servers "dist_async" (asynchronous),
            "dist_bounded" (bounded staleness) or "elastic" (elastic averaging). MXNet's names such as "device" or
            "dist" are also accepted.
        timeout: Seconds without a heartbeat from a process after which the job ends. The job also ends if a process
            does not call `create` within this time; for this, at least 10 seconds are allowed. Default:
            GRAPHKIT_RANK_TIMEOUT, 60.
        overlap: How all-reduces run while a process computes. "chained": one after another, on a thread. "concurrent":
            several at a time, when they are ready. "funnelled": only when the process waits for their results, so they
            do not overlap with computation.
        bucket_bytes: Bytes of gradients that are all-reduced together. By default it is chosen from the measured
            latency.
        servers: Number of server processes (default: GRAPHKIT_SERVERS, 1).
        staleness: For `dist_bounded`: how many steps a worker may be ahead of the slowest one (default: 3).
        period: For `elastic`: updates between two exchanges of a worker with the centre variable (default: 10); tau of
            Zhang, Choromanska and LeCun (NIPS 2015).
        strength: For `elastic`: moving rate, above 0 and up to 1 (default: 0.9); beta of the same paper. In an
            exchange, a worker and the centre variable move towards each other: by their difference times this rate,
            divided by the number of workers.
        replicate: Keep a second copy of each server's state on another server, so that training survives the loss of
            one server. Needs at least two servers, and an MPI launcher that does not end the job when a process dies
            (see docs/processes.md). Update functions that run on servers must be deterministic, because both copies
            run them.

    Returns:
        The store, on workers only.

    Raises:
        UsageError: A type or option is unknown, an option does not belong to the type, or the job already has a store
            with servers.
        MissingDependency: MPI is needed and not installed. The message says what to install.
    """
    check_argument("gk.kvstore.create", "type", "str", type)
    type = ALIASES.get(type, type)
    if type not in TYPES:
        near = did_you_mean(type, TYPES, alike=0.8)
        # If no type is similar, `near` lists all types, which the message below does anyway.
        near = near if "did you mean" in near else ""
        raise UsageError(f"unknown kvstore {type!r}{near or '.'} The types are {', '.join(TYPES)}")
    if overlap not in OVERLAPS:
        raise UsageError(f"unknown overlap {overlap!r}{did_you_mean(str(overlap), OVERLAPS)}")
    checked_timeout(timeout)
    if bucket_bytes is not None:
        bucket_bytes = checked_integer("bucket_bytes", bucket_bytes, 1)
    _check_options(type, servers, replicate, staleness, period, strength)
    many = config.SERVERS.get() if servers is None else servers
    if type == "local":
        return LocalKVStore(type, Transport(LocalCommunicator()))
    from graphkit.dist.job.joining import join

    remote = type in REMOTE
    communicator = join(many if remote else 0, timeout, replicate)
    communicator.engine.overlap = overlap
    if timeout is not None:
        communicator.set_timeout(timeout)
    if not remote:
        return KVStore(type, Transport(communicator, bucket_bytes))
    if communicator.has_server_store:
        raise UsageError("a job can have only one store with servers: use the existing one")
    communicator.has_server_store = True
    bound = _STALENESS if staleness is None else staleness
    elastic = {name: v for name, v in (("period", period), ("strength", strength)) if v is not None}
    return _with_servers(type, communicator, bound if type == "dist_bounded" else None, elastic)


def _check_options(
    type: str, servers: int | None, replicate: bool, staleness: int | None, period: int | None, strength: float | None
) -> None:
    for name, given, low, types in (
        ("staleness", staleness, 0, ("dist_bounded",)),
        ("period", period, 1, ("elastic",)),
        ("servers", servers, 1, REMOTE),
    ):
        if given is not None:
            if type not in types:
                raise UsageError(
                    f"kvstore.create: {name}={given!r} only works with type {' or '.join(types)}, not with {type!r}"
                )
            checked_integer(name, given, low)
    if strength is not None:
        if type != "elastic":
            raise UsageError(f"kvstore.create: strength={strength!r} only works with type elastic, not with {type!r}")
        if isinstance(strength, bool) or not isinstance(strength, numbers.Real) or not 0 < strength <= 1:
            raise UsageError(f"strength must be a number above 0 and at most 1, not {strength!r}")
    many = config.SERVERS.get() if servers is None else servers
    if replicate and (type not in REMOTE or many < 2):
        raise UsageError(
            f"kvstore.create: replicate=True needs type {' or '.join(REMOTE)}, not {type!r}, and servers= of at least "
            f"2, not {many}"
        )


def _with_servers(type: str, communicator: MpiCommunicator, bound: int | None, elastic: Mapping[str, Any]) -> KVStore:
    """Return the store of a worker. On a server, this call does not return."""
    from graphkit.dist.job.departure import leave_to_workers
    from graphkit.dist.job.ending import before_end, end_of_server
    from graphkit.dist.servers import connection, replicated
    from graphkit.dist.servers.remote import RemoteStore

    servers = replicated if communicator.replicated else connection
    if communicator.is_server:
        leave_to_workers(communicator)
        servers.serve(communicator)
        end_of_server(communicator)
    connected = servers.connect(communicator)
    store = RemoteStore(type, Transport(communicator, servers_of=type), connected, bound, **elastic)

    def leave() -> None:
        store.leave()
        connected.leave()

    def last() -> None:
        if communicator.rank == 0:
            connected.end_servers()
        connected.close()

    before_end(leave, last)
    return store
