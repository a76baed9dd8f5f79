"""Pauses in long work, so that other threads get the processor. Reading and compiling call `pause` between pieces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_inside: ContextVar[Callable[[], None] | None] = ContextVar("pauses", default=None)


def pause() -> None:
    """Let the pace in force make a pause. Without one, do nothing.

    The caller must hold no lock that threads outside of this work wait for.
    """
    pace = _inside.get()
    if pace is not None:
        pace()


@contextlib.contextmanager
def paced(pace: Callable[[], None]) -> Iterator[None]:
    """Context in which work of this thread calls `pace` between its pieces."""
    token = _inside.set(pace)
    try:
        yield
    finally:
        _inside.reset(token)
