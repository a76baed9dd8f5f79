"""Measure all-reduces: KVStore.pushpull and MPI's own Allreduce, alternating in the same processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.dist.job.joining import join
from graphkit.dist.job.mpi import MpiCommunicator, library
from graphkit.dist.kvstore import KVStore
from graphkit.dist.transport import Transport
from graphkit.errors import OutOfMemory, RuntimeFailure

# Seconds of one round of calls, and the largest number of calls in it.
_SECONDS, _MOST = 0.05, 2000
_COMPARED = 1024


def measure(sizes: Sequence[int], rounds: int, compression: str | None = None) -> dict[str, Any]:
    """Collective: measure all-reduces of float32 arrays, and return the times.

    The result is equal in all processes: `processes`, `library` (the name of the MPI library), and `rows`, one for each
    size, with these keys:

    - `bytes`: size of the array.
    - `sent_bytes`: bytes that one call of pushpull sends.
    - `calls`: by engine (`mpi`, `graphkit`), the number of calls in a round.
    - `seconds`: by engine, one number for each round: the mean seconds of a call in the slowest process.

    Args:
        compression: As for `KVStore.set_gradient_compression`, for pushpull only.

    Raises:
        RuntimeFailure: A sum is wrong.
        OutOfMemory: The arrays do not fit into memory.
        MissingDependency: MPI is not installed.
    """
    communicator = join()
    store = KVStore("dist_sync", Transport(communicator))
    if compression is not None:
        store.set_gradient_compression(compression)
    with store.working():
        rows = [_row(communicator, store, size, rounds) for size in sizes]
    return {"processes": store.num_workers, "library": library(), "rows": rows}


def _row(communicator: MpiCommunicator, store: KVStore, size: int, rounds: int) -> dict[str, Any]:
    try:
        # Small integers: their sum is exact in any order.
        random = np.random.default_rng(store.rank)
        given = random.integers(-8, 9, size // 4, np.int8).astype(np.float32)
        outs = {"mpi": np.empty_like(given), "graphkit": np.empty_like(given)}
    except MemoryError as error:
        raise OutOfMemory(f"rank {store.rank}: three arrays of {size} bytes: {error}") from None
    calls: dict[str, Callable[[], object]] = {
        "mpi": lambda: communicator.raw_allreduce(given, outs["mpi"]),
        "graphkit": lambda: store.pushpull(f"{size} bytes", given, outs["graphkit"]),
    }
    before = store.sent_bytes
    for call in calls.values():
        call()
    sent = store.sent_bytes - before
    expected = _gathered(communicator, given[:_COMPARED]).sum(axis=0)
    for name, out in outs.items():
        if (name == "mpi" or not store.transport.compresses) and not np.array_equal(out[:_COMPARED], expected):
            raise RuntimeFailure(f"rank {store.rank}: the sum of {size} bytes by {name} is wrong")
    if not store.transport.compresses and not np.array_equal(outs["mpi"], outs["graphkit"]):
        raise RuntimeFailure(f"rank {store.rank}: the sums of {size} bytes by pushpull and by MPI differ")
    counts = {name: _calls_per_round(communicator, call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            seconds[name].append(_slowest(communicator, call, counts[name]))
    return {"bytes": size, "sent_bytes": sent, "calls": counts, "seconds": seconds}


def _calls_per_round(communicator: MpiCommunicator, call: Callable[[], object]) -> int:
    """Return a number of calls that takes _SECONDS, at most _MOST; the same in all processes."""
    count = 1
    while count < _MOST and _slowest(communicator, call, count) * count < _SECONDS:
        count = min(_MOST, 2 * count)
    return count


def _slowest(communicator: MpiCommunicator, call: Callable[[], object], count: int) -> float:
    """Return the mean seconds of a call in the slowest process. All processes begin together."""
    communicator.perform("barrier")
    start = time.perf_counter()
    for _ in range(count):
        call()
    mean = (time.perf_counter() - start) / count
    return float(_gathered(communicator, np.array(mean)).max())


def _gathered(communicator: MpiCommunicator, array: np.ndarray) -> np.ndarray:
    found: np.ndarray = communicator.perform("gather", [array], lambda: communicator.allgather(array))
    return found
