"""Write one trace of the steps and transfers of all ranks."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.collectives.buckets import TimedCollective
from graphkit.dist.kvstore import KVStore
from graphkit.dist.progress.announcement import digest_of
from graphkit.executor.run.profile import Profile
from graphkit.ir.atomic import write_whole
from graphkit.train.exchange.gather import gather

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# A random id of each start of the machine: processes with equal ids share a clock.
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_READINGS = 9


def write_merged(profile: Profile, trainer: Trainer, store: KVStore, path: str | Path) -> None:
    """Collective: write the profiles of all ranks to one file, in the time of rank 0."""
    rank, origin = store.rank, _origin(store)
    events = profile.trace(rank, f"rank {rank} on {socket.gethostname()}", origin)["traceEvents"]
    events += _transfer_events(trainer._exchange.timed_collectives, profile.span, rank, origin)
    data = np.frombuffer(json.dumps(events).encode(), np.uint8)
    parts = gather(store, {"events": data})
    if rank == 0:
        together = [event for part in parts for event in json.loads(part["events"].tobytes())]
        first = min((event["ts"] for event in together if "ts" in event), default=0.0)
        for event in together:
            if "ts" in event:
                event["ts"] -= first
        trace = {"traceEvents": together, "displayTimeUnit": "ms", "otherData": {"producer": "graphkit"}}
        write_whole(Path(path), [json.dumps(trace).encode()])


def _origin(store: KVStore) -> int:
    """Return the time at which rank 0 passed its first barrier, in nanoseconds on the clock of this process.

    Between machines, the offset of clocks is the median difference after several barriers, which end at about the same
    time on all ranks.
    """
    readings = []
    for _ in range(_READINGS):
        store.barrier()
        readings.append(time.monotonic_ns())
    machine = digest_of(_BOOT.read_text() if _BOOT.exists() else socket.gethostname()) >> 1
    clocks = store.transport.gather("clocks", np.array([machine, *readings], np.int64))
    first, mine = clocks[0], clocks[store.rank]
    offset = 0 if mine[0] == first[0] else int(np.median(mine[1:] - first[1:]))
    return int(first[1]) + offset


def _transfer_events(
    timed_collectives: Sequence[TimedCollective], span: tuple[int, int] | None, rank: int, origin: int
) -> Iterator[dict[str, Any]]:
    """Yield asynchronous trace events (they may overlap) of the transfers that start within `span`."""
    for number, timed in enumerate(timed_collectives):
        if span is None or not timed.ended or timed.begun < span[0] or timed.begun > span[1]:
            continue
        common = {"name": timed.key, "cat": "communication", "pid": rank, "tid": 0, "id": f"{rank}:{number}"}
        yield {**common, "ph": "b", "ts": (timed.begun - origin) / 1e3, "args": {"bytes": timed.size}}
        yield {**common, "ph": "e", "ts": (timed.ended - origin) / 1e3}
