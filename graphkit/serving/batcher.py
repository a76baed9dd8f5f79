"""Dynamic batching: join requests to one run, and return to each its rows."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from graphkit.errors import LimitReached, RuntimeFailure, error_text
from graphkit.named_tuples import NamedTuple
from graphkit.serving.errors import Busy, Retired

logger = logging.getLogger("graphkit.serve")

Arrays: TypeAlias = Mapping[str, np.ndarray]
# Computes outputs by name from inputs by name, within a number of seconds.
Run: TypeAlias = Callable[[Arrays, float], Arrays]


class Times(NamedTuple):
    """Seconds that a request spent in the queue, until its batch was joined, in the run, until its rows were split."""

    queue: float
    join: float
    run: float
    split: float


class Result(NamedTuple):
    """The outputs of one request. rows: of its batch; 0 if the run was not shared."""

    outputs: Arrays
    times: Times
    rows: int


class Executed(NamedTuple):
    """A run, for statistics. requests: how many shared it. times: of the run, without the queue.

    rows: of the batch; 1 if its inputs have no common first axis.
    """

    requests: int
    rows: int
    times: Times


# Gets the result of a request: in any thread, or in the thread of an event loop.
_Receiver: TypeAlias = Future[Result] | asyncio.Future[Result]


@dataclass(eq=False, slots=True)
class _Pending:
    """A request. rows: size of the first axis; None if it needs its own run. deadline: monotonic.

    queued: whether it is in the queue.
    """

    inputs: Arrays
    rows: int | None
    deadline: float
    arrived: float
    future: _Receiver
    queued: bool = True

    def start(self) -> bool:
        """Return whether somebody still waits for the request. Then a concurrent future cannot be cancelled."""
        if isinstance(self.future, asyncio.Future):
            return not self.future.done()
        return self.future.set_running_or_notify_cancel()


# A request, and its result or error.
_Ended: TypeAlias = tuple[_Pending, Result | Exception]


def _hand_over(ended: Sequence[_Ended]) -> None:
    """Give requests their results. All requests of an event loop get them in one call, because it wakes the loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Ended]] = {}
    for pending, outcome in ended:
        if isinstance(pending.future, asyncio.Future):
            by_loop.setdefault(pending.future.get_loop(), []).append((pending, outcome))
        else:
            _settle([(pending, outcome)])
    for loop, of_loop in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no request of it waits
            loop.call_soon_threadsafe(_settle, of_loop)


def _settle(ended: Sequence[_Ended]) -> None:
    for pending, outcome in ended:
        if pending.future.done():  # the caller does not wait any more
            continue
        if isinstance(outcome, Exception):
            pending.future.set_exception(outcome)
        else:
            pending.future.set_result(outcome)


@dataclass(eq=False)
class _Group:
    """Requests in the queue that may share a run, in the order in which they came. rows: of all of them."""

    pending: deque[_Pending] = field(default_factory=deque)
    rows: int = 0

    @property
    def oldest(self) -> float:
        """The time at which the first request came."""
        return self.pending[0].arrived


