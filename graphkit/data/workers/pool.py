"""Workers: processes that make the batches of lazy data sets in advance."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit import config
from graphkit.errors import UsageError
from graphkit.named_tuples import NamedTuple
from graphkit.text import short_repr

if TYPE_CHECKING:
    from graphkit.data.making import BatchMaker
    from graphkit.data.workers.crew import Crew, Task

# Number of latest batches from whose sizes the size of the next one is estimated.
_LATEST = 8


class Workers:
    """Processes that make batches of lazy data sets in advance. Several data sets can share them.

    Each batch is made by one worker, in memory that it shares with this process, so the batch is not copied. You may
    keep and change the arrays of a batch: its memory is reused only after all arrays and views of it are deleted. If
    you keep more than 64 batches, further ones are copies. Batches are returned in order, and their bits do not depend
    on `count`.

    Workers start when the first batch is requested. They are new Python interpreters with one thread each, and import
    the modules that the data set needs. They end after `close`, at the end of a `with` block, when this object is
    deleted, and when this process ends or is killed. A data set is sent to them once; later changes to it have no
    effect. If the class of a data set is defined in the script itself, put the work of the script under
    `if __name__ == "__main__":`, because workers import the script.

    If `sample` raises an exception, you get it when you request that batch: graphkit's own errors unchanged, others as
    the cause of a WorkerError that gives the number of the sample. If a worker is killed or hangs, you get a
    WorkerError, too. After an error all workers end; new ones start when batches are requested again.

    Args:
        count: Number of processes. With 0, batches are made in this process.
        ahead: Maximum number of batches made in advance (default: two per worker).
        ahead_bytes: Maximum memory of the batches made in advance, estimated from the sizes of earlier batches
            (default: GRAPHKIT_AHEAD_MEMORY). At least one batch is made in advance.
        timeout: Seconds that a worker may take for one sample; if it takes longer, it counts as hanging (default:
            GRAPHKIT_WORKER_TIMEOUT). A worker always has at least 30 seconds to start and import modules.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(
        self, count: int, *, ahead: int | None = None, ahead_bytes: int | None = None, timeout: float | None = None
    ):
        if not isinstance(count, int) or count < 0:
            raise UsageError(f"workers must be a number of processes, not {count!r}")
        if ahead is not None and ahead < 1:
            raise UsageError(f"ahead={ahead}: the number of batches made in advance must be positive")
        self.count = count
        self._ahead = 2 * count if ahead is None else ahead
        self._memory = config.AHEAD_MEMORY.get() if ahead_bytes is None else ahead_bytes
        self._timeout = config.WORKER_TIMEOUT.get() if timeout is None else timeout
        self._crew: Crew | None = None
        self._end: weakref.finalize[[], Workers] | None = None

    def start(self) -> None:
        """Start the processes, unless they are running."""
        from graphkit.data.workers.crew import Crew
        from graphkit.executor.run.interruption import uninterrupted

        if self._crew is not None and not self._crew.of_this_process:
            self._crew = None
        if self._crew is None and self.count:
            with uninterrupted:
                self._crew = Crew(self.count, self._timeout, self._ahead, self._memory)
                self._end = weakref.finalize(self, self._crew.close)

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [] if self._crew is None else self._crew.pids

    def run(self, data: BatchMaker, parts: Iterable[np.ndarray], key: tuple[int, int] | None) -> Run:
        """Return one batch for each of `parts` (positions of samples), in order. key: see LazyDataset.make_batch."""
        if not self.count:
            raise UsageError("Workers(0) has no processes to make batches; create Workers with a count above 0")
        self.start()
        assert self._crew is not None, "it has started"
        return Run(self, self._crew, data, iter(parts), key, self._ahead, self._memory)

    def close(self) -> None:
        """End the processes. Batches that were returned stay valid."""
        if self._end is not None:
            self._end()
        self._crew = self._end = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> Any:
        # The copy of a data set in a worker has no workers of its own.
        return Workers, (0,)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield ""
        yield str(self.count)
        yield "running" if self.pids else "not started"


class Made(NamedTuple):
    """A batch that workers made. damaged, replaced: see Making."""

    inputs: Any
    targets: Any
    damaged: list[tuple[int, str]]
    replaced: int


class Run:
    """Batches of one data set in order, some made in advance. Leaving the `with` block abandons the rest."""

    def __init__(
        self, workers: Workers, crew: Crew, data: BatchMaker, parts: Iterator[np.ndarray],
        key: tuple[int, int] | None, ahead: int, memory: int,
    ):  # fmt: skip
        self._workers, self._crew, self._data, self._parts, self._key = workers, crew, data, parts, key
        self._ahead, self._memory = ahead, memory
        # Batches that were requested, but not yet returned.
        self._tasks: deque[Task] = deque()
        self._sizes: deque[int] = deque(maxlen=_LATEST)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._crew.abandon([*self._tasks])
        self._tasks.clear()

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Made:
        self._ask()
        if not self._tasks:
            raise StopIteration
        task = self._tasks[0]
        try:
            inputs, targets = self._crew.finish(task, self._ask)
        except Exception:
            self._tasks.clear()
            self._workers.close()
            raise
        self._tasks.popleft()
        self._sizes.append(task.size or 0)
        self._ask()
        return Made(inputs, targets, task.damaged, task.replaced)

    def _ask(self) -> None:
        """Request batches up to the limits; at first only one, until its size is known from its first sample."""
        while len(self._tasks) < self._ahead:
            known = [*self._sizes, *(task.size for task in self._tasks if task.size is not None)]
            if self._tasks:
                if not known:
                    return
                expected = max(known)
                sizes = [expected if task.size is None else task.size for task in self._tasks]
                if sum(sizes) + expected > self._memory:
                    return
            places = next(self._parts, None)
            if places is None:
                return
            self._tasks.append(self._crew.ask(self._data, places, self._key))
