"""Run worker processes: send them tasks, and receive batches in any order."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import selectors
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.data.making import BatchMaker
from graphkit.data.workers.memory import Layout, Lease, Slot, anonymous
from graphkit.data.workers.parcel import Parcel, packed
from graphkit.data.workers.progress import Progress
from graphkit.data.workers.start import Started, started
from graphkit.data.workers.wire import Closed, Connection
from graphkit.errors import GraphkitError, OutOfMemory, WorkerError
from graphkit.executor.run.interruption import uninterrupted

# Maximum number of batches assigned to a worker: the one that it makes, and the next one.
_IN_HAND = 2

# Maximum number of returned batches that use shared memory. Further ones are copies, because each slot needs two file
# descriptors, and a process usually has a limit of 1,024.
_LENT = 64

# Seconds between checks whether workers make progress, while a thread waits for a batch.
_LOOK = 1.0

# Minimum time limit in seconds outside of samples, because a worker needs time to start and to import modules.
_LEAST = 30.0


@dataclass(eq=False)
class Task:
    """A requested batch. size: its bytes, or an estimate; None if unknown.

    A task does not refer to the data set: deleting the last reference to a data set may end the workers.
    """

    number: int
    data: int
    name: str
    places: np.ndarray
    key: tuple[int, int] | None
    slot: Slot | None = None
    size: int | None = None
    layout: Layout | None = None
    error: BaseException | None = None
    damaged: list[tuple[int, str]] = field(default_factory=list)
    replaced: int = 0
    # Whether the result is no longer needed.
    abandoned: bool = False

    @property
    def done(self) -> bool:
        return self.layout is not None or self.error is not None


class _Worker:
    """A worker process: its pending `tasks`, and the data sets and slots that it received."""

    def __init__(self, process: Started, page: int):
        self.pid = process.pid
        self.process = process
        self.connection = Connection(process.end)
        self.progress = Progress(mmap.mmap(page, Progress.SIZE))
        self.tasks: dict[int, Task] = {}
        self.data: set[int] = set()
        self.slots: set[int] = set()
        # Events of the connection that the selector waits for.
        self.events = selectors.EVENT_READ
        self._beats, self._still = -1, 0.0

    def still(self, seconds: float) -> float:
        """Return for how many seconds the worker made no progress. `seconds`: time since the last call.

        The sum of these times is used instead of a clock: if this process is stopped, the worker may be stopped, too.
        """
        beats = self.progress.beats
        self._still = self._still + seconds if beats == self._beats and (self.in_sample or self.tasks) else 0.0
        self._beats = beats
        return self._still

    @property
    def in_sample(self) -> bool:
        return self.progress.task >= 0


class Crew:
    """A group of processes that make batches. Calls from several threads wait for each other.

    timeout: seconds without progress after which a worker is killed. Between samples, a worker that has tasks gets at
    least _LEAST seconds.
    spare, memory: maximum number of free slots, and maximum bytes of the slots that no array uses.
    """

    def __init__(self, count: int, timeout: float, spare: int, memory: int):
        self._timeout, self._spare, self._memory = timeout, spare, memory
        self._lock = threading.Lock()
        self._number = 0
        self._pending: deque[Task] = deque()
        self._free: deque[Slot] = deque()
        # Leases of deleted batches, whose slots are free, too.
        self._ended: deque[Lease] = deque()
        self._slots: dict[int, Slot] = {}
        # Number -> pickled data set.
        self._parcels: dict[int, Parcel] = {}
        self._numbers: weakref.WeakKeyDictionary[BatchMaker, int] = weakref.WeakKeyDictionary()
        # Deleted data sets, and tasks that are no longer needed. Finalizers and `abandon` append to them at any time,
        # even while this thread holds the lock; `_dispatch` handles them.
        self._forgotten: deque[int] = deque()
        self._abandoned: deque[Task] = deque()
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        # The reason why no more batches can be made, or None.
        self.broken: WorkerError | None = None
        self._closed = False
        pages = [anonymous("progress", Progress.SIZE) for _ in range(count)]
        try:
            for page in pages:
                Progress(mmap.mmap(page, Progress.SIZE)).between()
            self._processes = started(pages)
            for process, page in zip(self._processes.each, pages, strict=True):
                worker = _Worker(process, page)
                self._workers.append(worker)
                self._selector.register(worker.connection, worker.events, worker)
                self._send(worker, ("arguments", sys.argv))
        finally:
            for page in pages:
                os.close(page)

    @property
    def of_this_process(self) -> bool:
        """Whether this process started the workers. False in a process that was forked from it."""
        return self._processes.of_this_process

    @property
    def pids(self) -> list[int]:
        return [worker.pid for worker in self._workers]

    def ask(self, data: BatchMaker, places: np.ndarray, key: tuple[int, int] | None) -> Task:
        """Request a batch of the samples at `places`. Batches are started in the order of requests."""
        with self._lock, uninterrupted:
            if self.broken is not None:
                return Task(self._next(), 0, data.name, places, key, error=self.broken)
            if data not in self._numbers:
                self._register(data)
            task = Task(self._next(), self._numbers[data], data.name, places, key)
            self._pending.append(task)
            self._dispatch()
        return task

    def finish(self, task: Task, meanwhile: Callable[[], None]) -> tuple[Any, Any]:
        """Wait for a batch and return its (inputs, targets). Raises the exception of the worker, or WorkerError.

        meanwhile: called after messages from workers, or after at most _LOOK seconds without any.
        """
        while True:
            with self._lock:
                if task.error is not None:
                    raise task.error
                if task.layout is not None:
                    with uninterrupted:
                        return self._lend(task, task.layout)
                if self.broken is not None and (self._closed or not self._workers):
                    raise self.broken
                self._receive(min(_LOOK, self._timeout))
            meanwhile()

    def abandon(self, tasks: list[Task]) -> None:
        """Cancel tasks whose results are not needed."""
        if not self.of_this_process:
            return
        self._abandoned.extend(tasks)
        # If the lock is taken, its holder calls `_dispatch` later.
        if self._lock.acquire(blocking=False):
            try:
                with uninterrupted:
                    self._dispatch()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End all processes. Arrays of returned batches stay valid."""
        if not self.of_this_process:
            return
        with uninterrupted:
            self.broken, self._closed = WorkerError("Workers.close() was called: the worker processes have ended"), True
            # This wakes a thread that waits for a batch, so that it releases the lock. The wait for the lock has a
            # limit, because the garbage collector may have called `close` in the thread that holds it.
            for worker in self._workers:
                worker.connection.end()
            alone = self._lock.acquire(timeout=2 * _LOOK)
            for worker in self._workers:
                worker.connection.close()
            self._processes.end()
            self._selector.close()
            for slot in self._slots.values():
                slot.close()
            for parcel in self._parcels.values():
                os.close(parcel.file)
            self._workers, self._slots, self._parcels = [], {}, {}
            if alone:
                self._lock.release()

    # --- the methods below need the lock --------------------------------------------------------

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _register(self, data: BatchMaker) -> None:
        parcel = packed(data.name, data)
        number = self._numbers[data] = self._next()
        self._parcels[number] = parcel
        weakref.finalize(data, self._forgotten.append, number).atexit = False

    def _lend(self, task: Task, layout: Layout) -> tuple[Any, Any]:
        slot, task.slot = task.slot, None
        assert slot is not None, "it is lent once"
        lent = sum(other.lent for other in self._slots.values())
        return slot.lend(layout) if lent < _LENT else slot.copied(layout)

    def _dispatch(self) -> None:
        """Send tasks to workers with fewer than _IN_HAND, and free memory that is not needed."""
        if self._abandoned:
            self._give_up()
        while self._forgotten:
            number = self._forgotten.popleft()
            os.close(self._parcels.pop(number).file)
            for worker in self._workers:
                if number in worker.data:
                    worker.data.remove(number)
                    self._send(worker, ("drop", number))
        while self._pending and self._workers:
            worker = min(self._workers, key=lambda w: len(w.tasks))
            if len(worker.tasks) >= _IN_HAND:
                break
            self._give(worker, self._pending.popleft())
        self._trim()

    def _give_up(self) -> None:
        while self._abandoned:
            task = self._abandoned.popleft()
            task.abandoned = True
            if task.done:
                self._give_back(task)
        self._pending = deque(task for task in self._pending if not task.abandoned)
        for worker in self._workers:
            if unwanted := [number for number, task in worker.tasks.items() if task.abandoned]:
                self._send(worker, ("forget", unwanted))

    def _give(self, worker: _Worker, task: Task) -> None:
        if task.data not in worker.data:
            parcel = self._parcels[task.data]
            self._send(worker, ("data", task.data, task.name, parcel.spans, parcel.script), [parcel.file])
            worker.data.add(task.data)
        task.slot = slot = self._slot(worker)
        if slot.number not in worker.slots:
            self._send(worker, ("slot", slot.number), [slot.file])
            worker.slots.add(slot.number)
        slot.filled_by = worker.pid
        worker.tasks[task.number] = task
        self._send(worker, ("make", task.number, task.data, task.places, task.key, slot.number))

    def _slot(self, worker: _Worker) -> Slot:
        """Return the most recently freed slot, preferably one that the worker has already mapped; else a new one."""
        self._collect()
        free = [*self._free]
        if not free:
            slot = Slot(self._next(), self._free.append, self._ended.append)
            self._slots[slot.number] = slot
            return slot
        slot = next((found for found in reversed(free) if found.filled_by == worker.pid), free[-1])
        self._free.remove(slot)
        return slot

    def _collect(self) -> None:
        """Free the slots of deleted batches. Deletions may append to `_ended` at any time."""
        while self._ended:
            self._ended.popleft().slot.release()

    def _trim(self) -> None:
        self._collect()
        while self._free and (
            len(self._free) > self._spare
            or sum(slot.size for slot in self._slots.values() if not slot.lent) > self._memory
        ):
            slot = self._free.popleft()
            del self._slots[slot.number]
            for worker in self._workers:
                if slot.number in worker.slots:
                    worker.slots.remove(slot.number)
                    self._send(worker, ("close", slot.number))
            slot.close()

    def _give_back(self, task: Task) -> None:
        if task.slot is not None:
            self._free.append(task.slot)
            task.slot = None

    def _send(self, worker: _Worker, message: Any, files: Sequence[int] = ()) -> None:
        """Queue a message without waiting: if both sides waited until the other reads, they would deadlock."""
        worker.connection.post(message, files)
        self._await(worker)

    def _await(self, worker: _Worker) -> None:
        """Make the selector also wait until the worker can receive, while a part of a message is left to send."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.connection.leaving else 0)
        if events != worker.events and not self._closed:
            worker.events = events
            self._selector.modify(worker.connection, events, worker)

    def _receive(self, seconds: float) -> None:
        # KeyboardInterrupt can only occur here, between messages.
        events = self._selector.select(seconds)
        if self._closed:
            return
        with uninterrupted:
            for key, ready in events:
                if ready & selectors.EVENT_WRITE:
                    key.data.connection.flush()
                    self._await(key.data)
                if ready & selectors.EVENT_READ:
                    self._take(key.data)
            if not events:
                for worker in [*self._workers]:
                    limit = self._timeout if worker.in_sample else max(self._timeout, _LEAST)
                    if worker.still(seconds) >= limit:
                        worker.process.kill()
                        self._lost(
                            worker, f"was ended, because it made no progress for {limit:g} s (GRAPHKIT_WORKER_TIMEOUT)"
                        )
            self._dispatch()

    def _take(self, worker: _Worker) -> None:
        try:
            (kind, number, *what), _ = worker.connection.receive()
        except Closed:
            self._lost(worker, worker.process.ending())
            return
        task = worker.tasks[number]
        if kind == "sized":
            task.size = what[0]
            return
        del worker.tasks[number]
        assert task.slot is not None, "a task that was given has one"
        if kind == "made":
            task.slot.filled()
            task.layout, task.damaged, task.replaced = what
            task.size = what[0].size
        elif kind == "failed":
            task.error = _raised(task, worker.pid, *what)
        else:
            assert kind == "forgotten", kind
        if task.abandoned or task.error is not None:
            self._give_back(task)

    def _lost(self, worker: _Worker, how: str) -> None:
        """Handle the end of a worker: its current batch fails with an error; other workers make its other batches."""
        self._selector.unregister(worker.connection)
        self._workers.remove(worker)
        worker.connection.close()
        at = worker.tasks.get(worker.progress.task)
        where = "between samples" if at is None else f"in sample {worker.progress.sample} of {at.name}"
        error = WorkerError(f"worker process {worker.pid} {how}, {where}")
        tasks = [*worker.tasks.values()]
        for task in tasks:
            self._give_back(task)
        if at is None and tasks:
            at = tasks[0]
        if at is None or not self._workers:
            self.broken = error
        if at is not None:
            at.error = error
        self._pending.extendleft(task for task in reversed(tasks) if task is not at and not task.abandoned)


def _raised(task: Task, pid: int, sample: int, pickled: bytes | None, line: str, trace: str) -> BaseException:
    """The exception to raise for a batch that failed in a worker."""
    error = None
    if pickled is not None:
        with contextlib.suppress(Exception):  # only the worker may be able to import its class
            error = pickle.loads(pickled)
    where = f"{task.name}: sample {sample}" if sample >= 0 else f"{task.name} in a worker process"
    if isinstance(error, GraphkitError):
        error.add_note(f"in {where}, made by worker process {pid}")
        return error
    kind = OutOfMemory if isinstance(error, MemoryError) else WorkerError
    found = kind(f"{where}: {line}")
    found.__cause__ = error if isinstance(error, Exception) else None
    found.add_note(f"In worker process {pid}:\n{trace}")
    return found
