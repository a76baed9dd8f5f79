"""Hold back signals around blocks that must complete or not happen at all."""

from __future__ import annotations

import os
import signal
import sys
import threading

# The functions under those of `signal`, which spend microseconds on the conversion of handlers to and from enums.
from _signal import getsignal as _getsignal  # type: ignore[import-not-found]
from _signal import signal as _set_handler
from collections.abc import Callable
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (int(signal.SIGINT), int(signal.SIGTERM))

# What follows is of the main thread, the only one that handles signals.
_main = threading.main_thread().ident
# The blocks that it is in, the innermost last.
_blocks: list[Held] = []
# By signal, the handler that `_handle` stands for.
_before: dict[int, Callable[[int, FrameType | None], Any]] = {}
# Signals that have come and not yet taken effect.
_waiting: list[int] = []


class Held:
    """`with held:` - a SIGINT or SIGTERM inside takes effect at the end of the block.

    may_interrupt: asked when a signal comes; where it says so, the signal takes effect at once. Without it the second
    signal does, while the first waits.

    What it then does is what its handler did before; a signal without a Python handler is left alone. Blocks, the same
    or others, may be nested: a signal waits for all that hold it. In threads other than the main one, which handle no
    signals, and in a process that was forked inside, the block does nothing.
    """

    __slots__ = ("_may_interrupt",)

    def __init__(self, may_interrupt: Callable[[], bool] | None = None):
        self._may_interrupt = may_interrupt

    def __enter__(self) -> Held:
        if get_ident() == _main:
            depth = len(_blocks)
            try:
                if not depth:
                    for number in _SIGNALS:
                        handler = _getsignal(number)
                        if callable(handler) and handler is not _handle:
                            _before[number] = handler
                            _set_handler(number, _handle)
                # Last: handlers of before may have raised until here, several in a row.
                _blocks.append(self)
            except BaseException:
                _leave(depth)
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if get_ident() == _main and _blocks:
            if len(_blocks) > 1 and not _waiting:
                _blocks.pop()
            else:
                _leave(len(_blocks) - 1)


# Only a second signal comes in.
uninterrupted = Held()


def _leave(depth: int) -> None:
    """Keep so many blocks. Whatever handlers raise meanwhile, those of before are back, and no signal is lost."""
    del _blocks[depth:]
    try:
        if not depth:
            for number in _SIGNALS:
                if _getsignal(number) is _handle:
                    _set_handler(number, _before[number])
        if _waiting:
            _let_through()
    except BaseException:
        _leave(depth)
        raise


def _handle(number: int, frame: FrameType | None) -> None:
    """Without any block, what the handler of before does."""
    _waiting.append(number)
    # An exception in a function of this file would leave a block that is half entered, or half left; `_leave` comes.
    if frame is None or frame.f_globals is not globals():
        _let_through()


def _let_through() -> None:
    """Call the handlers of the signals that no block holds any more."""
    while (held := _held()) < len(_waiting):
        number = _waiting.pop(held)
        _before[number](number, sys._getframe())


def _held() -> int:
    """How many of the waiting signals, the first ones, some block holds."""
    first = 0
    for block in _blocks:
        if block._may_interrupt is None:
            first = 1
        elif not block._may_interrupt():
            return len(_waiting)
    return first


def _forget() -> None:
    """In a forked process, whose main thread is the one that forked and need not be in any block."""
    global _main
    _main = threading.main_thread().ident
    _waiting.clear()
    _leave(0)


if hasattr(os, "register_at_fork"):  # where processes fork
    os.register_at_fork(after_in_child=_forget)
