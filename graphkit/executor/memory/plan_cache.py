"""A cache on disk of step orders and arena offsets, in the folder GRAPHKIT_CACHE.

The key of an entry is a hash of everything that the result depends on: tasks, sizes, working memory of the kernels,
options. An entry is checked before it is used, and replaced if it is not valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphkit import config
from graphkit.executor.devices.loading import native_module
from graphkit.executor.memory.planner import Layout, Request, is_valid_layout, plan_memory
from graphkit.executor.memory.tasks import Schedule, Task

if TYPE_CHECKING:
    from graphkit.shelf import Shelf

# With fewer steps, planning is faster than reading a file.
MIN_STEPS = 100
# Maximum number of entries of one kind (orders, layouts) in the folder.
MAX_ENTRIES = 2048


def schedule(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """Return the order that `schedule_in_python` defines. The native extension computes it in a fraction of the time.

    Args:
        tasks: The steps.
        sizes: Bytes of the buffers; 0 for those outside the arena.
    """
    native = native_module()
    if native is None:
        from graphkit.executor.memory.schedule import schedule_in_python

        return schedule_in_python(tasks, sizes)
    order, peak, plain_peak = native.schedule(tasks, sizes)
    return Schedule(tuple(order), peak, plain_peak)


def cached_schedule(tasks: Sequence[Task], sizes: Sequence[int]) -> Schedule:
    """Return the result of `schedule`, whose order is taken from the cache if it is there."""
    shelf = _shelf("schedule", len(tasks))
    if shelf is None:
        return schedule(tasks, sizes)
    from graphkit.executor.memory.schedule import is_topological_order, with_peaks

    content = repr((tasks, sizes))
    known = _numbers(shelf.read(content))
    if known is not None and is_topological_order(tasks, known):
        return with_peaks(tasks, sizes, known)
    found = schedule(tasks, sizes)
    shelf.write(content, _text(found.order))
    return found


def cached_layout(requests: Sequence[Request], *, inplace: bool, share: bool) -> Layout:
    """Return the result of `plan_memory`, whose offsets are taken from the cache if they are there."""
    shelf = _shelf("layout", len(requests))
    if shelf is None:
        return plan_memory(requests, inplace=inplace, share=share)
    content = repr((requests, inplace, share))
    known = _numbers(shelf.read(content))
    if known is not None and is_valid_layout(requests, known, inplace=inplace):
        return plan_memory(requests, inplace=inplace, share=share, known=known)
    found = plan_memory(requests, inplace=inplace, share=share)
    shelf.write(content, _text(found.offsets))
    return found


def _shelf(kind: str, steps: int) -> Shelf | None:
    """Return the cache of a kind of entry, or None if GRAPHKIT_CACHE is not set or there are too few steps."""
    folder = config.CACHE.get()
    if folder is None or steps < MIN_STEPS:
        return None
    from pathlib import Path

    from graphkit.shelf import Shelf

    return Shelf(Path(folder), kind, ".json", MAX_ENTRIES)


def _text(numbers: Sequence[int]) -> bytes:
    import json

    return json.dumps(list(numbers), separators=(",", ":")).encode()


def _numbers(entry: bytes | None) -> tuple[int, ...] | None:
    """Return the numbers of an entry, or None if there is no entry, or it is not a list of integers."""
    import json

    try:
        numbers = json.loads(entry or b"")
    except ValueError:
        return None
    return tuple(numbers) if isinstance(numbers, list) and all(type(n) is int for n in numbers) else None
