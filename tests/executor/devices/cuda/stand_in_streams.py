"""Streams of the stand-in: queues of work that is done as late as it may be, points in them, recordings of several."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

# Done by a call; one that returns PENDING has to be called again.
Work: TypeAlias = Callable[[], Any]
PENDING = object()

# The thread that waits for a stream does the stream's work. This work may wait for other streams.
_TAKING_TURNS = threading.RLock()


class Recording:
    """A recording: for each stream, its work and the points that it waits for, in order.

    joined: how much work of each stream the first stream has waited for. inner: the recording is a branch or the body
    of a loop. It then has only one stream, and no copies from or to the host.
    """

    def __init__(self, first: Stream, *, inner: bool = False):
        self.first, self.inner = first, inner
        self.items: dict[Stream, list[Work | Point]] = {first: []}
        self.joined: dict[Stream, int] = {}


class Point(NamedTuple):
    """A position in the work of a stream, or in its recording."""

    stream: Stream
    position: int
    recording: Recording | None

    def synchronize(self) -> None:
        """Do the stream's work up to this place, and no more."""
        assert self.recording is None, "nothing is waited for while it is recorded"
        assert self.stream.advance(self.position)


class Stream:
    """A stream whose work is done only when a caller waits for it. waits: number of such calls.

    early: work of this stream is done when it is queued, together with work of other streams that it depends on.
    """

    def __init__(self) -> None:
        self.waits = 0
        self.early = False
        self.recording: Recording | None = None
        self.work: list[Work] = []
        self._begun = 0  # how much was there before what is left

    def queue(self, work: Work) -> None:
        if self.recording is not None:
            self.recording.items[self].append(work)
            return
        with _TAKING_TURNS:
            self.work.append(work)
        if self.early:
            self.advance()

    @property
    def is_inner(self) -> bool:
        """Whether the queued work is part of a branch or loop body."""
        return self.recording is not None and self.recording.inner

    def mark(self) -> Point:
        assert not self.is_inner, "conditions have no events inside"
        with _TAKING_TURNS:
            position = self._begun + len(self.work) if self.recording is None else len(self.recording.items[self])
        return Point(self, position, self.recording)

    def follow(self, point: Point) -> None:
        assert not self.is_inner, "conditions have no events inside"
        recording = point.recording
        if recording is None:
            assert self.recording is None, "what is recorded follows nothing but what is recorded with it"
            self.queue(lambda: None if point.stream.advance(point.position) else PENDING)
            return
        assert point.stream.recording is recording, "the point is one of a recording that is over"
        if self.recording is None:
            recording.items[self], self.recording = [], recording
        assert self.recording is recording
        recording.items[self].append(point)
        if self is recording.first:
            recording.joined[point.stream] = point.position

    def advance(self, to: int | None = None) -> bool:
        """Do the possible work up to a position. Return whether all of it is done."""
        with _TAKING_TURNS:
            while self.work and (to is None or self._begun < to):
                if self.work[0]() is PENDING:
                    return False
                del self.work[0]
                self._begun += 1
            return True

    def finish(self) -> None:
        assert self.recording is None, "nothing is waited for while it is recorded"
        assert self.advance(), "other processes may not come: nobody waits for them without looking for who is lost"


def inside(queue: Callable[[Stream], None]) -> list[Work]:
    """Return the work of a branch or loop body, which `queue` queues in a separate stream. It can be repeated."""
    stream = Stream()
    recording = stream.recording = Recording(stream, inner=True)
    queue(stream)
    assert list(recording.items) == [stream]
    return [item for item in recording.items[stream] if not isinstance(item, Point)]


def recorded(stream: Stream, queue: Callable[[], None]) -> Callable[[], Work]:
    """Record the work that `queue` queues. Return a function that makes a replay of it."""
    recording = stream.recording = Recording(stream)
    try:
        queue()
    finally:
        for taking_part in recording.items:
            taking_part.recording = None
    for beside, items in recording.items.items():
        assert beside is stream or recording.joined.get(beside) == len(items), "work beside the stream is not joined"

    def replayed() -> Work:
        lanes = {of: Stream() for of in recording.items}

        def following(point: Point) -> Work:
            return lambda: None if lanes[point.stream].advance(point.position) else PENDING

        for of, lane in lanes.items():
            for item in recording.items[of]:
                lane.queue(following(item) if isinstance(item, Point) else item)
        beside = [lane for of, lane in lanes.items() if of.early]

        def run() -> object:
            for lane in beside:
                lane.advance()
            return None if lanes[stream].advance() else PENDING

        return run

    return replayed
