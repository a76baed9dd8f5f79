"""The pace of a load: between its pieces, requests that wait get the processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds of a pause for each second of processor time of the piece before it, and of the longest pause.
_SHARE, _LONGEST = 3.0, 0.5
# Less processor time is not worth a pause.
_PIECE = 0.005


class Pace:
    """Makes pauses between the pieces of loads while requests wait. One thread at a time may call it.

    busy: Returns whether requests wait.
    """

    def __init__(self, busy: Callable[[], bool]):
        self._busy = busy
        self._hurried = threading.Event()
        self._since = 0.0

    def begin(self) -> None:
        """Begin a load, in this thread."""
        self._since = time.thread_time()

    def __call__(self) -> None:
        """Make a pause in proportion to the processor time of this thread since the last call, if requests wait."""
        worked = time.thread_time() - self._since
        if worked < _PIECE:
            return
        if self._busy():
            self._hurried.wait(min(_SHARE * worked, _LONGEST))
        self._since = time.thread_time()

    def hurry(self) -> None:
        """End a pause, and make no more: the server stops."""
        self._hurried.set()
