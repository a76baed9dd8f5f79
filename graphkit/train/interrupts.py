"""Ctrl-C that waits until memory is whole: a step and the position after it change together or not at all."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Uninterrupted:
    """`with uninterrupted:` - a SIGINT or SIGTERM inside takes effect at the end of the block, the second one at once.

    What it then does is what its handler did before; a signal without a Python handler is left alone. Blocks may be
    nested; the outermost counts. In threads other than the main one, which get no signals, it does nothing.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._held: int | None = None

    def __enter__(self) -> Uninterrupted:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._depth += 1
        if self._depth == 1:
            self._held = None
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    signal.signal(number, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth:
            return
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)
        held, self._held = self._held, None
        if held is not None:
            before[held](held, None)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._held is None:
            self._held = number
        else:
            self._before[number](number, frame)


uninterrupted = Uninterrupted()
