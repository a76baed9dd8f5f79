"""Cores and threads of each process of a job on one host.

If the launcher gave each process its own cores, nothing changes. If all processes may use the same cores, and there are
enough cores, each process is bound to an equal part of them.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from graphkit import config, cores
from graphkit.named_tuples import NamedTuple

# Rounding error: three thirds of a core are one core.
_ROUNDING = 1e-6


class Allowed(NamedTuple):
    """The cores and the CPU quota, in cores, that a process may use, and the names of its control groups."""

    cores: frozenset[int]
    quota: float | None
    group: str
    threads: int | None  # as chosen by the user
    may_bind: bool  # whether the process may be bound to some of its cores

    @classmethod
    def here(cls) -> Allowed:
        """Return the limits of this process."""
        known = hasattr(os, "sched_getaffinity")
        allowed = frozenset(os.sched_getaffinity(0)) if known else frozenset(range(os.cpu_count() or 1))
        group = Path("/proc/self/cgroup")
        text = group.read_text() if group.exists() else ""
        may_bind = known and config.PLACE_RANKS.get()
        return cls(allowed, cores.cgroup_quota(), text, config.NUM_THREADS.get(), may_bind)


def thread_count(processes: Sequence[Allowed], mine: int) -> int:
    """Return the number of threads of one process, at least one.

    Each core, and each quota, is divided by the number of processes that share it.
    """
    own = processes[mine]
    users = Counter(core for process in processes for core in process.cores)
    found = math.floor(sum(1 / users[core] for core in own.cores) + _ROUNDING)
    if own.quota is not None:
        found = min(found, math.ceil(own.quota) // sum(process.group == own.group for process in processes))
    return max(1, found)


def own_cores(processes: Sequence[Allowed], mine: int) -> list[int] | None:
    """Return the cores for this process alone.

    None if there is only one process, or if the processes may use different cores. Also None if a process must not be
    bound, or needs more threads than its equal part of the cores.
    """
    count, allowed = len(processes), processes[mine].cores
    if count == 1 or not all(process.may_bind and process.cores == allowed for process in processes):
        return None
    each = len(allowed) // count
    if any((process.threads or thread_count(processes, index)) > each for index, process in enumerate(processes)):
        return None
    return cores.neighbours(allowed)[mine * each : (mine + 1) * each]


def has_own_cores(processes: Sequence[Allowed], mine: int) -> bool:
    """Whether a process has cores that no other process of its host uses, after placement."""
    own = processes[mine].cores
    others = [process.cores for index, process in enumerate(processes) if index != mine]
    return own_cores(processes, mine) is not None or all(own.isdisjoint(found) for found in others)


def place(processes: Sequence[Allowed], mine: int) -> bool:
    """Set the number of threads of this process. If it gets its own cores, bind all its threads to them.

    Returns:
        Whether no other process uses these cores.
    """
    chosen, has_own = own_cores(processes, mine), has_own_cores(processes, mine)
    if len(processes) > 1:
        config.share_cores(thread_count(processes, mine))
    if chosen is None:
        return has_own
    moved: set[str] = set()
    # Repeat, because a thread that is not bound yet may start others.
    while left := {thread.name for thread in Path("/proc/self/task").iterdir()} - moved:
        for thread in left:
            try:
                os.sched_setaffinity(int(thread), chosen)
            except ProcessLookupError:  # it has ended
                continue
        moved |= left
    return has_own
