"""SIGTERM to any rank of a training: all ranks stop after the same step, and write one checkpoint."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, NoReturn

import numpy as np

from graphkit.dist.kvstore import KVStore


class Termination:
    """Context of a `fit` on several ranks, in which the first SIGTERM takes effect after a step.

    A rank that has received the signal says so in a collective of the next step, so no additional message is needed:
    the all-reduce of the loss, or the one in which ranks with groups meet. After that step, `is_due` is True on all
    ranks. A second SIGTERM to a rank takes effect at once.
    """

    def __init__(self, store: KVStore):
        self._store = store
        self._fingerprint = store.transport.fingerprint
        # The handler of SIGTERM that this one replaces, and that ends the process.
        self._handler: Any = None

    def __enter__(self) -> Termination:
        self._fingerprint.leaving, self._fingerprint.leaving_ranks = False, 0
        self._handler = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is threading.main_thread() and callable(self._handler):
            signal.signal(signal.SIGTERM, self._arrived)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()
        # A signal that came after the last step of the run.
        if self._fingerprint.leaving and error is None and callable(self._handler):
            self._handler(signal.SIGTERM, sys._getframe())

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._fingerprint.leaving:
            self._restore()
            self._handler(number, frame)
        self._fingerprint.leaving = True

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._arrived:
            signal.signal(signal.SIGTERM, self._handler)

    @property
    def is_due(self) -> bool:
        """Whether a rank had received the signal when the last step began. The same on all ranks."""
        return self._fingerprint.leaving_ranks > 0

    def is_due_now(self) -> bool:
        """Return whether a rank has received the signal. Collective."""
        asked = self._store.pushpull("terminated ranks", np.array([int(self._fingerprint.leaving)], np.int64))
        return bool(asked.any())

    def take_effect(self) -> NoReturn:
        """End this rank by the handler that was set before. Collective: no rank ends before all have called this."""
        self._store.pushpull("ranks that end", np.zeros(1, np.int64))
        self._restore()
        self._fingerprint.leaving = False
        if callable(self._handler):
            self._handler(signal.SIGTERM, sys._getframe())
        raise KeyboardInterrupt
