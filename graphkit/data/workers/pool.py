"""Workers: processes that make the batches of lazy data sets, ahead of whoever takes them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphkit import config
from graphkit.errors import UsageError
from graphkit.text import short_repr

if TYPE_CHECKING:
    from graphkit.data.lazy import LazyDataset
    from graphkit.data.workers.crew import Crew, Task

# From so many of the latest batches one knows how large the next may be.
_LATEST = 8


class Workers:
    """`count` processes that make samples of lazy data sets, for any number of data sets, one after another or at once.

    Each batch is made by one worker, straight into memory that it shares with this process; nothing is copied when it
    is handed out. Arrays of a batch may be kept and written: its memory is used again when no array, and no view of
    one, is left. Of whoever keeps more than 64 batches, further ones are copies. Batches come in their order, with the
    same bits for any count.

    ahead: how many batches, at most, are made or ready before somebody takes them (default: two for each worker);
    ahead_bytes: how much memory, at most, these take (default: GRAPHKIT_AHEAD_MEMORY), judged by the batches before
    them; one is always made. timeout: seconds after which a worker that is still in one sample is taken to hang
    (default: GRAPHKIT_WORKER_TIMEOUT), or has not come to its first one, for which it has 30 at least.

    Processes start when the first batch is asked for, as interpreters of their own with one thread each, import what
    the data set needs, and end by `close`, at the end of the `with` block, or when nothing refers to the object; also
    when this process is killed. A data set is sent once: what changes in it later stays here. Classes of data sets in
    the script itself need its work under `if __name__ == "__main__":`, as workers import it.

    What `sample` raises comes out in the place of its batch: errors of graphkit as they are, others as WorkerError with
    the number of the sample, and the original as its cause. A worker that was killed, or hangs, is a WorkerError too.
    After each the workers end, and fresh ones start with the next batches that are asked for.
    """

    def __init__(
        self, count: int, *, ahead: int | None = None, ahead_bytes: int | None = None, timeout: float | None = None
    ):
        if not isinstance(count, int) or count < 0:
            raise UsageError(f"workers is a number of processes, not {count!r}")
        if ahead is not None and ahead < 1:
            raise UsageError(f"ahead={ahead}: the number of batches that are made ahead is positive")
        self.count = count
        self._ahead = 2 * count if ahead is None else ahead
        self._memory = config.AHEAD_MEMORY.get() if ahead_bytes is None else ahead_bytes
        self._timeout = config.WORKER_TIMEOUT.get() if timeout is None else timeout
        self._crew: Crew | None = None
        self._end: weakref.finalize[[], Workers] | None = None

    def start(self) -> None:
        """Start the processes, unless they run."""
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
        """Of the processes that run."""
        return [] if self._crew is None else self._crew.pids

    def run(self, data: LazyDataset, parts: Iterable[np.ndarray], key: tuple[int, int] | None) -> Run:
        """The batches of the samples at each of `parts`, in that order; key: see LazyDataset.made."""
        if not self.count:
            raise UsageError("there are no workers")
        self.start()
        assert self._crew is not None, "it has started"
        return Run(self, self._crew, data, iter(parts), key, self._ahead, self._memory)

    def close(self) -> None:
        """End the processes. Batches that were handed out stay."""
        if self._end is not None:
            self._end()
        self._crew = self._end = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> Any:
        # A data set that is sent to a worker has none there.
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
    """Batches of one data set in their order, some made ahead. Leaving the `with` block gives up the rest."""

    def __init__(
        self, workers: Workers, crew: Crew, data: LazyDataset, parts: Iterator[np.ndarray],
        key: tuple[int, int] | None, ahead: int, memory: int,
    ):  # fmt: skip
        self._workers, self._crew, self._data, self._parts, self._key = workers, crew, data, parts, key
        self._ahead, self._memory = ahead, memory
        # Asked for, and not yet taken.
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
        """For as many batches as may be ahead. Of the very first, one, until its first sample shows how large it is."""
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
