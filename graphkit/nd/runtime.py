"""The queue that runs operations on arrays, and the settings of the current thread."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
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
    """

    __slots__ = ("state", "version", "maker", "readers", "nbytes", "__weakref__")

    def __init__(self) -> None:
        self.state: _native.ArrayState = (_queue or queue()).state()
        self.version = 0
        self.maker: DeferredCall | None = None
        self.readers: list[weakref.ref[Any]] | None = None
        self.nbytes = -1

    def written(self) -> None:
        """Count a write. Call it before the write is pushed."""
        self.version += 1
        if self.maker is not None:
            self.maker.force()
        if self.readers is not None:
            readers, self.readers = self.readers, None
            for reference in readers:
                if (call := reference()) is not None:
                    call.force()

    def readable(self) -> _native.ArrayState:
        """Return the state, after a deferred call that writes the memory was pushed."""
        if self.maker is not None:
            self.maker.force()
        return self.state


class DeferredCall(Protocol):
    """A call that is pushed later: when its results are needed, or its operands are about to be written."""

    def force(self) -> None:
        """Push the call, unless that was done."""
        ...


# The deferred calls that may not be pushed yet.
deferred: weakref.WeakSet[Any] = weakref.WeakSet()


class ThreadSettings(threading.local):
    """What the current thread does with calls of operators.

    Attributes:
        recording: Whether they are recorded for `backward`.
        capture: Set while a function is traced: returns the graph value for an array that the function reads.
    """

    recording: bool = False
    capture: Any = None


settings = ThreadSettings()
_queue: ArrayQueue | None = None
_lock = threading.Lock()


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
    for call in list(deferred):
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
    """Wait for all operations, because the child has no threads to run them."""
    if _queue is not None:
        with suppress(GraphkitError):  # an operation that forks cannot wait for itself
            _queue.settle()


def _after_fork() -> None:
    global _queue, _lock
    _queue, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
