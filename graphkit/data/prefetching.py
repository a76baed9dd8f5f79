"""Batches that are loaded while others are in use."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from graphkit.errors import UsageError
from graphkit.executor.devices.loading import load_native
from graphkit.executor.run.engine import Engine, Variable
from graphkit.executor.run.offload import Offload
from graphkit.signatures import typed

T = TypeVar("T")


class _Slot(NamedTuple):
    """Where a worker puts the next item; nothing, when there is none left."""

    filled: Variable
    items: list[Any]


@typed("gk.data.prefetch")
def prefetch(batches: Iterable[T], depth: int = 2, *, engine: Engine | None = None) -> Iterator[T]:
    """The items of `batches` in their order, loaded by a worker of a dependency engine ahead of whoever takes them.

    Up to `depth` items are ready or being made; 0 makes each when it is asked for, and so does a source whose items
    take next to no time. One at a time is made, so that `batches` may be any iterable, a generator too; what making one
    raises comes out in its place. Iterating ends the worker, also when it is given up early; with `engine` the work
    goes on there, and its owner ends it.

    A `position` of `batches` is ahead of the items that were handed out. Without the native engine there are no
    workers, and `depth` has no effect. Raises UsageError for a negative depth.
    """
    if depth < 0:
        raise UsageError(f"prefetch={depth}: the number of batches to load ahead is not negative")
    if not depth or load_native() is None:
        return iter(batches)
    return _prefetched(iter(batches), depth, engine) if engine is not None else _on_own_engine(iter(batches), depth)


def _on_own_engine(source: Iterator[T], depth: int) -> Iterator[T]:
    with Engine(workers=1) as engine:
        yield from _prefetched(source, depth, engine)


def _prefetched(source: Iterator[T], depth: int, engine: Engine) -> Iterator[T]:
    # Every load writes it: one follows the other, and none is tried after one that failed.
    position = engine.variable("position in the data")
    # Of the thread that asks: numpy's errstate is part of it.
    context = contextvars.copy_context()
    loading = Offload()
    slots: deque[_Slot] = deque()

    def load(items: list[T]) -> None:
        for item in source:
            items.append(item)
            return

    while True:
        if slots:
            slot = slots.popleft()
            engine.wait(slot.filled)
        else:
            slot = _Slot(position, [])
            loading.timed(partial(load, slot.items))
        if not slot.items:
            return
        while loading.worthwhile and len(slots) < depth:
            ahead = _Slot(engine.variable("batch"), [])
            work = partial(context.run, loading.timed, partial(load, ahead.items))
            engine.push(work, writes=[position, ahead.filled], name="load batch")
            slots.append(ahead)
        yield slot.items.pop()
