"""Signs of life: each process says what it does in memory that those of its host share, and sees who gives none.

What the processes of other hosts do is written there by the host's leader (`graphkit.dist.hosts.relay`).

A process that is stopped, or that has gone without a word, shows no sign at all; one that stalls shows no progress
while others wait for it. Both end the job, with the rank and where it was last seen. What takes long and is known to (a
step that is compiled, an evaluation, a checkpoint) is `working`, and counts as progress as long as it goes on. Code of
the user's, such as a callback, does not: it may never return.

If every rank waits and none has gone on for the timeout, nothing will ever happen: that ends the job too, with the call
of each rank. A rank that computes or saves does not wait, and so keeps the others waiting for as long as it likes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import signal
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from graphkit.dist.hosts.hosts import Host

# Times are seconds of the host's monotonic clock, which its processes share. `waits`: since when the process waits and
# has not gone on; infinity where it does not wait.
SLOT = np.dtype(
    [
        ("alive", "f8"), ("progress", "f8"), ("waits", "f8"), ("process", "i8"), ("steps", "i8"), ("there", "i8"),
        ("call", "S160"),
    ]
)  # fmt: skip
# The same, as it is written.
_PROGRESS = struct.Struct("=dddqqq160s")
# `there`: the process has not started, takes part, or has ended.
_BEFORE, _PART, ENDED = 0, 1, 2

# How what a process says of itself begins while it runs code of the user's; else it is the last call that it came to.
_IN = "in "

# Signs in a timeout, and seconds between them at most.
_SIGNS, _LONGEST = 8, 1.0
# So many of them missing, a process of a job that is over is taken to be stopped.
_LATE = 4


class Board:
    """A slot for each of so many processes, and for each host the time at which it was heard of last, in a file.

    All processes of a host map it.
    """

    def __init__(self, path: str, count: int, hosts: int = 1):
        size = count * SLOT.itemsize
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), size + hosts * 8)
        self.slots = np.frombuffer(self.memory, SLOT, count)
        self.heard = np.frombuffer(self.memory, np.float64, hosts, size)

    @staticmethod
    def create(count: int, hosts: int = 1) -> str:
        """A new file for it; whoever made it removes it once all have mapped it."""
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        descriptor, path = tempfile.mkstemp(prefix="graphkit-", dir=folder)
        slots = np.zeros(count, SLOT)
        slots["waits"] = math.inf
        with os.fdopen(descriptor, "wb") as file:
            file.write(slots.tobytes() + np.full(hosts, time.monotonic()).tobytes())
        return path


class Messenger(Protocol):
    """What takes the signs of a host to the others, and theirs to its board."""

    def exchange(self) -> None:
        """Send and receive what can be at once."""
        ...

    def forget(self, host: int) -> None:
        """Nothing comes from that host any more, by its number."""
        ...

    def close(self) -> None:
        """Send this host's last signs, and wait for those of the others."""
        ...


class _Wait:
    """A context in which a process waits for others; it may lie inside of another one. Each call enters it anew."""

    def __init__(self, watch: Watch, for_steps: bool):
        self._watch, self._for_steps = watch, for_steps

    def __enter__(self) -> None:
        watch = self._watch
        watch._outer.append((watch._for_steps, watch._waits, watch._wait))
        watch._for_steps, watch._waits, watch._wait = self._for_steps, time.monotonic(), next(watch._numbers)

    def __exit__(self, *_: object) -> None:
        watch = self._watch
        watch._for_steps, watch._waits, watch._wait = watch._outer.pop()


