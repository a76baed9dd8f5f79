"""The progress engine: it runs operations that all ranks have posted, in one order, so that no rank deadlocks.

Each rank posts operations. In a progress step, all ranks exchange what they have pending. Operations that all of them
have are run, by priority and name. Ranks may post operations with different names in different orders; those with the
same name run in the order in which they were posted. Horovod negotiates in a similar way, through rank 0 (Sergeev and
Del Balso, arXiv:1802.05799, 2018).

A thread that waits for an operation drives the progress steps. While no thread waits, a thread of the engine does. If
all ranks wait and have no pending operation in common, all raise the same error, which names what each waits for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphkit.dist.rounds import announcement
from graphkit.dist.rounds.announcement import ENDED, Announcement, Digests, Waits, alike
from graphkit.dist.rounds.links import Links
from graphkit.dist.rounds.news import News
from graphkit.dist.rounds.posted import (
    Action,
    Pending,
    Sum,
    alone,
    carried,
    flies,
    grouped,
    in_rank_order,
    is_carried,
    order,
    totals,
)
from graphkit.dist.wire.promptness import be_prompt
from graphkit.errors import RuntimeFailure, UsageError

# How sums progress while a rank computes: not at all, one after the other, or several at a time.
Overlap: TypeAlias = Literal["funnelled", "chained", "concurrent"]
OVERLAPS: tuple[Overlap, ...] = ("funnelled", "chained", "concurrent")

# Progress steps without a common operation after which ranks give up: if all threads that have posted operations wait,
# and if some do not. Then the pause between two steps, in seconds.
_STUCK, _STUCK_THREADS, _PAUSE = 500, 20_000, 1e-3
# Seconds between two checks for lost ranks.
_LOOK = 0.05


# A result, or the error.
_Outcome: TypeAlias = tuple[Any, Exception | None]


class _Flight(NamedTuple):
    """A sum that runs in the background."""

    request: Any
    total: np.ndarray
    made: Pending
    summed: Sum


class _Lost(RuntimeFailure):
    """Another rank is lost."""


class Channel:
    """Runs operations that all ranks have posted, over `links`. overlap: what happens while no thread waits."""

    def __init__(self, links: Links, overlap: Overlap = "chained"):
        self._links = links
        self.overlap: Overlap = overlap
        self.calls = 0
        self.disagreement: str | None = None
        self._failure: str | None = None
        # By name, pending operations in order; the lock guards it.
        self._posted: dict[str, deque[Pending]] = {}
        self._news = News()
        self._digests = Digests()
        # Which thread waits for which operation.
        self._awaited: list[tuple[int, Pending]] = []
        # Threads that have posted operations.
        self._threads: set[int] = set()
        # Operations whose error no caller has received.
        self._unheard: list[Pending] = []
        # The thread that drives a progress step, or 0; the lock guards it.
        self._driver = 0
        self._flying: deque[_Flight] = deque()
        self._broken: list[_Flight] = []
        self._stuck = 0
        self._looked = 0.0
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

        Args:
            call: Name of the operation.
            arrays: Arrays whose types the ranks compare.
            action: What to run.
            priority: Operations with a higher priority run first.
            later: Whether no thread will wait for it soon. A thread of the engine then runs it.
            operation: Names what the action does, if operations of this name may do different things.

        Raises:
            RuntimeFailure: The engine has stopped after a failure.
        """
        if self._links.size == 1:
            return alone(call, action)
        return self._queued(self._made(call, arrays, action, priority, operation), later)

    def _made(
        self, call: str, arrays: Sequence[np.ndarray], action: Action | None, priority: int, operation: str
    ) -> Pending:
        made = Pending(call, action, priority, self)
        made.name, made.digest, made.text = self._digests.of(call, arrays, operation)
        self._links.doing(made.text)
        return made

    def _queued(self, made: Pending, later: bool) -> Pending:
        with self._news.lock:
            if self._failure is not None:
                raise RuntimeFailure(self._failure)
            self._number(made)
            self._posted.setdefault(made.call, deque()).append(made)
            if later and self.overlap != "funnelled" and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="graphkit-channel", daemon=True)
                self._thread.start()
            self._news.tell()
        return made

    def _number(self, made: Pending) -> None:
        """Count the operation as the next one of this thread. The lock is held."""
        self._threads.add(threading.get_ident())
        self.calls += 1
        made.number = self.calls

    def perform(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        operation: str = "",
    ) -> Any:
        """Post an operation, wait for it, and return its result."""
        if self._links.size == 1:
            return alone(call, action).wait()
        made = self._made(call, arrays, action, priority, operation)
        return self._at_once(made, action) if isinstance(action, Sum) else self._queued(made, later=False).wait()

    def _at_once(self, made: Pending, summed: Sum) -> Any:
        """Return a sum, without the queue if nothing else is pending."""
        mine = threading.get_ident(), made
        free = False
        try:
            with self._news.lock:
                free = self._failure is None and not (self._driver or self._posted or self._flying or self._awaited)
                if free:
                    self._number(made)
                    self._driver = mine[0]
                    self._awaited.append(mine)
            if free:
                with self._links.waiting(True):
                    small = {made.call: summed.array} if is_carried(summed) else {}
                    told = self._announcement([made], made).pack(summed.array.tobytes() if small else b"")
                    rows = self._exchanged(told, made)
                    if alike(told, rows):
                        self._stuck = 0
                        total, failure = self._tried(made, self._total, summed, totals(small, rows).get(made.call))
                        if failure is not None:
                            raise failure
                        return summed.deliver(total)
                    # Other ranks have posted something else, so this rank must compare as they do. The operation was
                    # announced, so it comes before those that another thread has posted under this name meanwhile.
                    with self._news.lock:
                        self._posted.setdefault(made.call, deque()).appendleft(made)
                    self._go_on([made], {}, told, rows, self.calls)
        finally:
            if free:
                self._awaited.remove(mine)
                self._leaves_the_wheel()
        return (made if free else self._queued(made, later=False)).wait()

    def flush(self) -> None:
        """Wait for all pending operations. Raises the first error that no caller has received."""
        while left := self._left():
            for made in left:
                made.wait()
        for made in self._unheard:
            if not made.heard:
                made.wait()

    def _left(self) -> list[Pending]:
        """Return the operations that are not done."""
        with self._news.lock:
            posted = [made for queue in self._posted.values() for made in queue]
            return posted + [flight.made for flight in self._flying]

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, pending: Pending) -> None:
        """Return when the operation is done. Raises RuntimeFailure if a rank is lost meanwhile."""
        if self._driver == threading.get_ident():
            raise UsageError(
                f"{pending.call}: a function that handles the result of an all-reduce must not wait for another one"
            )
        with self._links.waiting(pending.call != ENDED):
            mine = threading.get_ident(), pending
            self._awaited.append(mine)
            try:
                while not pending.done:
                    if not self._takes_the_wheel(pending):
                        self._look()
                        continue
                    try:
                        if not pending.done:
                            self._drive()
                    finally:
                        self._leaves_the_wheel()
            finally:
                self._awaited.remove(mine)
                if self._thread is not None:
                    with self._news.lock:
                        self._news.tell()

    def _takes_the_wheel(self, pending: Pending) -> bool:
        """Return whether this thread drives from now on. If another one does, wait for a notification first."""
        with self._news.lock:
            if self._driver:
                if not pending.done:
                    self._news.wait(_LOOK)
                return False
            self._driver = threading.get_ident()
            return True

    def _leaves_the_wheel(self) -> None:
        with self._news.lock:
            self._driver = 0
            self._news.tell()

    def _look(self) -> None:
        if self._failure is None and (reason := self._links.lost()) is not None:
            self._break(reason)
        if self._failure is not None:
            raise _Lost(self._failure)

    def _serve(self) -> None:
        """Drive progress steps while no thread waits."""
        be_prompt()
        while True:
            with self._news.lock:
                while not self._closed and (self._driver or self._awaited or not (self._posted or self._flying)):
                    self._news.wait()
                if self._closed:
                    return
                self._driver = threading.get_ident()
            try:
                self._drive()
            except Exception as error:  # noqa: BLE001 - the next caller that waits gets it
                self._break(f"{type(error).__name__}: {error}")
            finally:
                self._leaves_the_wheel()

    def fail(self, reason: str) -> None:
        """Stop the engine: every thread that waits, or posts an operation, gets the reason as an error."""
        self._break(reason)

    @contextmanager
    def at_the_wheel(self) -> Iterator[None]:
        """Context in which no other thread drives a progress step."""
        with self._news.lock:
            while self._driver:
                self._news.wait(_LOOK)
            self._driver = threading.get_ident()
        try:
            yield
        finally:
            self._leaves_the_wheel()

    def close(self) -> None:
        """End the thread of the engine."""
        with self._news.lock:
            self._closed = True
            self._news.tell()
        if self._thread is not None:
            self._thread.join()

    def quiet(self, seconds: float) -> bool:
        """Wait until no thread drives a progress step; none does afterwards. Return whether this took at most
        `seconds`.
        """
        with self._news.lock:
            end = time.monotonic() + seconds
            while self._driver:
                if (left := end - time.monotonic()) <= 0:
                    return False
                self._news.wait(left)
            self._driver = threading.get_ident()
            return True

    # --- progress steps ---------------------------------------------------------------------------

    def _drive(self) -> None:
        """Run one progress step, or check the sums in the background if nothing else is pending."""
        self._land()
        with self._news.lock:
            heads, calls = [queue[0] for queue in self._posted.values()], self.calls
            awaited = self._awaited[-1][1] if self._awaited else None
        if not heads:
            if self._flying:
                time.sleep(0)
            return
        if len(heads) > 1:
            heads.sort(key=order)
        small = carried(heads)
        mine = self._announcement(heads, awaited).pack(b"".join([array.tobytes() for array in small.values()]))
        rows = self._exchanged(mine, awaited or heads[0])
        self._go_on(heads, small, mine, rows, calls)

    def _exchanged(self, mine: bytes, shown: Pending) -> list[bytes]:
        """Return the messages of all ranks. A failure stops the engine. shown: an operation to name in the error."""
        try:
            return self._links.tell(mine)
        except RuntimeFailure as error:
            self._break(str(error))
            raise
        except BaseException as error:
            at = shown.text.decode(errors="replace")
            what = f"failed ({type(error).__name__}: {error})" if isinstance(error, Exception) else "was interrupted"
            self._break(f"rank {self._links.rank} {what} in step {self._links.steps}, at {at}")
            raise

    def _go_on(
        self, heads: Sequence[Pending], small: Mapping[str, np.ndarray], mine: bytes, rows: Sequence[bytes], calls: int
    ) -> None:
        """Run what all ranks have announced. small: the arrays in the announcements; calls: the number of calls known
        then.
        """
        same = alike(mine, rows)
        chosen = heads if same else self._common(heads, rows)
        if chosen:
            self._stuck = 0
            self._carry_out(chosen, totals(small, rows) if same and small else {})
        else:
            self._without_common(rows, calls)

    def _announcement(self, heads: Sequence[Pending], awaited: Pending | None) -> Announcement:
        shown = awaited or heads[0]
        digest = announcement.digest_of_all([(m.digest, m.priority) for m in heads])
        return Announcement(self._links.steps, shown.number, digest, len(heads), self._who_waits(), shown.text)

    def _who_waits(self) -> Waits:
        if not self._awaited:
            return Waits.NOBODY
        if len(self._threads) == 1 and self._awaited[0][0] in self._threads:
            return Waits.ALL
        waiting = {thread for thread, _ in self._awaited}
        others = self._threads - waiting
        if others:
            others &= {thread.ident for thread in threading.enumerate()}
            with self._news.lock:
                self._threads &= others | waiting
        return Waits.SOME if others else Waits.ALL

    @property
    def awaited(self) -> bool:
        """Whether a thread waits, so that this rank does not need the core."""
        return bool(self._awaited)

    def idle(self) -> None:
        """Check running sums and lost ranks; called regularly during a wait. Raises RuntimeFailure if a
        rank is lost.
        """
        self._land()
        if self._awaited and (now := time.monotonic()) - self._looked > _LOOK:
            self._looked = now
            self._look()

    def _common(self, heads: Sequence[Pending], rows: Sequence[bytes]) -> list[Pending]:
        """Return the operations that all ranks have. Raises RuntimeFailure on all ranks if one name has two
        meanings.
        """
        most = max(Announcement.unpack(row).posted for row in rows)
        table = np.zeros((most, 3), np.uint64)
        for line, made in zip(table, heads, strict=False):
            line[:] = made.name, made.digest, announcement.unsigned(made.priority)
        told = self._exchanged(table.tobytes(), heads[0])
        tables = [np.frombuffer(data, np.uint64).reshape(-1, 3).tolist() for data in told]
        posted = [{name: (digest, priority) for name, digest, priority in lines if name} for lines in tables]
        names = set(posted[0]).intersection(*posted[1:])
        for name in sorted(names):
            if len({lines[name][0] for lines in posted}) > 1:
                meant = next(made for made in heads if made.name == name)
                self._disagree(self._exchanged(self._announcement(heads, meant).pack(b""), meant))
        found = [made for made in heads if made.name in names]
        for made in found:  # ranks may have given different priorities
            made.priority = max(announcement.signed(lines[made.name][1]) for lines in posted)
        found.sort(key=order)
        return found

    def _without_common(self, rows: Sequence[bytes], calls: int) -> None:
        """Handle a step without a common operation. If all ranks keep waiting, none can ever continue."""
        least = min(Announcement.unpack(row).waits for row in rows)
        self._stuck = self._stuck + 1 if least else 0
        if self._stuck >= (_STUCK if least == Waits.ALL else _STUCK_THREADS):
            self._disagree(rows)
        with self._news.lock:
            if self.calls == calls:
                self._news.wait(_PAUSE)

    def _disagree(self, rows: Sequence[bytes]) -> None:
        self.disagreement = announcement.disagreement([Announcement.unpack(row) for row in rows])
        self._break(self.disagreement)
        raise RuntimeFailure(self.disagreement)

    # --- running operations -----------------------------------------------------------------------

    def _carry_out(self, chosen: Sequence[Pending], there: Mapping[str, np.ndarray]) -> None:
        """Run these operations in order. there: sums that are already known, by name."""
        for group in grouped(chosen, there):
            self._links.doing(group[0].text)
            flight: _Flight | None = None
            outcomes: list[_Outcome] = []
            if self.overlap == "concurrent" and flies(group, there):
                flight, failure = self._tried(group[0], self._flight, group[0])
            else:
                outcomes, failure = self._tried(group[0], self._outcomes, group, there)
            if failure is not None:
                outcomes = [(None, failure)] * len(group)
            with self._news.lock:
                self._taken(group)
                if flight is not None:
                    self._flying.append(flight)
                for made, (result, failure) in zip(group, outcomes, strict=flight is None):
                    self._finish(made, result, failure)
                self._news.tell()

    def _tried(self, made: Pending, do: Callable[..., Any], *arguments: Any) -> _Outcome:
        """Return a result, or its error. If other ranks may be inside the operation, an interruption stops
        the engine.
        """
        try:
            return do(*arguments), None
        except _Lost as error:
            self._break(str(error))
            raise
        except Exception as error:  # noqa: BLE001 - the caller that waits gets it
            return None, error
        except BaseException:
            self._break(f"rank {self._links.rank} was interrupted in step {self._links.steps}, in {made.call}")
            raise

    def _flight(self, made: Pending) -> _Flight:
        """Start a sum that runs in the background."""
        summed = made.action
        assert isinstance(summed, Sum)
        return _Flight(*self._links.start_allreduce(summed.array, summed.out), made, summed)

    def _outcomes(self, group: Sequence[Pending], there: Mapping[str, np.ndarray]) -> list[_Outcome]:
        """Return the results of operations that run together, each with its own error."""
        if self._flying:
            self._await_flights({made.call for made in group})
        sums = [made.action for made in group if isinstance(made.action, Sum)]
        if not sums:
            action = group[0].action
            return [(action() if callable(action) else None, None)]
        if len(sums) == 1:
            return [_delivered(sums[0], self._total(sums[0], there.get(group[0].call)))]
        total = self._links.allreduce(np.concatenate([s.array.reshape(-1) for s in sums]))
        ends = np.cumsum([s.array.size for s in sums])
        return [_delivered(s, total[end - s.array.size : end].copy()) for s, end in zip(sums, ends, strict=True)]

    def _total(self, summed: Sum, known: np.ndarray | None) -> np.ndarray:
        """Return the sum. known: the sum, if it is already known."""
        if known is not None:
            return known
        if summed.alone and is_carried(summed):  # the bits are those of a sum sent with announcements
            return in_rank_order(self._links.allgather(summed.array))
        return self._links.allreduce(summed.array, summed.out)

    def _await_flights(self, calls: Collection[str]) -> None:
        """Wait until no sum of these names is running, to keep the order of operations with one name."""
        while any(flight.made.call in calls for flight in self._flying):
            self._land()
            time.sleep(0)
            self._look()

    def _land(self) -> None:
        """Finish the running sums that are complete, in their order."""
        while self._flying and self._flying[0].request.Test():
            flight = self._flying[0]
            outcome = _delivered(flight.summed, flight.total)
            with self._news.lock:
                if self._flying:  # the engine has not stopped meanwhile
                    self._flying.popleft()
                    self._finish(flight.made, *outcome)
                self._news.tell()

    def _finish(self, made: Pending, result: Any = None, error: Exception | None = None) -> None:
        """Mark an operation as done. An error is kept until a caller has received it. The lock is held."""
        made.finish(result, error)
        if error is not None:
            self._unheard = [m for m in self._unheard if not m.heard] + [made]

    def _taken(self, group: Iterable[Pending]) -> None:
        """Remove operations from the pending ones. The lock is held."""
        for made in group:
            queue = self._posted[made.call]
            queue.popleft()
            if not queue:
                del self._posted[made.call]

    def _break(self, reason: str) -> None:
        """Stop the engine: all pending operations fail with the reason."""
        with self._news.lock:
            if self._failure is None:
                self._failure = reason
            left = [made for queue in self._posted.values() for made in queue]
            left += [flight.made for flight in self._flying]
            self._posted.clear()
            self._broken.extend(self._flying)  # MPI may still write to their arrays
            self._flying.clear()
            for made in left:
                self._finish(made, error=RuntimeFailure(self._failure))
            self._news.tell()


def _delivered(summed: Sum, total: np.ndarray) -> _Outcome:
    """Return the result of a sum, or the error of its `then`."""
    try:
        return summed.deliver(total), None
    except Exception as error:  # noqa: BLE001 - the caller that waits gets it
        return None, error
