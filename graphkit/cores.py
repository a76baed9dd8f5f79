"""CPU cores that this process may use, by its affinity and by the quotas of its control groups."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from typing import TypeAlias

# Up to this many controllers of one hierarchy, all orders of their names are tried. In practice a hierarchy has at most
# two.
_FEW = 4

_Path: TypeAlias = "str | os.PathLike[str]"


def allowed_cores() -> int:
    """Return the number of cores that this process can keep busy, at least one.

    A container may be limited to the time of 1.5 cores although it can run on each core of its host. The limit (a CPU
    quota of the control group) is rounded up: here to 2 cores.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def loading_workers() -> int:
    """Return the default number of worker processes that make samples: one for every two cores, from 1 to 16."""
    return max(1, min(16, allowed_cores() // 2))


def nearest(system: _Path = "/sys/devices/system", running_on: int | None = None) -> list[int]:
    """Return the cores that this process may run on, nearest to the calling thread first.

    Cores of its memory node (NUMA) come before those of others. Within a node, the first hardware thread of each core
    comes before the second ones. If the topology is unknown, cores are sorted by number. `running_on` replaces the core
    of the thread.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    allowed = sorted(os.sched_getaffinity(0))
    here = _running_on() if running_on is None else running_on
    nodes = _nodes(system)

    def distance(core: int) -> tuple[bool, int, int, int]:
        node = next((n for n in nodes if core in n), set())
        siblings = sorted(_listed(os.path.join(system, f"cpu/cpu{core}/topology/thread_siblings_list")) or {core})
        return here not in node, min(node, default=0), siblings.index(core) if core in siblings else 0, core

    return sorted(allowed, key=distance)


def neighbours(some: Iterable[int], system: _Path = "/sys/devices/system") -> list[int]:
    """Return these cores so that those that share most are adjacent: hardware threads of a core, cores of a NUMA
    node.
    """
    nodes = _nodes(system)

    def place(core: int) -> tuple[int, int, int]:
        node = next((n for n in nodes if core in n), set())
        siblings = _listed(os.path.join(system, f"cpu/cpu{core}/topology/thread_siblings_list"))
        return min(node, default=0), min(siblings, default=core), core

    return sorted(some, key=place)


def _running_on() -> int | None:
    """Return the core that the calling thread runs on: field 39 of stat in proc(5). The name may contain spaces."""
    fields = (_text("/proc/thread-self/stat") or "").rpartition(")")[2].split()
    return int(fields[36]) if len(fields) > 36 else None


def _nodes(system: _Path) -> list[set[int]]:
    """Return the cores of each NUMA node; empty if the system does not list nodes."""
    folder = os.path.join(system, "node")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    numbered = (name for name in names if name.startswith("node") and name[4:5].isdigit())
    return [_listed(os.path.join(folder, name, "cpulist")) for name in numbered]


def _listed(path: _Path) -> set[int]:
    """Return the numbers in a file with a list of ranges such as "0-3,8"; empty if the file does not exist."""
    found: set[int] = set()
    for part in (_text(path) or "").split(","):
        first, _, last = part.partition("-")
        if first:
            found.update(range(int(first), int(last or first) + 1))
    return found


def cgroup_quota(proc: _Path = "/proc/self/cgroup", mounted: _Path = "/sys/fs/cgroup") -> float | None:
    """Return the smallest quota, in cores, of this process's control groups; None without a quota.

    Reads version 2 (cpu.max) and version 1 (cpu.cfs_quota_us), as in Linux's Documentation/admin-guide/cgroup-v2.rst
    and Documentation/scheduler/sched-bwc.rst.
    """
    quotas = [quota for folder in _folders(proc, mounted) if (quota := _quota_in(folder)) is not None]
    return min(quotas, default=None)


def _folders(proc: _Path, mounted: _Path) -> Iterator[str]:
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
        parts = path.strip("/").split("/")
        for name in sorted(names):
            for count in range(len(parts), -1, -1):
                yield os.path.join(mounted, name, *parts[:count])


def _quota_in(folder: str) -> float | None:
    unified = _text(os.path.join(folder, "cpu.max"))
    if unified is not None:
        quota, _, period = unified.partition(" ")
    else:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (_text(os.path.join(folder, name)) or "0" for name in names)
    try:
        cores = float(quota) / float(period or 100_000)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return cores if cores > 0 else None


def _text(path: _Path) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:  # no such group here
        return None
