"""Load batches in the background while earlier ones are used."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from graphkit.errors import UsageError
from graphkit.executor.devices.loading import load_native
from graphkit.executor.run.engine import Engine, Offload, Variable
from graphkit.named_tuples import NamedTuple
from graphkit.signatures import typed

T = TypeVar("T")


class _Slot(NamedTuple):
    """The next item. `items` stays empty if the source has no more."""

    filled: Variable
    items: list[Any]


@typed("gk.data.prefetch")
def prefetch(batches: Iterable[T], depth: int = 2, *, engine: Engine | None = None) -> Iterator[T]:
    """Iterate over `batches` in their order, loading items ahead on a background thread.

    Items are loaded one at a time, so `batches` may be any iterable, including a generator. If loading an item raises
    an exception, it is raised at the position of that item. The thread ends with the iteration, also if you stop early.
    If `batches` has a `position`, that position is ahead: it also counts items that are loaded but not yet returned to
    you. Without the native engine, there is no background thread, and `depth` has no effect.

    Args:
        batches: Any iterable.
        depth: Number of items that may be loaded ahead. With 0, or if loading takes almost no time, each is loaded when
            it is requested.
        engine: The dependency engine to use. It is not closed at the end.

    Raises:
        UsageError: `depth` is negative.
    """
    if depth < 0:
        raise UsageError(f"prefetch={depth}: the number of batches to load ahead must not be negative")
    if not depth or load_native() is None:
        return iter(batches)
    return _prefetched(iter(batches), depth, engine) if engine is not None else _on_own_engine(iter(batches), depth)


def _on_own_engine(source: Iterator[T], depth: int) -> Iterator[T]:
    with Engine(workers=1) as engine:
        yield from _prefetched(source, depth, engine)


def _prefetched(source: Iterator[T], depth: int, engine: Engine) -> Iterator[T]:
    # Every load writes this variable. So the engine runs loads one after another, and none after one that failed.
    position = engine.variable("position in the data")
    # The context of the calling thread. It includes numpy's errstate.
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
