"""Background work during the steps of an epoch: loading the next batches, and computing the last one's metrics."""

from __future__ import annotations

import contextvars
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

# A thread that runs Python may keep the GIL for 5 ms (sys.getswitchinterval) while the one that steps asks for it:
# shorter metrics in plain Python would delay steps by more than they take.
METRIC_SECONDS = 5e-3


def length_of(data: object) -> int | None:
    """Return the length; None if there is none."""
    return len(data) if hasattr(data, "__len__") else None


class BackgroundWork:
    """A dependency engine for the duration of its `with` block: one worker loads batches, another computes metrics.

    depth: number of batches that are loaded ahead. With 0, or without the native engine, everything runs when it is
    requested. An exception of a metric is raised at the next metric, or at the end of the block unless the block raises
    one itself. Leaving the block waits for all metrics.
    """

    def __init__(self, depth: int):
        if depth < 0:
            raise UsageError(f"prefetch={depth}: the number of batches to load ahead must not be negative")
        self._depth = depth
        self._engine: Engine | None = None
        self._scoring = Offload(METRIC_SECONDS)
        self._pending = False  # a wait gives the GIL away, to the worker that loads

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

    def settle(self) -> None:
        """Wait until the metrics have seen all their batches."""
        if self._pending and self._engine is not None:
            self._pending = False
            self._engine.wait(self._scores)

    def measure(self, metrics: Sequence[Metric], output: np.ndarray, target: np.ndarray) -> None:
        """Update metrics with a batch; slow ones run during the next step."""

        def update() -> None:
            for metric in metrics:
                metric.update(output, target)

        if self._engine is None:
            update()
            return
        self.settle()
        self._pending = self._scoring.worthwhile
        if self._pending:
            work = partial(self._context.run, self._scoring.timed, update)
            self._engine.push(work, writes=[self._scores], name="metrics")
        else:
            self._scoring.timed(update)
