"""KVStore: arrays by key, shared by the processes of a job (the interface of MXNet's).

`local` lives in one process. `dist_sync` sums what all processes push: every process pushes the same keys.
"""

from __future__ import annotations

from graphkit.dist.channel import OVERLAPS
from graphkit.dist.communicator import LocalCommunicator
from graphkit.dist.store import KVStore
from graphkit.errors import UsageError, did_you_mean

__all__ = ["TYPES", "KVStore", "create"]

TYPES = ("local", "dist_sync")
# What MXNet calls them, and the store that is meant here.
_ALIASES = {"device": "local", "dist": "dist_sync", "dist_device_sync": "dist_sync", "dist_sync_device": "dist_sync"}


def create(
    type: str = "local", *, timeout: float | None = None, overlap: str = "chained", bucket_bytes: int | None = None
) -> KVStore:
    """A store of one of TYPES, or by MXNet's names. `dist_sync` needs MPI (MissingDependency says what to install).

    timeout: seconds after which a process that gives no sign ends the job; GRAPHKIT_RANK_TIMEOUT, 60, by default.
    overlap: how sums get on while a process computes: "chained", one after the other, on a thread; "concurrent",
    several at a time, as they become ready; "funnelled", not before somebody waits for them.
    bucket_bytes: of gradients that are summed at once; as many as the measured latency of a sum asks for, by default.
    """
    type = _ALIASES.get(type, type)
    if overlap not in OVERLAPS:
        raise UsageError(f"unknown overlap {overlap!r}{did_you_mean(overlap, OVERLAPS)}")
    if type == "local":
        return KVStore(type, LocalCommunicator())
    if type == "dist_sync":
        from graphkit.dist.ending import join

        communicator = join()
        communicator.channel.overlap = overlap
        if timeout is not None:
            communicator.set_timeout(timeout)
        return KVStore(type, communicator, bucket_bytes)
    raise UsageError(f"unknown kvstore {type!r}{did_you_mean(type, TYPES)}")
