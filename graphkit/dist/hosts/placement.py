"""Cores and threads of each process of a job on one host.

If all processes may use the same cores, and there are enough, each is bound to an equal part. Cores that the launcher
has assigned stay the same.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from graphkit import config, cores
from graphkit.named_tuples import NamedTuple

_ROUNDING = 1e-6


class Allowed(NamedTuple):
    cores: frozenset[int]
    quota: float | None
    group: str
    threads: int | None
    may_bind: bool

    @classmethod
    def here(cls) -> Allowed:
        known = hasattr(os, "sched_getaffinity")
        allowed = frozenset(os.sched_getaffinity(0)) if known else frozenset(range(os.cpu_count() or 1))
        group = Path("/proc/self/cgroup")
        text = group.read_text() if group.exists() else ""
        may_bind = known and config.PLACE_RANKS.get()
        return cls(allowed, cores.cgroup_quota(), text, config.NUM_THREADS.get(), may_bind)


def thread_count(processes: Sequence[Allowed], mine: int) -> int:
    """Return the number of threads of one process, at least one.

    Processes that share a core, or a quota, divide it equally.
    """
    own = processes[mine]
    users = Counter(core for process in processes for core in process.cores)
    found = math.floor(sum(1 / users[core] for core in own.cores) + _ROUNDING)
    if own.quota is not None:
        found = min(found, math.ceil(own.quota) // sum(process.group == own.group for process in processes))
    return max(1, found)


def own_cores(processes: Sequence[Allowed], mine: int) -> list[int] | None:
    """Return the cores for this process alone, or None.

    None for a single process, if the allowed cores differ, or if a process must not be bound or needs more threads than
    its part of the cores.
    """
    count, allowed = len(processes), processes[mine].cores
    if count == 1 or not all(process.may_bind and process.cores == allowed for process in processes):
        return None
    each = len(allowed) // count
    if any((process.threads or thread_count(processes, index)) > each for index, process in enumerate(processes)):
        return None
    return cores.neighbours(allowed)[mine * each : (mine + 1) * each]


def has_own_cores(processes: Sequence[Allowed], mine: int) -> bool:
    """Whether no other process of the host uses the cores of this process, after placement."""
    own = processes[mine].cores
    others = [process.cores for index, process in enumerate(processes) if index != mine]
    return own_cores(processes, mine) is not None or all(own.isdisjoint(found) for found in others)


def place(processes: Sequence[Allowed], mine: int) -> bool:
    """Set the number of threads of this process, and bind it to its own cores, if any. Return `has_own_cores`."""
    chosen, has_own = own_cores(processes, mine), has_own_cores(processes, mine)
    if len(processes) > 1:
        config.share_cores(thread_count(processes, mine))
    if chosen is None:
        return has_own
    moved: set[str] = set()
    # A thread that is not bound yet may start others: repeat.
    while left := {thread.name for thread in Path("/proc/self/task").iterdir()} - moved:
        for thread in left:
            try:
                os.sched_setaffinity(int(thread), chosen)
            except ProcessLookupError:
                continue
        moved |= left
    return has_own
