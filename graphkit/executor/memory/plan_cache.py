"""Schedules and memory layouts kept on disk between processes, in the folder GRAPHKIT_CACHE.

They depend on steps, sizes, working memory of the kernels of this machine, switches. What an entry holds is checked
before it is used; one that does not fit is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphkit import config
from graphkit.executor.memory.planner import Layout, Request, fits, plan_memory
from graphkit.executor.memory.schedule import Schedule, Task, is_order, measured, schedule

if TYPE_CHECKING:
    from graphkit.shelf import Shelf

# Below this many steps planning is faster than reading a file.
LEAST_STEPS = 100
# Entries of a kind that a folder holds at most.
MOST_ENTRIES = 2048


def cached_schedule(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """`schedule`, or the order that it found before."""
    shelf = _shelf("schedule", len(tasks))
    if shelf is None:
        return schedule(tasks, sizes)
    content = repr((tasks, sizes))
    known = _numbers(shelf.read(content))
    if known is not None and is_order(tasks, known):
        return measured(tasks, sizes, known)
    found = schedule(tasks, sizes)
    shelf.write(content, _text(found.order))
    return found


def cached_layout(requests: Sequence[Request], *, inplace: bool, share: bool) -> Layout:
    """`plan_memory`, or the offsets that it found before."""
    shelf = _shelf("layout", len(requests))
    if shelf is None:
        return plan_memory(requests, inplace=inplace, share=share)
    content = repr((requests, inplace, share))
    known = _numbers(shelf.read(content))
    if known is not None and fits(requests, known, inplace=inplace):
        return plan_memory(requests, inplace=inplace, share=share, known=known)
    found = plan_memory(requests, inplace=inplace, share=share)
    shelf.write(content, _text(found.offsets))
    return found


def _shelf(kind: str, steps: int) -> Shelf | None:
    """None where nothing is kept."""
    folder = config.CACHE.get()
    if folder is None or steps < LEAST_STEPS:
        return None
    from pathlib import Path

    from graphkit.shelf import Shelf

    return Shelf(Path(folder), kind, ".json", MOST_ENTRIES)


def _text(numbers: Sequence[int]) -> bytes:
    import json

    return json.dumps(list(numbers), separators=(",", ":")).encode()


def _numbers(kept: bytes | None) -> tuple[int, ...] | None:
    """None where nothing is kept, or what is no list of numbers."""
    import json

    try:
        numbers = json.loads(kept or b"")
    except ValueError:
        return None
    return tuple(numbers) if isinstance(numbers, list) and all(type(n) is int for n in numbers) else None
