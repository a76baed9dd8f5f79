"""Arrays sent from one rank to another while both compute.

A message is a header with the shapes, followed by one part for each array, sent without a copy. The header contains
small arrays. A thread lets messages progress: without it, some MPI libraries deliver a large array only when the sender
calls MPI again. No thread blocks inside MPI.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from graphkit.dist.arrays import as_bytes
from graphkit.dist.wire.scheduling import reduce_wakeup_latency
from graphkit.errors import RuntimeFailure, UsageError, error_text
from graphkit.named_tuples import NamedTuple

# A lane is an independent, ordered stream of messages between two ranks, with one MPI tag for headers and one for
# arrays.
_TAGS_PER_LANE = 2
# MPI counts in 32 bits, so larger arrays are sent in parts.
_PART = 1 << 30
# Arrays of at most this many bytes together are sent with their header.
_INLINE = 1024
# The pause between two checks of messages, and seconds between two checks for lost ranks.
_PAUSE, _CHECK = 5e-5, 0.05
_ENDING = 10.0


class Links(Protocol):
    rank: int
    size: int

    def start_send(self, data: np.ndarray, to: int, tag: int) -> Any:
        """Start to send bytes (uint8, contiguous) to a rank. Return a request with a method `Test`."""
        ...

    def start_receive(self, data: np.ndarray, source: int, tag: int) -> Any:
        """Start to receive at most this many bytes. Return a request with a method `Test`."""
        ...

    def doing(self, call: bytes) -> None: ...

    def made_progress(self) -> None: ...

    def waiting(self, for_progress: bool) -> AbstractContextManager[None]: ...
    def lost(self) -> str | None: ...
    def fail(self, reason: str) -> None: ...


class Kind(NamedTuple):
    """The dtype and the number of axes of an array, which both sides know."""

    dtype: np.dtype[Any]
    ndim: int


class Arrival:
    """Arrays that a rank will send. `done`: whether they are complete."""

    def __init__(self, source: int, lane: int, number: int, kinds: Sequence[Kind], label: int = 0):
        self.source, self.lane, self.number, self.kinds, self.label = source, lane, number, kinds, label
        count = 2 + sum(kind.ndim for kind in kinds)
        self.data = np.empty(8 * count + _INLINE, np.uint8)
        self.header = self.data[: 8 * count].view(np.int64)
        self.header_request: Any = None
        self.requests: list[Any] = []
        self.arrays: list[np.ndarray] = []
        self.done = False

    def allocate(self) -> list[np.ndarray]:
        """Allocate arrays of the shapes in the header. Raises RuntimeFailure if another message has arrived."""
        number, label = self.header[:2].tolist()
        if number != self.number:
            raise RuntimeFailure(f"message {number} of rank {self.source} arrived instead of number {self.number}")
        if label != self.label:
            raise RuntimeFailure(f"value {label} of rank {self.source} arrived instead of value {self.label}")
        at = 2
        for kind in self.kinds:
            self.arrays.append(np.empty(tuple(self.header[at : at + kind.ndim].tolist()), kind.dtype))
            at += kind.ndim
        return self.arrays

    def copy_inline(self) -> bool:
        """Copy the arrays if they were sent with the header. Return whether they were."""
        if sum(array.nbytes for array in self.arrays) > _INLINE:
            return False
        at = self.header.nbytes
        for array in self.arrays:
            as_bytes(array)[:] = self.data[at : at + array.nbytes]
            at += array.nbytes
        return True


class Messages:
    """Sends arrays to other ranks and receives theirs. Messages of one lane between two ranks keep their order.

    Only one thread at a time may use this object. Call `settle` before this rank takes part in a collective.
    """

    def __init__(self, links: Links):
        self._links = links
        self._condition = threading.Condition()
        # `_condition` guards the following attributes.
        self._sent: list[tuple[Any, np.ndarray]] = []
        self._expected: list[Arrival] = []
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._failure: str | None = None
        self._cause: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.sent_bytes = 0

    def send(self, to: int, arrays: Sequence[np.ndarray], lane: int = 0, label: int = 0) -> None:
        """Send arrays to a rank that expects their types. They must not change before `settle` returns.

        label: a number that both sides compare, to detect a wrong message.
        """
        tag = lane * _TAGS_PER_LANE
        self._check()
        with self._condition:
            shapes = [size for array in arrays for size in array.shape]
            header = np.array([self._number("to", to, lane), label, *shapes], np.int64).view(np.uint8)
            parts = [as_bytes(array) for array in arrays]
            size = sum(data.size for data in parts)
            if size <= _INLINE:
                header, parts = np.concatenate([header, *parts]), []
            self._sent.append((self._links.start_send(header, to, tag), header))
            for data in parts:
                self._sent += [(self._links.start_send(part, to, tag + 1), part) for part in _parts(data)]
            self.sent_bytes += size
            self._wake()

    def expect(self, source: int, kinds: Sequence[Kind], lane: int = 0, label: int = 0) -> Arrival:
        self._check()
        with self._condition:
            arrival = Arrival(source, lane, self._number("from", source, lane), kinds, label)
            arrival.header_request = self._links.start_receive(arrival.data, source, lane * _TAGS_PER_LANE)
            self._expected.append(arrival)
            self._wake()
        return arrival

    def receive(self, arrival: Arrival, what: str) -> list[np.ndarray]:
        """Return the arrays once they are complete.

        Raises RuntimeFailure if the rank is lost. what: name of the arrays, for the error.
        """
        self._wait(lambda: arrival.done, f"{what} of rank {arrival.source}")
        return arrival.arrays

    def settle(self, left: int = 0) -> None:
        """Wait until at most `left` sent parts are under way."""
        self._wait(lambda: len(self._sent) <= left, "confirmation of sent messages")

    def fail(self, error: BaseException, where: str) -> None:
        """Stop communicating after an error: other ranks then do not wait for messages of this one.

        Every later call on this rank raises RuntimeFailure, also at the exit of the process: the job is aborted.
        """
        with self._condition:
            if self._failure is None:
                self._failure = f"rank {self._links.rank} failed {where}: {error_text(error)}"
                self._cause = error
        self._links.fail(self._failure)

    def close(self) -> None:
        """End the thread, which must not call MPI after MPI_Finalize. Every later call raises RuntimeFailure."""
        with self._condition:
            self._closed = True
            if self._failure is None:
                self._failure = f"rank {self._links.rank} has closed its connection"
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(_ENDING)

    def stop(self, seconds: float) -> bool:
        """Keep all other threads from calling MPI for messages. Return whether that was possible in time.

        After a success, other threads that use this object wait forever. seconds: how long to wait for a running call.
        """
        return self._condition.acquire(timeout=seconds)

    # --- progress -------------------------------------------------------------------------------------

    def _number(self, way: str, other: int, lane: int) -> int:
        key = (way, other, lane)
        self._numbers[key] = self._numbers.get(key, -1) + 1
        return self._numbers[key]

    def _wake(self) -> None:
        """Wake the thread that lets messages progress; `_condition` is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="graphkit-messages", daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def _serve(self) -> None:
        reduce_wakeup_latency()
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._has_work)
                if self._closed:
                    return
                self._advance()
            time.sleep(_PAUSE)

    def _advance(self) -> None:
        """Check all messages that are under way; `_condition` is held."""
        before = self._left
        try:
            self._sent = [(request, part) for request, part in self._sent if not request.Test()]
            # Messages of a lane arrive in order: allocate the arrays of a message only after those of the message
            # before.
            blocked = set()
            for arrival in self._expected:
                if (arrival.source, arrival.lane) not in blocked and not self._header_arrived(arrival):
                    blocked.add((arrival.source, arrival.lane))
                elif arrival.header_request is None:
                    arrival.requests = [request for request in arrival.requests if not request.Test()]
                    arrival.done = not arrival.requests
            self._expected = [arrival for arrival in self._expected if not arrival.done]
        except Exception as error:  # noqa: BLE001 - the caller that waits gets it
            self._failure, self._cause = error_text(error), error
        if self._left != before:
            self._links.made_progress()
        self._condition.notify_all()

    @property
    def _has_work(self) -> bool:
        """Whether messages may still arrive; `_condition` is held."""
        return self._failure is None and bool(self._sent or self._expected)

    @property
    def _left(self) -> tuple[int, int]:
        """Numbers of sent parts and expected messages that are not complete; `_condition` is held."""
        return len(self._sent), len(self._expected)

    def _header_arrived(self, arrival: Arrival) -> bool:
        """Return whether the header has arrived. At its arrival, start to receive the arrays."""
        if arrival.header_request is None:
            return True
        if not arrival.header_request.Test():
            return False
        arrival.header_request = None
        start, tag = self._links.start_receive, arrival.lane * _TAGS_PER_LANE + 1
        arrays = arrival.allocate()
        if not arrival.copy_inline():
            arrival.requests = [start(part, arrival.source, tag) for a in arrays for part in _parts(as_bytes(a))]
        return True

    def _wait(self, done: Any, what: str) -> None:
        checked = time.monotonic()
        reported = False
        with self._links.waiting(True):
            while True:
                with self._condition:
                    if self._failure is None:
                        self._advance()
                    if self._failure is not None:
                        break
                    if done():
                        return
                time.sleep(_PAUSE)
                if (now := time.monotonic()) - checked > _CHECK:
                    checked = now
                    if not reported:
                        self._links.doing(what.encode())
                        reported = True
                    if (reason := self._links.lost()) is not None:
                        raise RuntimeFailure(f"waiting for {what} failed: {reason}")
        self._check(f"{what} will not arrive: ")

    def _check(self, before: str = "") -> None:
        if self._failure is not None:
            raise RuntimeFailure(f"{before}{self._failure}") from self._cause


