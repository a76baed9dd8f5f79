"""The queue that runs operations on arrays, and the settings of the current thread."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from graphkit.errors import GraphkitError
from graphkit.executor.run.array_queue import ArrayQueue
from graphkit.executor.run.engine import Engine

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


class Memory:
    """The memory of an array and of its views.

    Attributes:
        state: The state of its pending operations.
        version: The number of writes.
        maker: The deferred call that will write it first; None if that was pushed.
        readers: Deferred calls that read it, and must be pushed before it is written.
        nbytes: The number of its bytes, which the first array of it sets; -1 before.
        prune_at: The number of readers at which those that are gone are removed.
    """

    __slots__ = ("state", "version", "maker", "readers", "nbytes", "prune_at", "__weakref__")

    def __init__(self) -> None:
        self.state: _native.ArrayState = (_queue or queue()).state()
        self.version = 0
        self.maker: DeferredCall | None = None
        self.readers: list[weakref.ref[Any]] | None = None
        self.nbytes = -1
        self.prune_at = 0

    def written(self) -> None:
        """Count a write. Call it before the write is pushed."""
        # Another thread may push the call, and set `maker` to None.
        maker = self.maker
        if maker is not None:
            maker.force()
        if self.readers is not None:
            self._force_readers()
        self.version += 1

    def _force_readers(self) -> None:
        """Push the deferred calls that read the memory. If one cannot be pushed, it remains a reader."""
        while readers := self.readers:
            count = len(readers)
            for reference in readers[:count]:
                if (call := reference()) is not None:
                    call.force()
            with locks.listing:
                # Another thread may have added a call in the meantime.
                if self.readers is readers and len(readers) == count:
                    self.readers = None

    def add_reader(self, reference: weakref.ref[Any]) -> None:
        """Add a deferred call that reads the memory. The caller holds `locks.listing`."""
        readers = self.readers
        if readers is None:
            self.readers, self.prune_at = [reference], 8
        elif readers[-1] is not reference:
            if len(readers) >= self.prune_at:
                self.readers = readers = [r for r in readers if r() is not None]
                self.prune_at = max(8, 2 * len(readers))
            readers.append(reference)

    def readable(self) -> _native.ArrayState:
        """Return the state, after a deferred call that writes the memory was pushed."""
        maker = self.maker
        if maker is not None:
            maker.force()
        return self.state


class DeferredCall(Protocol):
    """A call that is pushed later: when its results are needed, or its operands are about to be written."""

    def force(self) -> None:
        """Push the call, unless that was done."""
        ...


class Locks:
    """The locks of this module and its neighbours. The child of a fork gets new ones.

    A thread that holds `compiling` does not take `deferring`, and one that holds `listing` takes no other lock.

    Attributes:
        deferring: Held while deferred calls are pushed, one by one or by `backward`.
        compiling: Held while a program is compiled.
        listing: Held while the tables of deferred calls and of signatures change.
    """

    def __init__(self) -> None:
        self.deferring = threading.RLock()
        self.compiling = threading.RLock()
        self.listing = threading.RLock()  # the garbage collector may run code that needs it again
        # The thread that holds all locks because it forks.
        self.forking: int | None = None


locks = Locks()
# The deferred calls that may not be pushed yet.
deferred: weakref.WeakSet[Any] = weakref.WeakSet()


class ThreadSettings(threading.local):
    """How the current thread handles calls of operators.

    Attributes:
        recording: Whether they are recorded for `backward`.
        capture: Set while a function is traced: returns the graph value for an array that the function reads.
    """

    recording: bool = False
    capture: Any = None


settings = ThreadSettings()
_queue: ArrayQueue | None = None
_lock = threading.Lock()
# How often a fork waits again because other threads have pushed operations.
_FORK_TRIES = 100


def queue() -> ArrayQueue:
    """Return the queue of this process, which is made on first use."""
    global _queue
    found = _queue
    if found is None:
        with _lock:
            found = _queue = _queue or ArrayQueue(Engine())
    return found


def waitall() -> None:
    """Wait for all operations on arrays.

    If operations failed, the error of the oldest one is raised, unless a wait has raised it before.
    """
    with locks.listing:
        calls = list(deferred) if len(deferred) else []
    for call in calls:
        call.force()
    if _queue is not None:
        error = _queue.wait_all()
        if error is not None:
            raise fresh(error)


def stop() -> None:
    """Wait for all operations, and end the threads that run them. The next operation starts new ones."""
    global _queue
    with _lock:
        found, _queue = _queue, None
    if found is not None:
        found.settle()
        found.engine.close()


def fresh(error: BaseException) -> BaseException:
    """Return an exception like `error` without a traceback. An array keeps its error, but not the frames of callers."""
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made


def _before_fork() -> None:
    """Wait for all operations, because the child has no threads to run them, and for other threads that compile.

    Those may hold locks of other modules, which would stay locked in the child.
    """
    for tries_left in reversed(range(_FORK_TRIES)):
        try:
            if _queue is not None:
                _queue.settle()
        except GraphkitError:  # an operation that forks cannot wait for itself, nor for a thread that waits for it
            return
        locks.deferring.acquire()
        locks.compiling.acquire()
        locks.listing.acquire()
        # Other threads may have pushed operations meanwhile. As long as this thread holds the GIL, they cannot.
        if tries_left == 0 or _queue is None or not _queue.pending:
            break
        _release_all()
    locks.forking = threading.get_ident()


def _release_all() -> None:
    locks.listing.release()
    locks.compiling.release()
    locks.deferring.release()


def _after_fork_in_parent() -> None:
    if locks.forking == threading.get_ident():
        locks.forking = None
        _release_all()


def _after_fork() -> None:
    global _queue, _lock
    _queue, _lock = None, threading.Lock()
    locks.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)
