"""What processes do together, in an order that they agree upon: none waits for another that does things differently.

Each process posts what it wants to take part in. In a round all tell each other what they have posted; what every one
of them has, they do, by priority and name. The order in which a process posts different things does not matter, that of
equal names does. Horovod negotiates likewise, by way of rank 0 (Sergeev and Del Balso, arXiv:1802.05799, 2018).

Who waits for something drives the rounds; a thread drives them while nobody waits. Where all wait and nothing is common
to them, they go on for ever: then all raise the same error, which names what each of them waits for.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from graphkit.errors import RuntimeFailure, UsageError

# What a process says that takes part in nothing any more.
ENDED = "ended"

# How sums get on while a process computes: not at all, one after the other, or several at a time.
Overlap: TypeAlias = Literal["funnelled", "chained", "concurrent"]
OVERLAPS: tuple[Overlap, ...] = ("funnelled", "chained", "concurrent")

# Rounds without anything in common, while all wait, after which they give up; a pause between two, in seconds.
_STUCK, _PAUSE = 500, 1e-3
# The longest time in which a waiting thread does not look for who is lost, in seconds.
_LOOK = 0.05

# Calls whose digests are kept.
_KEPT = 4096

# Sums of one dtype of at most so many bytes each are sent together.
_SMALL = 16 << 10


class Links(Protocol):
    """What carries a channel: exchanges of small messages, sums, and signs of life."""

    rank: int
    size: int
    steps: int

    def tell(self, mine: bytes) -> list[bytes]:
        """The messages of all processes, all of one length."""
        ...

    def allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray: ...
    def start_allreduce(self, array: np.ndarray, out: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Begin a sum: something with a method `Test`, and where the sum will be, which may be `out`."""
        ...

    def doing(self, call: bytes) -> None:
        """This process goes on, with this call."""
        ...

    def waiting(self, for_steps: bool) -> AbstractContextManager[None]:
        """The others are awaited meanwhile: to go on, or only to be there."""
        ...

    def lost(self) -> str | None:
        """Why another process is given up; None as long as there is hope."""
        ...


@dataclass(slots=True)
class Sum:
    """A sum over the processes, into `out` when given. then: gets it, and what it returns is the result of the call.

    alone: it is sent on its own, so that its bits do not depend on what else there is.
    """

    array: np.ndarray
    out: np.ndarray | None
    then: Callable[[np.ndarray], Any]
    alone: bool = False

    def deliver(self, total: np.ndarray) -> Any:
        """The result, once there is the sum."""
        return self.then(placed(total.astype(self.array.dtype, copy=False).reshape(self.array.shape), self.out))


