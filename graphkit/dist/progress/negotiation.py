"""Negotiation between ranks in a progress step: which operations run next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

import numpy as np

from graphkit.dist.progress import announcement
from graphkit.dist.progress.announcement import Announcement
from graphkit.dist.progress.pending import Pending, order
from graphkit.dist.progress.queue import OperationQueue
from graphkit.errors import RuntimeFailure


class Links(Protocol):
    rank: int
    size: int
    steps: int

    def allgather_bytes(self, mine: bytes) -> list[bytes]:
        """Return the messages of all ranks, of equal length."""
        ...

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...
    def allgather(self, array: np.ndarray) -> np.ndarray: ...
    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Start a sum. Return a request with a method `Test`, and the array for the sum, which may be `out`."""
        ...

    def doing(self, call: bytes) -> None: ...

    def waiting(self, for_progress: bool) -> AbstractContextManager[None]: ...

    def lost(self) -> str | None: ...


class Negotiation:
    def __init__(self, links: Links, queue: OperationQueue, fail: Callable[[str], None]):
        self.disagreement: str | None = None
        self._links, self._queue, self._fail = links, queue, fail

    def own_announcement(self, heads: Sequence[Pending], awaited: Pending | None, payload: bytes = b"") -> bytes:
        """Return this rank's announcement.

        heads: the first pending operation of each name. awaited: the operation that a thread waits for. payload: bytes
        of small arrays to be summed.
        """
        shown = awaited or heads[0]
        digest = announcement.digest_of_all([(m.digest, m.priority) for m in heads])
        waits = self._queue.who_waits()
        own = Announcement(self._links.steps, shown.number, digest, len(heads), waits, shown.text)
        return own.pack(payload)

    def exchange(self, mine: bytes, shown: Pending) -> list[bytes]:
        """Return the messages of all ranks. A failure stops the engine. shown: an operation to name in the error."""
        try:
            return self._links.allgather_bytes(mine)
        except RuntimeFailure as error:
            self._fail(str(error))
            raise
        except BaseException as error:
            at = shown.text.decode(errors="replace")
            what = f"failed ({type(error).__name__}: {error})" if isinstance(error, Exception) else "was interrupted"
            self._fail(f"rank {self._links.rank} {what} in step {self._links.steps}, at {at}")
            raise

    def common(self, heads: Sequence[Pending], rows: Sequence[bytes]) -> list[Pending]:
        """Return those of `heads` that all ranks have announced, in the order in which they run.

        Raises RuntimeFailure on all ranks if operations with one name differ.
        """
        most = max(Announcement.unpack(row).pending for row in rows)
        table = np.zeros((most, 3), np.uint64)
        for line, pending in zip(table, heads, strict=False):
            line[:] = pending.name_digest, pending.digest, announcement.unsigned(pending.priority)
        answers = self.exchange(table.tobytes(), heads[0])
        tables = [np.frombuffer(data, np.uint64).reshape(-1, 3).tolist() for data in answers]
        by_rank = [{name: (digest, priority) for name, digest, priority in lines if name} for lines in tables]
        names = set(by_rank[0]).intersection(*by_rank[1:])
        for name in sorted(names):
            if len({lines[name][0] for lines in by_rank}) > 1:
                differing = next(pending for pending in heads if pending.name_digest == name)
                self.disagree(self.exchange(self.own_announcement(heads, differing), differing))
        found = [pending for pending in heads if pending.name_digest in names]
        for pending in found:
            pending.priority = max(announcement.signed(lines[pending.name_digest][1]) for lines in by_rank)
        found.sort(key=order)
        return found

    def disagree(self, rows: Sequence[bytes]) -> NoReturn:
        """Stop the engine and raise RuntimeFailure, because the ranks make different calls."""
        self.disagreement = announcement.disagreement([Announcement.unpack(row) for row in rows])
        self._fail(self.disagreement)
        raise RuntimeFailure(self.disagreement)
