"""Signals while a run writes states: it happens wholly or not at all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Held:
    """Python's handlers of Ctrl-C and SIGTERM wait until the end of the block, unless `may_interrupt()` says otherwise.

    In the main thread, which alone handles signals; in others it does nothing.
    """

    __slots__ = ("_before", "_late", "_may_interrupt")

    def __init__(self, may_interrupt: Callable[[], bool]):
        self._may_interrupt = may_interrupt
        self._before: dict[int, Any] = {}
        self._late: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> Held:
        if threading.get_ident() == threading.main_thread().ident:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._may_interrupt():
            self._before[number](number, frame)
        else:
            self._late.append((number, frame))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for number, frame in self._late:
            self._before[number](number, frame)
