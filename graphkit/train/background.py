"""Background work during the steps of an epoch: loading the next batches, and computing the last one's metrics."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

import numpy as np

from graphkit.data import prefetch
from graphkit.errors import UsageError
from graphkit.executor.devices.loading import load_native
from graphkit.executor.run.engine import Engine, Offload
from graphkit.train.metrics import Metric

T = TypeVar("T")

# Metrics run in a worker thread only if they take longer than this: a worker may hold the GIL for 5 ms.
METRIC_SECONDS = 5e-3


def length_of(data: object) -> int | None:
    return len(data) if hasattr(data, "__len__") else None


def first_batches(batches: Iterable[T], count: int | None) -> Iterable[T]:
    """The result has a length if `batches` has one."""
    if count is None:
        return batches
    length = length_of(batches)
    return _First(batches, count) if length is None else _SizedFirst(batches, min(count, length))


class _First(Iterable[T]):
    def __init__(self, batches: Iterable[T], count: int):
        self._batches, self._count = batches, count

    def __iter__(self) -> Iterator[T]:
        return itertools.islice(self._batches, self._count)


class _SizedFirst(_First[T]):
    def __len__(self) -> int:
        return self._count


class BackgroundWork:
    """Two worker threads for the duration of a `with` block: one loads batches, the other computes metrics.

    depth: number of batches loaded ahead. With 0, or without the native engine, everything runs in the calling thread.

    If a metric raises an exception in its worker, the exception is raised again by the next call of `measure` or
    `wait_for_metrics`, or at the end of the block.
    """

    def __init__(self, depth: int):
        if depth < 0:
            raise UsageError(f"prefetch={depth}: the number of batches to load ahead must not be negative")
        self._depth = depth
        self._engine: Engine | None = None
        self._scoring = Offload(METRIC_SECONDS)
        # Whether a worker may still be computing metrics. `wait_for_metrics` waits only then, because every wait gives
        # the GIL to the thread that loads batches.
        self._pending = False

    def __enter__(self) -> BackgroundWork:
        if self._depth and load_native() is not None:
            self._engine = Engine(workers=2)
            self._scores = self._engine.variable("metrics")
            self._context = contextvars.copy_context()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._engine is not None:
            self._engine.__exit__(kind, error, at)

    def batches(self, source: Iterable[T]) -> Iterator[T]:
        return iter(source) if self._engine is None else prefetch(source, self._depth, engine=self._engine)

    def wait_for_metrics(self) -> None:
        if self._pending and self._engine is not None:
            self._pending = False
            self._engine.wait(self._scores)

    def measure(self, metrics: Sequence[Metric], output: np.ndarray, target: np.ndarray) -> None:
        """Update metrics with a batch. If they are slow, a worker does it during the next step."""
        if not len(target):
            return

        def update() -> None:
            for metric in metrics:
                metric.update(output, target)

        if self._engine is None:
            update()
            return
        self.wait_for_metrics()
        self._pending = self._scoring.worthwhile
        if self._pending:
            work = partial(self._context.run, self._scoring.timed, update)
            self._engine.push(work, writes=[self._scores], name="metrics")
        else:
            self._scoring.timed(update)
