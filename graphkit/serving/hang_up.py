"""SIGHUP: remember it from the start of the process until the server can load its models again."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class HangUp:
    """Remembers a SIGHUP while a `with` block runs in the main thread. Without the block, it ends the process.

    Blocks may contain each other. This module imports little, so that a command can begin with it.
    """

    def __init__(self) -> None:
        self._received = False
        self._before: list[Any] = []

    def __enter__(self) -> HangUp:
        is_main = threading.current_thread() is threading.main_thread()
        self._before.append(signal.signal(signal.SIGHUP, self._receive) if is_main else None)
        return self

    def __exit__(self, *error: object) -> None:
        before = self._before.pop()
        if before is not None:
            signal.signal(signal.SIGHUP, before)

    def take(self) -> bool:
        """Return whether a signal has come since the last call. In other threads than the main one, none comes."""
        if threading.current_thread() is not threading.main_thread():
            return False
        received, self._received = self._received, False
        return received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True


# Signals belong to the process.
HANG_UP = HangUp()
