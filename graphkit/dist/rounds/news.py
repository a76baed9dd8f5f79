"""Notifications between threads."""

from __future__ import annotations

import threading


class News:
    """A lock and a condition. Notifying costs little if no thread waits."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._condition = threading.Condition(self.lock)
        self._asleep = 0

    def wait(self, seconds: float | None = None) -> None:
        self._asleep += 1
        try:
            self._condition.wait(seconds)
        finally:
            self._asleep -= 1

    def tell(self) -> None:
        if self._asleep:
            self._condition.notify_all()
