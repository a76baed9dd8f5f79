"""Schedules and memory layouts kept on disk between processes, in the folder GRAPHKIT_CACHE.

An entry's name is a digest of everything that the result depends on: steps, sizes, working memory of the kernels of
this machine, switches, version. What an entry holds is checked before it is used; one that does not fit is replaced.
Entries are written whole, so that processes may share a folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import graphkit
from graphkit import config
from graphkit.errors import RuntimeFailure
from graphkit.executor.memory.planner import Layout, Request, fits, plan_memory
from graphkit.executor.memory.schedule import Schedule, Task, is_order, measured, schedule
from graphkit.ir.atomic import write_whole

# Below this many steps planning is faster than reading a file.
LEAST_STEPS = 100
# Entries that a folder holds at most; the oldest go first.
MOST_ENTRIES = 4096


def cached_schedule(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """`schedule`, or the order that it found before."""
    entry = _entry("schedule", len(tasks), (tasks, sizes))
    if entry is None:
        return schedule(tasks, sizes)
    known = _read(entry)
    if known is not None and is_order(tasks, known):
        return measured(tasks, sizes, known)
    found = schedule(tasks, sizes)
    _write(entry, found.order)
    return found


def cached_layout(requests: Sequence[Request], *, inplace: bool, share: bool) -> Layout:
    """`plan_memory`, or the offsets that it found before."""
    entry = _entry("layout", len(requests), (requests, inplace, share))
    if entry is None:
        return plan_memory(requests, inplace=inplace, share=share)
    known = _read(entry)
    if known is not None and fits(requests, known, inplace=inplace):
        return plan_memory(requests, inplace=inplace, share=share, known=known)
    found = plan_memory(requests, inplace=inplace, share=share)
    _write(entry, found.offsets)
    return found


def _entry(kind: str, steps: int, content: object) -> Path | None:
    """The file for a result; None where nothing is kept. The parts of `content` print exactly."""
    folder = config.CACHE.get()
    if folder is None or steps < LEAST_STEPS:
        return None
    digest = hashlib.sha256(f"{graphkit.__version__} {kind} {content!r}".encode()).hexdigest()
    return Path(folder) / f"{kind}-{digest[:40]}.json"


def _read(path: Path) -> tuple[int, ...] | None:
    """The numbers of an entry; None when there is none, or it is no list of numbers."""
    try:
        numbers = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RuntimeFailure(f"GRAPHKIT_CACHE: {path} cannot be read: {error.strerror or error}") from error
    except ValueError:
        return None
    return tuple(numbers) if isinstance(numbers, list) and all(type(n) is int for n in numbers) else None


def _write(path: Path, numbers: Sequence[int]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeFailure(f"GRAPHKIT_CACHE: {path.parent} cannot be made: {error.strerror or error}") from error
    write_whole(path, [json.dumps(list(numbers), separators=(",", ":")).encode()])
    _prune(path.parent)


def _prune(folder: Path) -> None:
    """Remove the oldest entries of a folder that has too many."""
    entries = [path for kind in ("schedule", "layout") for path in folder.glob(f"{kind}-*.json")]
    if len(entries) <= MOST_ENTRIES:
        return
    ages = []
    for path in entries:
        # Another process may remove it first.
        with contextlib.suppress(FileNotFoundError):
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[: len(ages) - MOST_ENTRIES * 3 // 4]:
        path.unlink(missing_ok=True)
