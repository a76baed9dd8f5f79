"""Arrays from one process to another, while both go on computing.

A message is a header with the shapes, and one part for each array, which travels as it lies in memory; few bytes travel
with the header. A thread sees to
what is on its way: without it, an MPI that makes no progress of its own would let the receiver of a large array wait
until the sender has computed its next part. Nobody waits inside of MPI.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from graphkit.dist.wire.promptness import be_prompt
from graphkit.errors import RuntimeFailure

# Tags: of headers and of arrays, for each lane.
_TAGS_OF_A_LANE = 2
# MPI counts in 32 bits: larger arrays go in parts.
_PART = 1 << 30
# Arrays of so many bytes together travel behind their header.
_INLINE = 1024
# While something is on its way: the pause between two looks; how often somebody who waits looks for who is lost.
_PAUSE, _LOOK = 5e-5, 0.05


class Links(Protocol):
    """What carries messages."""

    rank: int
    size: int

    def start_send(self, data: np.ndarray, to: int, tag: int) -> Any:
        """Begin to send bytes (uint8, contiguous) to a rank: something with a method `Test`."""
        ...

    def start_receive(self, data: np.ndarray, source: int, tag: int) -> Any:
        """Begin to receive at most so many bytes."""
        ...

    def doing(self, call: bytes) -> None:
        """This process goes on, with this call."""
        ...

    def went_on(self) -> None:
        """What this process waits for has made progress."""
        ...

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]: ...
    def lost(self) -> str | None: ...
    def fail(self, reason: str) -> None:
        """Do nothing together any more."""
        ...


class Kind(NamedTuple):
    """What both sides know of an array: its element type, and how many axes it has."""

    dtype: np.dtype[Any]
    rank: int


class Arrival:
    """Arrays that are to come. `done` once they are all there."""

    def __init__(self, source: int, lane: int, number: int, kinds: Sequence[Kind], label: int = 0):
        self.source, self.lane, self.number, self.kinds, self.label = source, lane, number, kinds, label
        count = 2 + sum(kind.rank for kind in kinds)
        self.data = np.empty(8 * count + _INLINE, np.uint8)
        self.header = self.data[: 8 * count].view(np.int64)
        self.header_request: Any = None
        self.requests: list[Any] = []
        self.arrays: list[np.ndarray] = []
        self.done = False

    def make_room(self) -> list[np.ndarray]:
        """Arrays of the shapes that the header tells. Raises RuntimeFailure for another message than the one meant."""
        number, label = self.header[:2].tolist()
        if number != self.number:
            raise RuntimeFailure(f"message {number} of rank {self.source} arrived instead of number {self.number}")
        if label != self.label:
            raise RuntimeFailure(f"value {label} of rank {self.source} arrived instead of value {self.label}")
        at = 2
        for kind in self.kinds:
            self.arrays.append(np.empty(tuple(self.header[at : at + kind.rank].tolist()), kind.dtype))
            at += kind.rank
        return self.arrays

    def take_inline(self) -> bool:
        """Whether the arrays have come with the header; they are there then."""
        if sum(array.nbytes for array in self.arrays) > _INLINE:
            return False
        at = self.header.nbytes
        for array in self.arrays:
            if array.size:
                array.reshape(-1).view(np.uint8)[:] = self.data[at : at + array.nbytes]
            at += array.nbytes
        return True


class Messages:
    """Sends to, and receives from, the other processes. Messages of a lane between two processes keep their order.

    One thread at a time calls it, and takes part in no collective before `settle` has returned.
    """

    def __init__(self, links: Links):
        self._links = links
        self._news = threading.Condition()
        # All of the following are guarded by `_news`.
        self._sent: list[tuple[Any, np.ndarray]] = []
        self._awaited: list[Arrival] = []
        self._numbers: dict[tuple[str, int, int], int] = {}
        self._failure: str | None = None
        self._thread: threading.Thread | None = None
        self.sent_bytes = 0

    def send(self, to: int, arrays: Sequence[np.ndarray], lane: int = 0, label: int = 0) -> None:
        """Send arrays to a rank, which expects their kinds; they must not change before `settle`.

        label: what they are, which both sides have to agree on.
        """
        tag = lane * _TAGS_OF_A_LANE
        self._check()
        with self._news:
            shapes = [size for array in arrays for size in array.shape]
            header = np.array([self._number("to", to, lane), label, *shapes], np.int64).view(np.uint8)
            bytes_ = [_bytes(np.ascontiguousarray(array)) for array in arrays]
            size = sum(data.size for data in bytes_)
            if size <= _INLINE:
                header, bytes_ = np.concatenate([header, *bytes_]), []
            self._sent.append((self._links.start_send(header, to, tag), header))
            for data in bytes_:
                self._sent += [(self._links.start_send(part, to, tag + 1), part) for part in _parts(data)]
            self.sent_bytes += size
            self._go_on()

    def expect(self, source: int, kinds: Sequence[Kind], lane: int = 0, label: int = 0) -> Arrival:
        """Be ready for the next message of a rank."""
        self._check()
        with self._news:
            arrival = Arrival(source, lane, self._number("from", source, lane), kinds, label)
            arrival.header_request = self._links.start_receive(arrival.data, source, lane * _TAGS_OF_A_LANE)
            self._awaited.append(arrival)
            self._go_on()
        return arrival

    def receive(self, arrival: Arrival, what: str) -> list[np.ndarray]:
        """The arrays, once they are there. Raises RuntimeFailure, which says what is missed, when the rank is lost."""
        self._wait(lambda: arrival.done, f"{what} of rank {arrival.source}")
        return arrival.arrays

    def settle(self, left: int = 0) -> None:
        """Wait until no more than so many parts that were sent are still on their way."""
        self._wait(lambda: len(self._sent) <= left, "receipts of what was sent")

    def fail(self, error: BaseException, where: str) -> None:
        """Do nothing with the others any more, who may wait for messages that do not come: whatever this process begins
        with them from now on, its end too, raises RuntimeFailure, and so ends the job.
        """
        with self._news:
            if self._failure is None:
                self._failure = f"rank {self._links.rank} failed {where}: {str(error) or type(error).__name__}"
        self._links.fail(self._failure)

    # --- what goes on ---------------------------------------------------------------------------------

    def _number(self, way: str, other: int, lane: int) -> int:
        key = (way, other, lane)
        self._numbers[key] = self._numbers.get(key, -1) + 1
        return self._numbers[key]

    def _go_on(self) -> None:
        """See to what has been begun; `_news` is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="graphkit-messages", daemon=True)
            self._thread.start()
        self._news.notify_all()

    def _serve(self) -> None:
        be_prompt()
        while True:
            with self._news:
                self._news.wait_for(lambda: self._failure is None and (self._sent or self._awaited))
                self._advance()
            time.sleep(_PAUSE)

    def _advance(self) -> None:
        """Look at all that is on its way; `_news` is held."""
        before = self._left
        try:
            self._sent = [(request, part) for request, part in self._sent if not request.Test()]
            # Messages of a lane come in their order: the room of one is made before that of the next.
            closed = set()
            for arrival in self._awaited:
                if (arrival.source, arrival.lane) not in closed and not self._has_room(arrival):
                    closed.add((arrival.source, arrival.lane))
                elif arrival.header_request is None:
                    arrival.requests = [request for request in arrival.requests if not request.Test()]
                    arrival.done = not arrival.requests
            self._awaited = [arrival for arrival in self._awaited if not arrival.done]
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            self._failure = str(error)
        if self._left != before:
            self._links.went_on()
        self._news.notify_all()

    @property
    def _left(self) -> tuple[int, int]:
        """How many parts and messages are on their way; `_news` is held."""
        return len(self._sent), len(self._awaited)

    def _has_room(self, arrival: Arrival) -> bool:
        """Whether the shapes are known, and the arrays on their way."""
        if arrival.header_request is None:
            return True
        if not arrival.header_request.Test():
            return False
        arrival.header_request = None
        start, tag = self._links.start_receive, arrival.lane * _TAGS_OF_A_LANE + 1
        arrays = arrival.make_room()
        if not arrival.take_inline():
            arrival.requests = [start(part, arrival.source, tag) for a in arrays for part in _parts(_bytes(a))]
        return True

    def _wait(self, done: Any, what: str) -> None:
        looked = time.monotonic()
        said = False
        with self._links.waiting(True):
            while True:
                with self._news:
                    if self._failure is None:
                        self._advance()
                    if self._failure is not None:
                        break
                    if done():
                        return
                time.sleep(_PAUSE)
                if (now := time.monotonic()) - looked > _LOOK:
                    looked = now
                    if not said:
                        self._links.doing(what.encode())
                        said = True
                    if (reason := self._links.lost()) is not None:
                        raise RuntimeFailure(f"waiting for {what} failed: {reason}")
        self._check(f"{what} will not arrive: ")

    def _check(self, before: str = "") -> None:
        """Raise RuntimeFailure when this process has failed before, or MPI."""
        if self._failure is not None:
            raise RuntimeFailure(f"{before}{self._failure}")


def _bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, which they belong to."""
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


def _parts(data: np.ndarray) -> list[np.ndarray]:
    """Bytes in parts that MPI can count; none of no bytes."""
    count = math.ceil(data.size / _PART)
    return [data[index * _PART : (index + 1) * _PART] for index in range(count)]
