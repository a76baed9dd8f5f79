"""The queue that runs operations on arrays, and the settings of the current thread."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from graphkit.errors import GraphkitError
from graphkit.executor.run.array_queue import ArrayQueue
from graphkit.executor.run.engine import Engine

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


class Memory:
    """The memory of an array and of its views: the state of its pending operations, and the number of its writes."""

    __slots__ = ("state", "version")

    def __init__(self) -> None:
        self.state: _native.ArrayState = (_queue or queue()).state()
        self.version = 0


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
    if _queue is not None:
        error = _queue.wait_all()
        if error is not None:
            raise fresh(error)


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
