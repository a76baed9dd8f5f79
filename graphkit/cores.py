"""CPU cores that this process may use, by its affinity and by the quotas of its control groups."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

# Controllers of one hierarchy whose orders are tried; in fact there are two.
_FEW = 4


def allowed_cores() -> int:
    """Return the number of cores that this process can keep busy, at least one.

    A container limited to 1.5 cores of a machine with 64 can run on each of them, but is throttled after its share of a
    period. For such quotas, a fraction counts as a whole core.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def loading_workers() -> int:
    """Return the default number of worker processes that make samples: one for every two cores, from 1 to 16."""
    return max(1, min(16, allowed_cores() // 2))


def nearest(system: Path = Path("/sys/devices/system"), running_on: int | None = None) -> list[int]:
    """Return the cores that this process may run on, nearest to the calling thread first.

    Cores of its memory node (NUMA) come before those of others. Within a node, the first hardware thread of each core
    comes before the second ones. If the topology is unknown, cores are sorted by number. `running_on` replaces the core
    of the thread.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    here = _running_on() if running_on is None else running_on
    nodes = [_listed(folder / "cpulist") for folder in (system / "node").glob("node[0-9]*")]

    def distance(core: int) -> tuple[bool, int, int, int]:
        node = next((n for n in nodes if core in n), set())
        siblings = sorted(_listed(system / f"cpu/cpu{core}/topology/thread_siblings_list") or {core})
        return here not in node, min(node, default=0), siblings.index(core) if core in siblings else 0, core

    return sorted(allowed, key=distance)


def neighbours(some: Iterable[int], system: Path = Path("/sys/devices/system")) -> list[int]:
    """Return these cores so that those that share most are adjacent: hardware threads of a core, cores of a NUMA
    node.
    """
    nodes = [_listed(folder / "cpulist") for folder in (system / "node").glob("node[0-9]*")]

    def place(core: int) -> tuple[int, int, int]:
        node = next((n for n in nodes if core in n), set())
        siblings = _listed(system / f"cpu/cpu{core}/topology/thread_siblings_list")
        return min(node, default=0), min(siblings, default=core), core

    return sorted(some, key=place)


def _running_on() -> int | None:
    """The current core of the calling thread: field 39 of proc(5)'s stat, counted after the name."""
    fields = (_text(Path("/proc/thread-self/stat")) or "").rpartition(")")[2].split()
    return int(fields[36]) if len(fields) > 36 else None


def _listed(path: Path) -> set[int]:
    """The numbers of a list of ranges such as "0-3,8"; none if there is no such file."""
    found: set[int] = set()
    for part in (_text(path) or "").split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def cgroup_quota(proc: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the smallest quota, in cores, of this process's control groups; None without a quota.

    Reads version 2 (cpu.max) and version 1 (cpu.cfs_quota_us), as in Linux's Documentation/admin-guide/cgroup-v2.rst
    and Documentation/scheduler/sched-bwc.rst.
    """
    quotas = [quota for folder in _folders(proc, mounted) if (quota := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _folders(proc: Path, mounted: Path) -> Iterator[Path]:
    """The folders of the groups that limit this process, from the innermost outwards.

    Inside a container, whose path may be that on the host, the outermost folder is the container's own.
    """
    for line in (_text(proc) or "").splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        together = controllers.split(",")
        if controllers and "cpu" not in together:
            continue
        # A hierarchy of several controllers is mounted under their names in any order, or linked under one of them.
        orders = itertools.permutations(together) if len(together) <= _FEW else [together]
        names = {"cpu", *map(",".join, orders)} if controllers else {""}
        inside = Path(path.lstrip("/"))
        for name in sorted(names):
            for folder in (inside, *inside.parents):
                yield mounted / name / folder


def _quota_in(folder: Path) -> float | None:
    unified = _text(folder / "cpu.max")
    if unified is not None:
        quota, _, period = unified.partition(" ")
    else:
        quota, period = _text(folder / "cpu.cfs_quota_us") or "-1", _text(folder / "cpu.cfs_period_us") or "0"
    try:
        cores = float(quota) / float(period or 100_000)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return cores if cores > 0 else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:  # no such group here
        return None
