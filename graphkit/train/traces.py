"""A common trace of all processes: what each computed, and which communication was in progress."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.collectives.buckets import Flight
from graphkit.dist.kvstore import KVStore
from graphkit.dist.progress.announcement import digest_of
from graphkit.executor.run.profile import Profile
from graphkit.ir.atomic import write_whole
from graphkit.train.exchange.gather import gather

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# Where a machine says which start of which machine it is: processes there share a clock.
_BOOT = Path("/proc/sys/kernel/random/boot_id")
# Looks at the clocks of other machines.
_LOOKS = 9


def write_merged(profile: Profile, trainer: Trainer, store: KVStore, path: str | Path) -> None:
    """Write what all processes have recorded as one file, in which rank 0's clock counts.

    Every process calls it, and rank 0 writes. Each is a process of the trace, by its rank, with a row for what was
    exchanged: from where it was begun to where it had arrived.
    """
    rank, origin = store.rank, _origin(store)
    events = profile.trace(rank, f"rank {rank} on {socket.gethostname()}", origin)["traceEvents"]
    events += _exchanged(trainer._exchange.flights, profile.span, rank, origin)
    data = np.frombuffer(json.dumps(events).encode(), np.uint8)
    parts = gather(store, {"events": data})
    if rank == 0:
        together = [event for part in parts for event in json.loads(part["events"].tobytes())]
        # Time begins where the first of them did.
        first = min((event["ts"] for event in together if "ts" in event), default=0.0)
        for event in together:
            if "ts" in event:
                event["ts"] -= first
        trace = {"traceEvents": together, "displayTimeUnit": "ms", "otherData": {"producer": "graphkit"}}
        write_whole(Path(path), [json.dumps(trace).encode()])


def _origin(store: KVStore) -> int:
    """One moment, the same for all processes, by this one's clock: nanoseconds.

    Processes of a machine share its clock. Others look at theirs whenever all have come together, which is at about the
    same time; the median of what is between them tells how far they are apart.
    """
    looks = []
    for _ in range(_LOOKS):
        store.barrier()
        looks.append(time.monotonic_ns())
    machine = digest_of(_BOOT.read_text() if _BOOT.exists() else socket.gethostname()) >> 1
    clocks = store.transport.gather("clocks", np.array([machine, *looks], np.int64))
    first, mine = clocks[0], clocks[store.rank]
    apart = 0 if mine[0] == first[0] else int(np.median(mine[1:] - first[1:]))
    return int(first[1]) + apart


def _exchanged(
    flights: Sequence[Flight], span: tuple[int, int] | None, rank: int, origin: int
) -> Iterator[dict[str, Any]]:
    """Those within the span, which may go on at a time: as asynchronous events."""
    for number, flight in enumerate(flights):
        if span is None or not flight.arrived or flight.begun < span[0] or flight.begun > span[1]:
            continue
        common = {"name": flight.key, "cat": "communication", "pid": rank, "tid": 0, "id": f"{rank}:{number}"}
        yield {**common, "ph": "b", "ts": (flight.begun - origin) / 1e3, "args": {"bytes": flight.size}}
        yield {**common, "ph": "e", "ts": (flight.arrived - origin) / 1e3}