class Watch:
    """Gives this process's signs, and looks for those of the others.

    ranks: of the board's slots, in their order. mine: this process's slot. timeout: seconds without a sign after which
    a process is given up. hosts: on which the ranks are, in the order of `Board.heard`, and `here` this process's; by
    default all ranks are on this one. messenger: of the process that exchanges signs with the other hosts. complete:
    whether the board has slots of all processes of the job.
    """

    def __init__(
        self, board: Board, ranks: Sequence[int], mine: int, timeout: float,
        hosts: Sequence[Host] = (), here: int = 0, messenger: Messenger | None = None, complete: bool = True,
    ):  # fmt: skip
        self._board = board
        self._ranks = tuple(ranks)
        self._hosts = tuple(hosts) or (Host(socket.gethostname(), self._ranks),)
        self._here = here
        self._messenger = messenger
        self._complete = complete
        self._excused: set[int] = set()
        self._mine = board.slots[mine : mine + 1]
        self.timeout = timeout
        # Waits and what takes long are numbered in the order in which they begin: `_wait` is the latest wait's number,
        # `_working` has those of all that takes long and goes on.
        self._numbers = itertools.count()
        self._wait = -1
        self._working: list[int] = []
        # The numbers of code of the user's that runs, among those.
        self._running: list[int] = []
        self._went_on = time.monotonic()
        self._waits: float | None = None
        self._for_steps = False  # ... for processes that should make progress
        self._outer: list[tuple[bool, float | None, int]] = []
        # It waits for the others meanwhile: to go on, or to be there at all.
        self.for_progress = _Wait(self, for_steps=True)
        self.for_life = _Wait(self, for_steps=False)
        self._over = threading.Event()
        self._at, self._process = mine * SLOT.itemsize, os.getpid()
        self.doing(b"", 0)
        self._thread = threading.Thread(target=self._go, name="graphkit-watch", daemon=True)
        self._thread.start()

    # --- what this process does -----------------------------------------------------------------------

    def doing(self, call: bytes, steps: int) -> None:
        """Progress: it comes to this call."""
        now = self._went_on = time.monotonic()
        _PROGRESS.pack_into(self._board.memory, self._at, now, now, math.inf, self._process, steps, _PART, call)

    def went_on(self) -> None:
        """Something that this process waits for has made progress."""
        self._went_on = time.monotonic()

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """What takes long goes on meanwhile."""
        number = next(self._numbers)
        self._working.append(number)
        try:
            yield
        finally:
            self._working.remove(number)
            self._sign(progress=True)

    @contextlib.contextmanager
    def running(self, code: str, steps: int) -> Iterator[None]:
        """Code of the user's runs meanwhile, which `code` names: it does not count as work that goes on.

        Others wait for its return no longer than for anything else, also where it is called in the middle of work. What
        it calls of graphkit's, and its own `working`, count again.
        """
        number = next(self._numbers)
        self._running.append(number)
        self.doing(f"{_IN}{code}".encode(), steps)
        try:
            yield
        finally:
            self._running.remove(number)
            self.doing(code.encode(), steps)

    @property
    def works(self) -> bool:
        """Whether something takes long and goes on, which has begun inside of code of the user's if that runs."""
        return max(self._working, default=-1) > max(self._running, default=-1)

    def end(self) -> None:
        """This process takes part no longer; its last sign stays."""
        self._over.set()
        self._thread.join()
        self._mine["there"] = ENDED
        if self._messenger is not None:
            self._messenger.close()

    # --- what the others do ---------------------------------------------------------------------------

    def excuse(self, rank: int) -> None:
        """That process is lost, and the others go on: it is never given up, nor are others of whom it was to tell."""
        self._excused.add(rank)
        for index, host in enumerate(self._hosts):
            if self._messenger is not None and host.ranks[0] == rank:
                self._messenger.forget(index)

    def end_silent(self) -> None:
        """Kill processes of this host that show no sign, where the job is over and its launcher ends none."""
        late = _LATE * self._pause
        now = time.monotonic()
        for rank in self._hosts[self._here].ranks:
            slot = self._board.slots[self._ranks.index(rank)]
            silent = int(slot["there"]) == _PART and now - float(slot["alive"]) > late
            if silent and rank not in self._excused and int(slot["process"]) != self._process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(slot["process"]), signal.SIGKILL)

    def process_of(self, rank: int) -> int | None:
        """Its number on its host; None where it is not watched, or has given no sign yet."""
        slot = self._ranks.index(rank) if rank in self._ranks else None
        return None if slot is None else int(self._board.slots[slot]["process"]) or None

    def lost(self) -> str | None:
        """Why a process is given up that this one has awaited for long enough; None as long as there is hope."""
        waits = self._waits
        now = time.monotonic()
        if waits is None or now - waits <= self.timeout:
            return None
        slots = dict(zip(self._ranks, self._board.slots.copy(), strict=True))
        here = self._hosts[self._here]
        found = [self._given_up(rank, slots[rank], here, now) for rank in here.ranks]
        # What is known of other hosts, this one's leader has written.
        if now - float(slots[here.ranks[0]]["alive"]) <= self.timeout:
            for index, host in enumerate(self._hosts):
                if index == self._here or host.ranks[0] in self._excused:
                    continue
                heard = float(self._board.heard[index])
                if now - heard > self.timeout:
                    found.append(_silent(host, slots, now - heard))
                else:  # what its processes have done since then is not known
                    found += [self._given_up(rank, slots[rank], host, heard) for rank in host.ranks]
        return "; ".join(reason for reason in found if reason is not None) or self._all_wait(slots, now)

    def _all_wait(self, slots: Mapping[int, np.void], now: float) -> str | None:
        """That every rank has waited for the timeout without going on, with the call of each; None where one has not.

        Of ranks of other hosts, it is what they did when they were heard of last.
        """
        if not self._complete:
            return None
        said = []
        for index, host in enumerate(self._hosts):
            if index != self._here and host.ranks[0] in self._excused:
                return None  # nothing more is heard of that host
            known = now if index == self._here else float(self._board.heard[index])
            for rank in host.ranks:
                slot = slots[rank]
                if rank in self._excused:
                    continue
                seconds = known - float(slot["waits"])
                if int(slot["there"]) != _PART or not seconds > self.timeout:
                    return None
                call = slot["call"].decode(errors="replace")
                said.append(
                    f"rank {rank} on {host.name} (process {int(slot['process'])}) for {seconds:.0f} s in step "
                    f"{int(slot['steps'])}, at {call}"
                )
        return f"all ranks wait for each other: {'; '.join(said)}"

    def _given_up(self, rank: int, slot: np.void, host: Host, now: float) -> str | None:
        if int(slot["there"]) != _PART or rank in self._excused:
            return None
        silent, still = now - float(slot["alive"]), now - float(slot["progress"])
        if silent > self.timeout:
            what = f"has sent no heartbeat for {silent:.0f} s"
        elif self._for_steps and still > self.timeout:
            what = f"has made no progress for {still:.0f} s"
        else:
            return None
        return f"rank {rank} on {host.name} (process {int(slot['process'])}) {what}{_seen(slot, 'it')}"

    # --- the thread -----------------------------------------------------------------------------------

    @property
    def _pause(self) -> float:
        """Seconds between two signs."""
        return min(_LONGEST, self.timeout / _SIGNS)

    def _sign(self, progress: bool) -> None:
        now = time.monotonic()
        self._mine["alive"] = now
        since = self._waits
        # A step that takes long may wait; what takes long inside of a wait does not.
        waits = since is not None and max(self._working, default=-1) < self._wait
        self._mine["waits"] = max(since, self._went_on) if since is not None and waits else math.inf
        if progress:
            self._mine["progress"] = now

    def _go(self) -> None:
        while not self._over.wait(self._pause):
            # Who waits for others is not the one that they wait for.
            self._sign(progress=self.works or self._waits is not None)
            if self._messenger is not None:
                self._messenger.exchange()


def _silent(host: Host, slots: Mapping[int, np.void], seconds: float) -> str | None:
    """That nothing is heard of a host; None where its processes have ended."""
    of_host = [slots[rank] for rank in host.ranks]
    if all(int(slot["there"]) == ENDED for slot in of_host):
        return None
    ranks = f"rank{'s' if len(host.ranks) > 1 else ''} {', '.join(map(str, host.ranks))}"
    where = _seen(of_host[0], f"rank {host.ranks[0]}")
    return f"host {host.name} ({ranks}) has sent no heartbeat for {seconds:.0f} s{where}"


def _seen(slot: np.void, who: str) -> str:
    call = slot["call"].decode(errors="replace")
    where = call if call.startswith(_IN) else f"after {call}"
    return f"; {who} was last seen in step {int(slot['steps'])}, {where}" if call else ""
