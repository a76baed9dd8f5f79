"""The progress engine runs operations that all ranks have posted, in one order: no rank deadlocks.

In a progress step, all ranks exchange which operations they have posted. Operations that are pending on all ranks are
run, ordered by priority, then by name. Ranks may post operations in different orders, except those with the same name.
Horovod negotiates in a similar way (Sergeev and Del Balso, arXiv:1802.05799, 2018).

A thread that waits for an operation drives the progress steps. While no thread waits, a thread of the engine does,
except with `overlap="funnelled"`. If all ranks wait and have no pending operation in common, all raise the same error.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import numpy as np

from graphkit.dist.arrays import sum_in_order
from graphkit.dist.progress.announcement import ENDED, Announcement, Digests, alike
from graphkit.dist.progress.negotiation import Links, Negotiation
from graphkit.dist.progress.pending import (
    Action,
    Pending,
    Sum,
    can_run_in_background,
    complete_locally,
    fits_announcement,
    grouped,
    order,
    payload,
    payload_sums,
)
from graphkit.dist.progress.queue import OperationQueue, Waits
from graphkit.dist.wire.scheduling import reduce_wakeup_latency
from graphkit.errors import RuntimeFailure, UsageError, error_text
from graphkit.named_tuples import NamedTuple

# How sums progress while a rank computes: not at all, one after the other, or several at a time.
Overlap: TypeAlias = Literal["funnelled", "chained", "concurrent"]
OVERLAPS: tuple[Overlap, ...] = ("funnelled", "chained", "concurrent")

# Number of progress steps without a common operation after which the ranks stop. _STUCK: all threads that have posted
# operations wait. _STUCK_THREADS: only some of them wait. _PAUSE: seconds between two such steps.
_STUCK, _STUCK_THREADS, _PAUSE = 500, 20_000, 1e-3
_CHECK = 0.05


_Outcome: TypeAlias = tuple[Any, Exception | None]


class _Running(NamedTuple):
    request: Any
    total: np.ndarray
    pending: Pending
    summed: Sum


class _Lost(RuntimeFailure): ...


class ProgressEngine:
    """Runs operations that all ranks have posted. overlap: how sums progress while no thread waits."""

    def __init__(self, links: Links, overlap: Overlap = "chained"):
        self._links = links
        self.overlap: Overlap = overlap
        self._failure: str | None = None
        self._queue = OperationQueue()
        self._digests = Digests()
        self._negotiation = Negotiation(links, self._queue, self.fail)
        # The thread that drives a progress step, or 0; guarded by the queue's lock.
        self._driver = 0
        self._running: deque[_Running] = deque()
        self._abandoned: list[_Running] = []
        self._steps_without_common = 0
        self._checked = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    # --- posting operations -----------------------------------------------------------------------

    def post(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        later: bool = True,
        operation: str = "",
    ) -> Pending:
        """Post an operation: it runs once all ranks have posted it with arrays of the same types.

        Operations of one name run in the order of posting. Of different ready operations, those with the highest
        priority come first.

        Args:
            later: Whether no thread will wait for the result soon. A thread of the engine then runs the operation,
                unless `overlap` is "funnelled".
            operation: Name of the algorithm, such as "compressed", which ranks compare.

        Raises:
            RuntimeFailure: The engine has stopped after a failure, or the ranks have posted different operations.
                Waiting for the result raises it, too.
        """
        if self._links.size == 1:
            return complete_locally(call, action)
        return self._enqueue(self._new_operation(call, arrays, action, priority, operation), later)

    def _new_operation(
        self, call: str, arrays: Sequence[np.ndarray], action: Action | None, priority: int, operation: str
    ) -> Pending:
        pending = Pending(call, action, priority, self)
        pending.name_digest, pending.digest, pending.text = self._digests.of(call, arrays, operation)
        self._links.doing(pending.text)
        return pending

    def _enqueue(self, pending: Pending, later: bool) -> Pending:
        with self._queue.lock:
            if self._failure is not None:
                raise RuntimeFailure(self._failure)
            self._queue.number(pending)
            self._queue.append(pending)
            if later and self.overlap != "funnelled" and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="graphkit-progress", daemon=True)
                self._thread.start()
            self._queue.notify()
        return pending

    def perform(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        operation: str = "",
    ) -> Any:
        if self._links.size == 1:
            return complete_locally(call, action).wait()
        pending = self._new_operation(call, arrays, action, priority, operation)
        return (
            self._sum_at_once(pending, action)
            if isinstance(action, Sum)
            else self._enqueue(pending, later=False).wait()
        )

    def _sum_at_once(self, pending: Pending, summed: Sum) -> Any:
        """Return a sum, without the queue if nothing else is pending."""
        mine = threading.get_ident(), pending
        free = False
        try:
            with self._queue.lock:
                busy = self._driver or self._queue.pending or self._running or self._queue.waiting
                free = self._failure is None and not busy
                if free:
                    self._queue.number(pending)
                    self._driver = mine[0]
                    self._queue.waiting.append(mine)
            if free and (total := self._total_or_enqueue(pending, summed)) is not None:
                return summed.deliver(total)
        finally:
            if free:
                self._queue.waiting.remove(mine)
                self._release_driver()
        return (pending if free else self._enqueue(pending, later=False)).wait()

    def _total_or_enqueue(self, pending: Pending, summed: Sum) -> np.ndarray | None:
        """Return a sum if all ranks have posted only this sum. Otherwise, put it into the queue and return None.

        The calling thread must be the one that drives.
        """
        with self._links.waiting(True):
            small = {pending.call: summed.array} if fits_announcement(summed) else {}
            message = self._negotiation.own_announcement([pending], pending, summed.array.tobytes() if small else b"")
            rows = self._negotiation.exchange(message, pending)
            if alike(message, rows):
                self._steps_without_common = 0
                known = payload_sums(small, rows).get(pending.call)
                total: np.ndarray | None
                total, failure = self._attempt(pending, self._total, summed, known)
                if failure is not None:
                    raise failure
                return total
            # Another thread may have posted operations with the name of `pending` meanwhile. They were not announced,
            # so `pending` comes first.
            with self._queue.lock:
                self._queue.prepend(pending)
            self._run_common([pending], {}, message, rows, self._queue.calls)
            return None

    def flush(self) -> None:
        """Wait for all pending operations. Raises the first error that no caller has received."""
        while left := self._unfinished():
            for pending in left:
                pending.wait()
        for pending in self._queue.unreported():
            pending.wait()

    def _unfinished(self) -> list[Pending]:
        with self._queue.lock:
            return self._queue.all() + [running.pending for running in self._running]

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, pending: Pending) -> None:
        """Return when the operation is done. Raises RuntimeFailure if a rank is lost meanwhile."""
        self._check_not_driving(f"{pending.call}: ", "wait for another one")
        with self._links.waiting(pending.call != ENDED):
            mine = threading.get_ident(), pending
            self._queue.waiting.append(mine)
            try:
                while not pending.done:
                    if not self._try_to_drive(pending):
                        self._check_ranks()
                        continue
                    try:
                        if not pending.done:
                            self._drive()
                    finally:
                        self._release_driver()
            finally:
                self._queue.waiting.remove(mine)
                if self._thread is not None:
                    with self._queue.lock:
                        self._queue.notify()

    def _check_not_driving(self, before: str, forbidden: str) -> None:
        """Raise UsageError if this thread drives: it would wait for itself. before: beginning of the text."""
        if self._driver == threading.get_ident():
            raise UsageError(f"{before}a function that handles the result of an all-reduce must not {forbidden}")

    def _try_to_drive(self, pending: Pending) -> bool:
        """Return whether this thread drives from now on. If another thread drives, wait briefly and return False."""
        with self._queue.lock:
            if self._driver:
                if not pending.done:
                    self._queue.wait(_CHECK)
                return False
            self._driver = threading.get_ident()
            return True

    def _release_driver(self) -> None:
        with self._queue.lock:
            self._driver = 0
            self._queue.notify()

    def _check_ranks(self) -> None:
        if self._failure is None and (reason := self._links.lost()) is not None:
            self.fail(reason)
        if self._failure is not None:
            raise _Lost(self._failure)

    def _serve(self) -> None:
        reduce_wakeup_latency()
        while True:
            with self._queue.lock:
                while not self._closed and (self._driver or self._queue.waiting or not self._has_work):
                    self._queue.wait()
                if self._closed:
                    return
                self._driver = threading.get_ident()
            try:
                self._drive()
            except Exception as error:  # noqa: BLE001 - the next caller that waits gets it
                self.fail(error_text(error))
            finally:
                self._release_driver()

    @property
    def _has_work(self) -> bool:
        return bool(self._queue.pending or self._running)

    def fail(self, reason: str) -> None:
        """Stop the engine: every thread that waits, or posts an operation, gets the reason as an error."""
        with self._queue.lock:
            if self._failure is None:
                self._failure = reason
            left = self._unfinished()
            self._queue.pending.clear()
            self._abandoned.extend(self._running)  # MPI may still write to their arrays
            self._running.clear()
            for pending in left:
                self._queue.finish(pending, error=RuntimeFailure(self._failure))
            self._queue.notify()

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Context in which no other thread drives a progress step. Raises UsageError if this thread already drives."""
        self._check_not_driving("", "use a store with servers")
        with self._queue.lock:
            while self._driver:
                self._queue.wait(_CHECK)
            self._driver = threading.get_ident()
        try:
            yield
        finally:
            self._release_driver()

    def close(self) -> None:
        with self._queue.lock:
            self._closed = True
            self._queue.notify()
        if self._thread is not None:
            self._thread.join()

    def stop_driving(self, seconds: float) -> bool:
        """Prevent further progress steps after the running one. Return whether that succeeded within this time."""
        with self._queue.lock:
            end = time.monotonic() + seconds
            while self._driver:
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._queue.wait(left)
            self._driver = threading.get_ident()
            return True

    # --- progress steps ---------------------------------------------------------------------------

    def _drive(self) -> None:
        """Finish complete background sums, then run one progress step if operations are pending."""
        self._finish_running()
        with self._queue.lock:
            heads, calls = self._queue.heads(), self._queue.calls
            awaited = self._queue.waiting[-1][1] if self._queue.waiting else None
        if not heads:
            if self._running:
                time.sleep(0)
            return
        if len(heads) > 1:
            heads.sort(key=order)
        small = payload(heads)
        data = b"".join([array.tobytes() for array in small.values()])
        mine = self._negotiation.own_announcement(heads, awaited, data)
        rows = self._negotiation.exchange(mine, awaited or heads[0])
        self._run_common(heads, small, mine, rows, calls)

    def _run_common(
        self, heads: Sequence[Pending], small: Mapping[str, np.ndarray], mine: bytes, rows: Sequence[bytes], calls: int
    ) -> None:
        """Run the operations that all ranks have announced.

        Args:
            small: The arrays in this rank's announcement, by name.
            calls: `OperationQueue.calls` when `heads` was taken.
        """
        same = alike(mine, rows)
        chosen = heads if same else self._negotiation.common(heads, rows)
        if chosen:
            self._steps_without_common = 0
            self._run_all(chosen, payload_sums(small, rows) if same and small else {})
        else:
            self._without_common(rows, calls)

    @property
    def disagreement(self) -> str | None:
        return self._negotiation.disagreement

    @property
    def awaited(self) -> bool:
        """Whether a thread waits for an operation: this rank then does not need the core."""
        return bool(self._queue.waiting)

    def poll(self) -> None:
        """Finish complete sums, and check for lost ranks. Called regularly during a wait."""
        self._finish_running()
        if self._queue.waiting and (now := time.monotonic()) - self._checked > _CHECK:
            self._checked = now
            self._check_ranks()

    def _without_common(self, rows: Sequence[bytes], calls: int) -> None:
        """Handle a step without a common operation. Stop the engine if the ranks can never continue."""
        least = min(Announcement.unpack(row).waits for row in rows)
        self._steps_without_common = self._steps_without_common + 1 if least else 0
        if self._steps_without_common >= (_STUCK if least == Waits.ALL else _STUCK_THREADS):
            self._negotiation.disagree(rows)
        with self._queue.lock:
            if self._queue.calls == calls:
                self._queue.wait(_PAUSE)

    # --- running operations -----------------------------------------------------------------------

    def _run_all(self, chosen: Sequence[Pending], known: Mapping[str, np.ndarray]) -> None:
        """Run these operations in order. known: sums that are already known, by name."""
        for group in grouped(chosen, known):
            self._links.doing(group[0].text)
            running: _Running | None = None
            outcomes: list[_Outcome] = []
            if self.overlap == "concurrent" and can_run_in_background(group, known):
                running, failure = self._attempt(group[0], self._start_running, group[0])
            else:
                outcomes, failure = self._attempt(group[0], self._run_group, group, known)
            if failure is not None:
                outcomes = [(None, failure)] * len(group)
            with self._queue.lock:
                self._queue.take(group)
                if running is not None:
                    self._running.append(running)
                for pending, (result, failure) in zip(group, outcomes, strict=running is None):
                    self._queue.finish(pending, result, failure)
                self._queue.notify()

    def _attempt(self, pending: Pending, do: Callable[..., Any], *arguments: Any) -> _Outcome:
        """Return the result of an operation, or its error.

        An interruption stops the engine: other ranks may be inside the operation.
        """
        try:
            return do(*arguments), None
        except _Lost as error:
            self.fail(str(error))
            raise
        except Exception as error:  # noqa: BLE001 - the caller that waits gets it
            return None, error
        except BaseException:
            self.fail(f"rank {self._links.rank} was interrupted in step {self._links.steps}, in {pending.call}")
            raise

    def _start_running(self, pending: Pending) -> _Running:
        summed = pending.action
        assert isinstance(summed, Sum)
        return _Running(*self._links.start_allreduce(summed.array, summed.out), pending, summed)

    def _run_group(self, group: Sequence[Pending], known: Mapping[str, np.ndarray]) -> list[_Outcome]:
        """Run operations together. Return the result or the error of each."""
        if self._running:
            self._await_running({pending.call for pending in group})
        sums = [pending.action for pending in group if isinstance(pending.action, Sum)]
        if not sums:
            action = group[0].action
            return [(action() if callable(action) else None, None)]
        if len(sums) == 1:
            return [_delivered(sums[0], self._total(sums[0], known.get(group[0].call)))]
        total = self._links.allreduce(np.concatenate([s.array.reshape(-1) for s in sums]))
        ends = np.cumsum([s.array.size for s in sums])
        return [_delivered(s, total[end - s.array.size : end].copy()) for s, end in zip(sums, ends, strict=True)]

    def _total(self, summed: Sum, known: np.ndarray | None) -> np.ndarray:
        if known is not None:
            return known
        # Add in the order of the ranks, as `payload_sums` does: the bits do not depend on how arrays are sent.
        if summed.alone and fits_announcement(summed):
            return sum_in_order(self._links.allgather(summed.array))
        return self._links.allreduce(summed.array, summed.out)

    def _await_running(self, calls: Collection[str]) -> None:
        """Wait until no sum of these names runs: operations of one name keep their order."""
        while any(running.pending.call in calls for running in self._running):
            self._finish_running()
            time.sleep(0)
            self._check_ranks()

    def _finish_running(self) -> None:
        """Finish the running sums that are complete, in their order."""
        while self._running and self._running[0].request.Test():
            running = self._running[0]
            outcome = _delivered(running.summed, running.total)
            with self._queue.lock:
                if self._running:
                    self._running.popleft()
                    self._queue.finish(running.pending, *outcome)
                self._queue.notify()


def _delivered(summed: Sum, total: np.ndarray) -> _Outcome:
    try:
        return summed.deliver(total), None
    except Exception as error:  # noqa: BLE001 - the caller that waits gets it
        return None, error
