"""Delay SIGINT and SIGTERM during blocks that must complete."""

from __future__ import annotations

import os
import sys
import threading

# The functions that the module `signal` wraps. Its wrappers spend microseconds on conversions to and from enums.
from _signal import SIGINT, SIGTERM  # type: ignore[import-not-found]
from _signal import getsignal as _getsignal
from _signal import signal as _set_handler
from collections.abc import Callable
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

_SIGNALS: tuple[int, ...] = (SIGINT, SIGTERM)

# The main thread handles all signals. The following variables describe its state.
_main = threading.main_thread().ident
# The blocks that it is in, the innermost last.
_blocks: list[HeldSignals] = []
# For each signal, the handler that `_handle` has replaced.
_original: dict[int, Callable[[int, FrameType | None], Any]] = {}
# Signals that have arrived and are delayed, in order.
_delayed: list[int] = []


class HeldSignals:
    """A context manager. A SIGINT or SIGTERM that arrives inside the block takes effect at its end.

    Then the handler that was set before the block is called. A signal without a Python handler is not delayed. Blocks
    may be nested: a signal waits for all blocks that delay it. The block has no effect in a process that was forked
    inside it, and in threads other than the main thread, because they handle no signals.

    may_interrupt: Called when a signal arrives. If it returns True, the signal takes effect at once. Without it, the
        first signal is delayed and a second one takes effect at once.
    """

    __slots__ = ("_may_interrupt",)

    def __init__(self, may_interrupt: Callable[[], bool] | None = None):
        self._may_interrupt = may_interrupt

    def __enter__(self) -> HeldSignals:
        if get_ident() == _main:
            depth = len(_blocks)
            try:
                if not depth:
                    for number in _SIGNALS:
                        handler = _getsignal(number)
                        if callable(handler) and handler is not _handle:
                            _original[number] = handler
                            _set_handler(number, _handle)
                # This comes last: until here, the original handlers may have raised exceptions, even several.
                _blocks.append(self)
            except BaseException:
                _leave(depth)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if get_ident() == _main and _blocks:
            if len(_blocks) > 1 and not _delayed:
                _blocks.pop()
            else:
                _leave(len(_blocks) - 1)


# Delays the first signal. A second one takes effect at once.
uninterrupted = HeldSignals()


def _leave(depth: int) -> None:
    """Leave all blocks but the outer `depth` ones. Even if handlers raise, the original handlers are restored."""
    del _blocks[depth:]
    try:
        if not depth:
            for number in _SIGNALS:
                if _getsignal(number) is _handle:
                    _set_handler(number, _original[number])
        if _delayed:
            _deliver()
    except BaseException:
        _leave(depth)
        raise


def _handle(number: int, frame: FrameType | None) -> None:
    """The handler inside of blocks: delay a signal, or deliver it at once if all blocks permit it."""
    _delayed.append(number)
    # If a function of this file was interrupted, an exception would leave a block half entered or half left. Such a
    # function calls `_leave` soon, which delivers the signal.
    if frame is None or frame.f_globals is not globals():
        _deliver()


def _deliver() -> None:
    """Call the original handlers of the signals that no block delays any more."""
    while (held := _held()) < len(_delayed):
        number = _delayed.pop(held)
        _original[number](number, sys._getframe())


def _held() -> int:
    """Return how many of the delayed signals must still wait. They are the first ones of the list."""
    first = 0
    for block in _blocks:
        if block._may_interrupt is None:
            first = 1
        elif not block._may_interrupt():
            return len(_delayed)
    return first


def _reset_after_fork() -> None:
    """Leave all blocks in a forked process. Its main thread is the one that forked, which may be in no block."""
    global _main
    _main = threading.main_thread().ident
    _delayed.clear()
    _leave(0)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_after_fork)