def placed(result: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """The result, written into `out` when given."""
    if out is None or out is result:
        return result
    np.copyto(out, result)
    return out


Action: TypeAlias = Callable[[], Any] | Sum


class Pending:
    """What was posted and may not be done yet. `wait` returns its result, or raises its error."""

    __slots__ = (
        "_channel",
        "action",
        "call",
        "digest",
        "done",
        "error",
        "name",
        "number",
        "priority",
        "result",
        "text",
    )

    def __init__(self, call: str, action: Action | None, priority: int, channel: Channel | None = None):
        self.call, self.action, self.priority, self._channel = call, action, priority, channel
        self.name = self.digest = self.number = 0
        self.text = b""
        self.done = False
        self.result: Any = None
        self.error: Exception | None = None

    def wait(self) -> Any:
        if not self.done and self._channel is not None:
            self._channel.wait(self)
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        self.result, self.error, self.action = result, error, None
        self.done = True


def alone(call: str, action: Action | None) -> Pending:
    """A call in which one process takes part: it is done at once."""
    made = Pending(call, None, 0)
    if isinstance(action, Sum):
        made.finish(action.deliver(action.array.copy() if action.out is None else action.array))
    else:
        made.finish(action() if action is not None else None)
    return made


class _Flight(NamedTuple):
    """A sum that goes on by itself."""

    request: Any
    total: np.ndarray
    made: Pending
    summed: Sum


# Steps, calls, digest of all that is posted, how many these are, whether somebody waits; what for.
_FORMAT = struct.Struct("<qqQq?95s")
# Where the digest and the number lie in it.
_POSTED = slice(16, 32)

_BITS = (1 << 64) - 1


class Announcement(NamedTuple):
    """What a process waits for or has posted: in how many steps and calls, and whether it waits."""

    steps: int
    calls: int
    digest: int
    posted: int
    waits: bool
    text: str

    @classmethod
    def unpack(cls, data: bytes) -> Announcement:
        steps, calls, digest, posted, waits, text = _FORMAT.unpack(data)
        return cls(steps, calls, digest, posted, waits, text.rstrip(b"\0").decode(errors="replace"))

    def __str__(self) -> str:
        if self.text == ENDED:
            return f"{ENDED} after {self.steps} steps"
        return f"{self.text} in step {self.steps}" if self.steps else f"{self.text} as call {self.calls}"


class _Lost(RuntimeFailure):
    """Another process is given up."""


class Channel:
    """Carries out what all processes have posted, over `links`; `overlap` says what happens while nobody waits."""

    def __init__(self, links: Links, overlap: Overlap = "chained"):
        self._links = links
        self.overlap: Overlap = overlap
        self.calls = 0
        self.disagreement: str | None = None
        self._failure: str | None = None
        # By call, what was posted and is not done, in order; `_news` guards it.
        self._posted: dict[str, deque[Pending]] = {}
        self._news = threading.Condition()
        self._known: dict[Any, tuple[int, int, bytes]] = {}
        self._awaited: list[Pending] = []
        # The thread that drives a round, or 0; `_news` guards it.
        self._driver = 0
        self._flying: deque[_Flight] = deque()
        self._broken: list[_Flight] = []
        self._stuck = 0
        self._looked = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False

    # --- what is posted ---------------------------------------------------------------------------

    def post(
        self,
        call: str,
        arrays: Sequence[np.ndarray] = (),
        action: Action | None = None,
        *,
        priority: int = 0,
        later: bool = True,
    ) -> Pending:
        """Take part in a call with arrays of these types once all do. later: nobody will wait for it soon.

        Raises RuntimeFailure when the processes no longer go on together.
        """
        if self._links.size == 1:
            return alone(call, action)
        if self._failure is not None:
            raise RuntimeFailure(self._failure)
        made = Pending(call, action, priority, self)
        made.name, made.digest, made.text = self._told(call, arrays)
        self._links.doing(made.text)
        with self._news:
            self.calls += 1
            made.number = self.calls
            self._posted.setdefault(call, deque()).append(made)
            if later and self.overlap != "funnelled" and self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="graphkit-channel", daemon=True)
                self._thread.start()
            self._news.notify_all()
        return made

    def perform(self, call: str, arrays: Sequence[np.ndarray] = (), action: Action | None = None) -> Any:
        """Post it and wait for it; its result."""
        return self.post(call, arrays, action, later=False).wait()

    def _told(self, call: str, arrays: Sequence[np.ndarray]) -> tuple[int, int, bytes]:
        """The digests of a call without and with its arrays, and what is said of it."""
        key = (call, *((a.dtype, a.shape) for a in arrays))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            what = " ".join((call, *(f"{a.dtype}{list(a.shape)}" for a in arrays)))
            text = (what if len(arrays) <= 1 else call).encode()[:95]
            found = self._known[key] = _digest(call), _digest(what), text
        return found

    def flush(self) -> None:
        """Wait for all that was posted; raises the first error."""
        while True:
            with self._news:
                left = [made for queue in self._posted.values() for made in queue]
            if not left:
                return
            for made in left:
                made.wait()

    # --- waiting ----------------------------------------------------------------------------------

    def wait(self, pending: Pending) -> None:
        """Return when it is done. Raises RuntimeFailure when another process is given up meanwhile."""
        if self._driver == threading.get_ident():
            raise UsageError(f"{pending.call}: what becomes of a sum cannot wait for another one")
        with self._links.waiting(pending.call != ENDED):
            self._awaited.append(pending)
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
                self._awaited.remove(pending)
                if self._thread is not None:
                    with self._news:
                        self._news.notify_all()

    def _takes_the_wheel(self, pending: Pending) -> bool:
        """Whether this thread drives from now on; if another one does, it waits for news."""
        with self._news:
            if self._driver:
                if not pending.done:
                    self._news.wait(_LOOK)
                return False
            self._driver = threading.get_ident()
            return True

    def _leaves_the_wheel(self) -> None:
        with self._news:
            self._driver = 0
            self._news.notify_all()

    def _look(self) -> None:
        if self._failure is None and (reason := self._links.lost()) is not None:
            self._break(reason)
        if self._failure is not None:
            raise _Lost(self._failure)

    def _serve(self) -> None:
        """Drive the rounds while nobody waits."""
        while True:
            with self._news:
                while not self._closed and (self._driver or self._awaited or not (self._posted or self._flying)):
                    self._news.wait()
                if self._closed:
                    return
                self._driver = threading.get_ident()
            try:
                self._drive()
            except RuntimeFailure as error:  # who waits next is told
                self._break(str(error))
            finally:
                self._leaves_the_wheel()

    def fail(self, reason: str) -> None:
        """Nothing is done together from now on: whoever waits, or posts something, is told the reason."""
        self._break(reason)

    def close(self) -> None:
        """No round is driven any more."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join()

    def quiet(self, seconds: float) -> bool:
        """Whether no thread drives a round, within that time; none does from then on."""
        with self._news:
            if not self._news.wait_for(lambda: not self._driver, seconds):
                return False
            self._driver = threading.get_ident()
            return True

    # --- rounds -----------------------------------------------------------------------------------

    def _drive(self) -> None:
        """One round, or a look at the sums in flight where nothing else is posted."""
        self._land()
        with self._news:
            heads, calls = [queue[0] for queue in self._posted.values()], self.calls
            awaited = self._awaited[-1] if self._awaited else None
        if not heads:
            if self._flying:
                time.sleep(0)
            return
        mine = self._announcement(heads, awaited)
        try:
            rows = self._links.tell(mine)
            alike = all(row[_POSTED] == mine[_POSTED] for row in rows)
            chosen = heads if alike else self._common(heads, rows)
        except RuntimeFailure as error:
            self._break(str(error))
            raise
        except BaseException:
            at = (awaited or heads[0]).text.decode(errors="replace")
            self._break(f"rank {self._links.rank} was interrupted in step {self._links.steps}, at {at}")
            raise
        if chosen:
            self._stuck = 0
            if len(chosen) > 1:
                chosen.sort(key=lambda made: (-made.priority, made.call))
            self._carry_out(chosen)
        else:
            self._without_common(rows, calls)

    def _announcement(self, heads: Sequence[Pending], awaited: Pending | None) -> bytes:
        shown = awaited or heads[0]
        # Of the calls in any order, each with its own priority.
        digest = sum(made.digest if made.priority == 0 else _mixed(made) for made in heads) & _BITS
        waits = awaited is not None
        return _FORMAT.pack(self._links.steps, shown.number, digest, len(heads), waits, shown.text)

    @property
    def awaited(self) -> bool:
        """Whether somebody waits, so that the core is free."""
        return bool(self._awaited)

    def idle(self) -> None:
        """Called now and then while others are awaited; raises RuntimeFailure when one of them is given up."""
        self._land()
        if self._awaited and (now := time.monotonic()) - self._looked > _LOOK:
            self._looked = now
            self._look()

    def _common(self, heads: Sequence[Pending], rows: Sequence[bytes]) -> list[Pending]:
        """What all have posted. Raises RuntimeFailure everywhere where they mean different things by one call."""
        most = max(Announcement.unpack(row).posted for row in rows)
        table = np.zeros((most, 3), np.uint64)
        for line, made in zip(table, heads, strict=False):
            line[:] = made.name, made.digest, made.priority & _BITS
        told = self._links.tell(table.tobytes())
        tables = [np.frombuffer(data, np.uint64).reshape(-1, 3).tolist() for data in told]
        posted = [{name: (digest, priority) for name, digest, priority in lines if name} for lines in tables]
        names = set(posted[0]).intersection(*posted[1:])
        for name in sorted(names):
            if len({lines[name][0] for lines in posted}) > 1:
                self._disagree(rows)
        found = [made for made in heads if made.name in names]
        for made in found:  # the same everywhere
            made.priority = max(_signed(lines[made.name][1]) for lines in posted)
        return found

    def _without_common(self, rows: Sequence[bytes], calls: int) -> None:
        """Nothing is common to all. Where all wait, and go on waiting, none of them will go on."""
        self._stuck = self._stuck + 1 if all(Announcement.unpack(row).waits for row in rows) else 0
        if self._stuck >= _STUCK:
            self._disagree(rows)
        with self._news:
            if self.calls == calls:
                self._news.wait(_PAUSE)

    def _disagree(self, rows: Sequence[bytes]) -> None:
        self.disagreement = _disagreement([Announcement.unpack(row) for row in rows])
        self._break(self.disagreement)
        raise RuntimeFailure(self.disagreement)

    # --- doing ------------------------------------------------------------------------------------

    def _carry_out(self, chosen: Sequence[Pending]) -> None:
        for group in _grouped(chosen):
            first = group[0].action
            if self.overlap == "concurrent" and isinstance(first, Sum) and len(group) == 1:
                self._fly(group[0], first)
                continue
            try:
                outcomes = self._outcomes(group)
            except _Lost as error:
                self._break(str(error))
                raise
            except Exception as error:  # noqa: BLE001 - whoever waits for it is told
                outcomes = [(None, error)] * len(group)
            except BaseException:
                self._break(f"rank {self._links.rank} was interrupted in step {self._links.steps}, in {group[0].call}")
                raise
            with self._news:
                self._taken(group)
                for made, (result, failure) in zip(group, outcomes, strict=True):
                    made.finish(result, failure)
                self._news.notify_all()

    def _outcomes(self, group: Sequence[Pending]) -> list[tuple[Any, Exception | None]]:
        """The results of what is done in one go, each with its own error."""
        sums = [made.action for made in group if isinstance(made.action, Sum)]
        if not sums:
            action = group[0].action
            return [(action() if callable(action) else None, None)]
        if len(sums) == 1:
            return [_delivered(sums[0], self._links.allreduce(sums[0].array, sums[0].out))]
        total = self._links.allreduce(np.concatenate([s.array.reshape(-1) for s in sums]))
        ends = np.cumsum([s.array.size for s in sums])
        return [_delivered(s, total[end - s.array.size : end].copy()) for s, end in zip(sums, ends, strict=True)]

    def _fly(self, made: Pending, summed: Sum) -> None:
        """Begin a sum, which goes on by itself."""
        request, total = self._links.start_allreduce(summed.array, summed.out)
        self._flying.append(_Flight(request, total, made, summed))
        with self._news:
            self._taken([made])

    def _land(self) -> None:
        """Finish the sums in flight that have arrived, in their order."""
        while self._flying and self._flying[0].request.Test():
            flight = self._flying.popleft()
            flight.made.finish(*_delivered(flight.summed, flight.total))
            with self._news:
                self._news.notify_all()

    def _taken(self, group: Iterable[Pending]) -> None:
        """It is posted no longer; `_news` is held."""
        for made in group:
            queue = self._posted[made.call]
            queue.popleft()
            if not queue:
                del self._posted[made.call]

    def _break(self, reason: str) -> None:
        """Nothing is done together any more."""
        with self._news:
            if self._failure is None:
                self._failure = reason
            left = [made for queue in self._posted.values() for made in queue]
            left += [flight.made for flight in self._flying]
            self._posted.clear()
            self._broken.extend(self._flying)  # MPI may go on to write there
            self._flying.clear()
            for made in left:
                made.finish(error=RuntimeFailure(self._failure))
            self._news.notify_all()


def _delivered(summed: Sum, total: np.ndarray) -> tuple[Any, Exception | None]:
    """What becomes of a sum, or why nothing does."""
    try:
        return summed.deliver(total), None
    except Exception as error:  # noqa: BLE001 - whoever waits for it is told
        return None, error


def _grouped(chosen: Sequence[Pending]) -> Iterator[list[Pending]]:
    """What is done in one go: small sums of one dtype that follow each other, and each other thing alone."""
    group: list[Pending] = []
    for made in chosen:
        action = made.action
        small = isinstance(action, Sum) and not action.alone and action.array.nbytes <= _SMALL
        if group and not (small and action.array.dtype == group[0].action.array.dtype):  # type: ignore[union-attr]
            yield group
            group = []
        if small:
            group.append(made)
        else:
            yield [made]
    if group:
        yield group


def _mixed(made: Pending) -> int:
    """64 bits of a call and its priority (the finaliser of SplitMix64, Steele et al., OOPSLA 2014)."""
    bits = (made.digest ^ (made.priority & _BITS) * 0x9E3779B97F4A7C15) & _BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _BITS
    return bits ^ bits >> 31


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


def _digest(text: str) -> int:
    """64 bits that are not 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1


def _disagreement(found: Sequence[Announcement]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, announced in enumerate(found):
        groups.setdefault(str(announced), []).append(rank)
    said = [f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}: {what}" for what, r in groups.items()]
    if len(said) == 1:  # texts that were cut
        said.append("with different arrays")
    return (
        f"the processes do not go on together: {'; '.join(said)}. All must take the same steps and make the same calls"
    )