class Batcher:
    """Runs requests of one model in a thread of its own, several in one run where possible.

    Requests with inputs of equal shapes, apart from the first axis, are joined along the first axis. A run begins when
    the batch is full, or its first request has waited for `max_delay`. If a shared run fails, or takes half of the time
    of its requests, they run one by one, so that each gets its own result or error. Any thread may call the methods.

    Args:
        run: Computes outputs by name, within a number of seconds.
        joins: Whether requests may share a run: every output must have one row for each row of the inputs.
        max_batch: Most rows of a shared run.
        max_delay: Seconds that a request waits for others.
        max_queue: Most requests in the queue.
        executed: Called after each run.
        name: Name of the thread.
    """

    def __init__(
        self,
        run: Run,
        *,
        joins: bool = True,
        max_batch: int = 32,
        max_delay: float = 0.002,
        max_queue: int = 512,
        executed: Callable[[Executed], None] = lambda run: None,
        name: str = "graphkit-batcher",
    ):
        self._run, self._executed = run, executed
        self._joins, self._max_batch, self._max_delay, self._max_queue = joins, max_batch, max_delay, max_queue
        self._groups: dict[Hashable, _Group] = {}
        self._length = 0
        self._closing = False
        # When the thread looks at the queue again by itself, in monotonic seconds: never while it computes.
        self._wakes = -math.inf
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of requests in the queue."""
        return self._length

    def submit(self, inputs: Arrays, *, timeout: float = 30.0) -> Future[Result]:
        """Put a request into the queue. Cancelling the future removes the request.

        Args:
            inputs: Arrays by name.
            timeout: Seconds until the request fails with LimitReached.

        Raises:
            Busy: The queue is full.
            Retired: The batcher is closed.
        """
        future: Future[Result] = Future()
        self._put(inputs, timeout, future)
        return future

    def submit_from_loop(self, inputs: Arrays, *, timeout: float = 30.0) -> asyncio.Future[Result]:
        """Put a request into the queue, and return a future of the running event loop. See `submit`.

        If the future is done before the request is computed, the request is removed, too.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._put(inputs, timeout, future)
        return future

    def _put(self, inputs: Arrays, timeout: float, future: _Receiver) -> None:
        now = time.monotonic()
        rows = self._rows(inputs)
        pending = _Pending(inputs, rows, now + timeout, now, future)
        key = id(pending) if rows is None else tuple((n, a.dtype, a.shape[1:]) for n, a in sorted(inputs.items()))
        with self._changed:
            if self._closing:
                raise Retired("this version of the model is no longer loaded")
            if self._length >= self._max_queue:
                raise Busy(f"the queue of the model is full: {self._length} requests wait (--max-queue)")
            group = self._groups.setdefault(key, _Group())
            group.pending.append(pending)
            group.rows += rows or 0
            self._length += 1
            if (due := self._due(group)) < self._wakes:
                self._wakes = due  # a thread that is woken once needs no further notice
                self._changed.notify()
        future.add_done_callback(lambda future: self._forget(key, pending) if pending.queued else None)

    def replace(self, run: Run) -> None:
        """Compute later batches with another function, also those of requests in the queue.

        It must take the same inputs. A batch in progress ends with the function before; if its requests then run one by
        one, they use the new one.
        """
        self._run = run

    def close(self) -> None:
        """Take no more requests, compute those in the queue, and end the thread. Waits for this."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _rows(self, inputs: Arrays) -> int | None:
        """Return the rows of a request; None if it needs its own run."""
        if not self._joins or self._max_batch == 1:
            return None
        rows = _first_axis(inputs)
        return rows if rows and rows <= self._max_batch else None

    def _forget(self, key: Hashable, pending: _Pending) -> None:
        """Remove a request whose caller does not wait any more."""
        with self._changed:
            if pending.queued:
                group = self._groups[key]
                group.pending.remove(pending)
                self._taken(key, group, pending)

    def _taken(self, key: Hashable, group: _Group, pending: _Pending) -> None:
        pending.queued = False
        group.rows -= pending.rows or 0
        self._length -= 1
        if not group.pending:
            del self._groups[key]

    # --- the thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._compute(batch)
            except Exception as error:  # the thread must live, or later requests would wait for ever
                logger.exception("batch failed", extra={"requests": len(batch)})
                _hand_over([(pending, error) for pending in batch])
            del batch  # this thread must not keep arrays while it waits

    def _compute(self, batch: Sequence[_Pending]) -> None:
        """Compute the requests of a batch that were not cancelled, and are not too late."""
        started = [pending for pending in batch if pending.start()]
        now = time.monotonic()
        waiting = [pending for pending in started if now < pending.deadline]
        if len(waiting) < len(started):
            error = LimitReached("the request waited in the queue until its time limit (--timeout)")
            _hand_over([(pending, error) for pending in started if now >= pending.deadline])
        if len(waiting) == 1:
            self._alone(waiting[0])
        elif waiting:
            self._together(waiting)

    def _next(self) -> list[_Pending] | None:
        """Wait for the next batch, and return it; None after `close`, when the queue is empty."""
        with self._changed:
            while self._groups or not self._closing:
                now = time.monotonic()
                ready = [key for key, group in self._groups.items() if self._closing or self._due(group) <= now]
                if ready:
                    return self._take(min(ready, key=lambda key: self._groups[key].oldest))
                self._wakes = min(map(self._due, self._groups.values()), default=math.inf)
                self._changed.wait(min(self._wakes - now, threading.TIMEOUT_MAX))  # a longer one is an OverflowError
                self._wakes = -math.inf
        return None

    def _due(self, group: _Group) -> float:
        """Return the time at which a group must run."""
        fills_batch = group.pending[0].rows is None or group.rows >= self._max_batch
        return group.oldest if fills_batch else group.oldest + self._max_delay

    def _take(self, key: Hashable) -> list[_Pending]:
        """Remove the first requests of a group from the queue, at most a full batch, and return them."""
        group = self._groups[key]
        taken: list[_Pending] = []
        rows = 0
        while group.pending and (not taken or rows + (group.pending[0].rows or 0) <= self._max_batch):
            pending = group.pending.popleft()
            rows += pending.rows or 0
            taken.append(pending)
            self._taken(key, group, pending)
        return taken

    def _together(self, waiting: Sequence[_Pending]) -> None:
        """Compute requests in one run. If that fails, or its outputs do not have their rows, run them one by one."""
        begun = time.monotonic()
        rows = [pending.rows or 0 for pending in waiting]
        total = sum(rows)
        try:
            joined = {name: np.concatenate([p.inputs[name] for p in waiting]) for name in waiting[0].inputs}
            ready = time.monotonic()
            # The other half is for the runs one by one: a request that takes long must not end all others.
            outputs = self._run(joined, (max(pending.deadline for pending in waiting) - ready) / 2)
            done = time.monotonic()
            if any(not array.ndim or len(array) != total for array in outputs.values()):
                raise RuntimeFailure("an output does not have the rows of its inputs")
        except Exception as error:  # noqa: BLE001 - each request gets its own error
            logger.warning(
                "batch failed; its requests run one by one",
                extra={"requests": len(waiting), "rows": total, "error": error_text(error)},
            )
            self._one_by_one(waiting)
            return
        ends = np.cumsum(rows).tolist()
        parts = [
            {name: array[end - size : end] for name, array in outputs.items()}
            for end, size in zip(ends, rows, strict=True)
        ]
        split = time.monotonic() - done
        self._executed(Executed(len(waiting), total, Times(0.0, ready - begun, done - ready, split)))
        _hand_over([
            (pending, Result(part, Times(begun - pending.arrived, ready - begun, done - ready, split), total))
            for pending, part in zip(waiting, parts, strict=True)
        ])  # fmt: skip

    def _one_by_one(self, waiting: Sequence[_Pending]) -> None:
        """Compute requests in runs of their own. At first each has a share of the time, then the slow ones the rest."""
        left = deque(waiting)
        slow: list[_Pending] = []
        while left:
            pending = left.popleft()
            seconds = (pending.deadline - time.monotonic()) / (len(left) + len(slow) + 2)
            if not self._alone(pending, seconds):
                slow.append(pending)
        for pending in slow:
            self._alone(pending)

    def _alone(self, pending: _Pending, seconds: float | None = None) -> bool:
        """Compute one request. seconds: time for it; None: until its deadline.

        Returns False if it needs more than `seconds`; then it has no result.
        """
        begun = time.monotonic()
        left = pending.deadline - begun
        try:
            if left <= 0:
                raise LimitReached("the request was not finished within its time limit (--timeout)")
            outputs = self._run(pending.inputs, left if seconds is None else seconds)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            spent = time.monotonic() - begun
            # Another limit, such as that of iterations, ends a run before its time. Timers may round.
            if isinstance(error, LimitReached) and seconds is not None and 0 < 0.9 * seconds <= spent:
                return False
            _hand_over([(pending, error)])
            return True
        times = Times(begun - pending.arrived, 0.0, time.monotonic() - begun, 0.0)
        rows = _first_axis(pending.inputs)
        self._executed(Executed(1, 1 if rows is None else rows, times._replace(queue=0.0)))
        _hand_over([(pending, Result(outputs, times, pending.rows or 0))])
        return True


def _first_axis(inputs: Arrays) -> int | None:
    """Return the size of the first axis of all inputs; None if they differ."""
    sizes = {array.shape[0] if array.ndim else None for array in inputs.values()}
    return sizes.pop() if len(sizes) == 1 else None
