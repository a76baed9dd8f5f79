"""Which cores of a host each process of a job computes on, and with how many threads.

A launcher that has given each process cores of its own is left alone. Where it has given all of them the same ones, and
there are enough, each takes its part.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graphkit import config, cores

# Three thirds of a core are one.
_ROUNDING = 1e-6


class Allowed(NamedTuple):
    """What a process may use: its cores, the quota of its control groups and which ones these are."""

    cores: frozenset[int]
    quota: float | None
    group: str
    threads: int | None  # that the user asked for
    placed: bool  # whether it takes part in a division

    @classmethod
    def here(cls) -> Allowed:
        """Of this process."""
        known = hasattr(os, "sched_getaffinity")
        allowed = frozenset(os.sched_getaffinity(0)) if known else frozenset(range(os.cpu_count() or 1))
        group = Path("/proc/self/cgroup")
        text = group.read_text() if group.exists() else ""
        placed = known and config.PLACE_RANKS.get()
        return cls(allowed, cores.cgroup_quota(), text, config.NUM_THREADS.get(), placed)


def share(processes: Sequence[Allowed], mine: int) -> int:
    """The threads of one of a host's processes, at least one: of a core or a quota that n have, it has an n-th."""
    own = processes[mine]
    users = Counter(core for process in processes for core in process.cores)
    found = math.floor(sum(1 / users[core] for core in own.cores) + _ROUNDING)
    if own.quota is not None:
        found = min(found, math.ceil(own.quota) // sum(process.group == own.group for process in processes))
    return max(1, found)


def part(processes: Sequence[Allowed], mine: int) -> list[int] | None:
    """The cores that this process is to stay on, apart from those of the others.

    None where the launcher has told processes apart, where there is nothing to divide, where their threads are more
    than the cores, and where one of them does not want it.
    """
    count, allowed = len(processes), processes[mine].cores
    if count == 1 or not all(process.placed and process.cores == allowed for process in processes):
        return None
    each = len(allowed) // count
    if any((process.threads or share(processes, index)) > each for index, process in enumerate(processes)):
        return None
    return cores.neighbours(allowed)[mine * each : (mine + 1) * each]


def are_apart(processes: Sequence[Allowed], mine: int) -> bool:
    """Whether a process has cores to itself once it is placed, as far as those of its host are asked."""
    own = processes[mine].cores
    others = [process.cores for index, process in enumerate(processes) if index != mine]
    return part(processes, mine) is not None or all(own.isdisjoint(found) for found in others)


def place(processes: Sequence[Allowed], mine: int) -> bool:
    """Give this process its share: of threads, and of cores, to which the threads that it has are moved.

    Returns whether these cores are its own.
    """
    chosen, apart = part(processes, mine), are_apart(processes, mine)
    if len(processes) > 1:
        config.share_cores(share(processes, mine))
    if chosen is None:
        return apart
    moved: set[str] = set()
    # Those that are started meanwhile may be of a thread that has not been moved.
    while left := {thread.name for thread in Path("/proc/self/task").iterdir()} - moved:
        for thread in left:
            try:
                os.sched_setaffinity(int(thread), chosen)
            except ProcessLookupError:  # it has ended
                continue
        moved |= left
    return apart
