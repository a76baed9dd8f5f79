"""The pending operations of a rank, and the threads that wait for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from enum import IntEnum

from graphkit.dist.progress.pending import Pending


class Waits(IntEnum):
    NONE = 0
    SOME = 1
    ALL = 2


class OperationQueue:
    """Pending operations by name, with a lock and a condition. Notifying costs little if no thread sleeps.

    Callers must hold `lock` for all methods that change or read the queue, except `unreported` and `who_waits`.

    Attributes:
        pending: The operations of each name, in the order of posting.
        calls: Number of operations that were ever posted.
        waiting: Each waiting thread, with its operation.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.pending: dict[str, deque[Pending]] = {}
        self.calls = 0
        self.waiting: list[tuple[int, Pending]] = []
        self._condition = threading.Condition(self.lock)
        self._sleeping = 0
        self._threads: set[int] = set()
        # Operations whose error no caller has received.
        self._failed: list[Pending] = []

    def wait(self, seconds: float | None = None) -> None:
        self._sleeping += 1
        try:
            self._condition.wait(seconds)
        finally:
            self._sleeping -= 1

    def notify(self) -> None:
        if self._sleeping:
            self._condition.notify_all()

    def number(self, operation: Pending) -> None:
        self._threads.add(threading.get_ident())
        self.calls += 1
        operation.number = self.calls

    def append(self, operation: Pending) -> None:
        self.pending.setdefault(operation.call, deque()).append(operation)

    def prepend(self, operation: Pending) -> None:
        self.pending.setdefault(operation.call, deque()).appendleft(operation)

    def take(self, operations: Iterable[Pending]) -> None:
        for operation in operations:
            same_name = self.pending[operation.call]
            same_name.popleft()
            if not same_name:
                del self.pending[operation.call]

    def heads(self) -> list[Pending]:
        return [same_name[0] for same_name in self.pending.values()]

    def all(self) -> list[Pending]:
        return [operation for same_name in self.pending.values() for operation in same_name]

    def finish(self, operation: Pending, result: object = None, error: Exception | None = None) -> None:
        """Mark an operation as done, and keep an error until a caller has received it."""
        operation.finish(result, error)
        if error is not None:
            self._failed = [*self.unreported(), operation]

    def unreported(self) -> list[Pending]:
        return [operation for operation in self._failed if not operation.reported]

    def who_waits(self) -> Waits:
        if not self.waiting:
            return Waits.NONE
        if len(self._threads) == 1 and self.waiting[0][0] in self._threads:
            return Waits.ALL
        waiting = {thread for thread, _ in self.waiting}
        others = self._threads - waiting
        if others:
            others &= {thread.ident for thread in threading.enumerate()}
            with self.lock:
                self._threads &= others | waiting
        return Waits.SOME if others else Waits.ALL