def _parts(data: np.ndarray) -> list[np.ndarray]:
    count = math.ceil(data.size / _PART)
    return [data[index * _PART : (index + 1) * _PART] for index in range(count)]


# Lanes of messages; pipelines use lanes 0 to 4.
_VALUES, _ACKNOWLEDGEMENTS = 5, 6

# Largest number of unacknowledged values to one rank.
WINDOW = 32


class Channels:
    """Sends and receives the values of one rank's programs, which run one at a time, in the same order on every rank.

    At most `window` values to one rank are unacknowledged. A receiver acknowledges half a window with one message.

    Attributes:
        sent, received: Number of values by rank.
        by_key: Number of sent values by name.
        ahead: Largest number of unacknowledged values, by rank.
        waits: How often a value had to wait for an acknowledgement.
    """

    def __init__(self, messages: Messages, window: int = WINDOW):
        if window < 2:
            raise UsageError(f"window={window} must be at least 2")
        self._messages, self.window, self._half = messages, window, window // 2
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.by_key: Counter[str] = Counter()
        self.ahead: Counter[int] = Counter()
        self.waits = 0
        self._acknowledgements: Counter[int] = Counter()

    def send(self, to: int, number: int, key: str, array: np.ndarray) -> None:
        """Send a copy of an array to a rank. Waits while `window` values to this rank are unacknowledged."""
        while (under_way := self.sent[to] - self._acknowledgements[to] * self._half) >= self.window:
            self.waits += 1
            self._wait_for_acknowledgement(to)
        self.ahead[to] = max(self.ahead[to], under_way + 1)
        self._messages.send(to, [array.copy()], _VALUES, number)
        self.sent[to] += 1
        self.by_key[key] += 1

    def receive(self, source: int, number: int, key: str, dtype: np.dtype[Any], ndim: int) -> np.ndarray:
        """Return the array that a rank sends under this number. ndim: number of axes.

        Raises RuntimeFailure if no array, or another one, arrives.
        """
        arrival = self._messages.expect(source, [Kind(dtype, ndim)], _VALUES, number)
        (array,) = self._messages.receive(arrival, f"the values of {key}")
        self.received[source] += 1
        if self.received[source] % self._half == 0:
            self._messages.send(source, [], _ACKNOWLEDGEMENTS)
        return array

    def finish(self) -> None:
        """Collective: wait for all acknowledgements of a run, and until MPI no longer needs the buffers of sent values.

        Afterwards, collectives may run again.
        """
        for to, count in self.sent.items():
            while self._acknowledgements[to] < count // self._half:
                self._wait_for_acknowledgement(to)
        self._messages.settle()

    def _wait_for_acknowledgement(self, rank: int) -> None:
        arrival = self._messages.expect(rank, [], _ACKNOWLEDGEMENTS)
        self._messages.receive(arrival, "an acknowledgement of values")
        self._acknowledgements[rank] += 1
