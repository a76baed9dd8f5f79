"""Signs of life: each process says what it does in memory that those of its host share, and sees who gives none.

A process that is stopped, or that has gone without a word, shows no sign at all; one that stalls shows no progress
while others wait for it. Both end the job, with the rank and where it was last seen. What takes long and is known to (a
step that is compiled, an evaluation, a checkpoint) is `working`, and counts as progress as long as it goes on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

# Times are seconds of the host's monotonic clock, which its processes share.
_SLOT = np.dtype(
    [("alive", "f8"), ("progress", "f8"), ("process", "i8"), ("steps", "i8"), ("there", "i8"), ("call", "S160")]
)
# The same, as it is written.
_PROGRESS = struct.Struct("=ddqqq160s")
# `there`: the process has not started, takes part, or has ended.
_BEFORE, _PART, _ENDED = 0, 1, 2

# Signs in a timeout, and seconds between them at most.
_SIGNS, _LONGEST = 8, 1.0


class Board:
    """A slot for each of so many processes of a host, in a file that all of them map."""

    def __init__(self, path: str, count: int):
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), count * _SLOT.itemsize)
        self.slots = np.frombuffer(self.memory, _SLOT, count)

    @staticmethod
    def create(count: int) -> str:
        """A new file for it; whoever made it removes it once all have mapped it."""
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        descriptor, path = tempfile.mkstemp(prefix="graphkit-", dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(count * _SLOT.itemsize))
        return path


class _Wait:
    """A context in which a process waits for others; it may lie inside of another one. Each call enters it anew."""

    def __init__(self, watch: Watch, for_steps: bool, bound: bool):
        self._watch, self._for_steps, self._bound = watch, for_steps, bound

    def __enter__(self) -> None:
        watch = self._watch
        watch._outer.append((watch._for_steps, watch._bound, watch._waits))
        watch._for_steps, watch._bound, watch._waits = self._for_steps, self._bound, time.monotonic()

    def __exit__(self, *_: object) -> None:
        watch = self._watch
        watch._for_steps, watch._bound, watch._waits = watch._outer.pop()


class Watch:
    """Gives this process's signs, and looks for those of the others of its host.

    ranks: those of the host, in the order of the board's slots. timeout: seconds without a sign after which a process
    is given up. on_lost: called with the reason, on a thread of its own, when a process is given up that this one
    awaits in a call that cannot be left.
    """

    def __init__(self, board: Board, ranks: Sequence[int], mine: int, timeout: float, on_lost: Callable[[str], None]):
        self._board = board
        self._ranks = tuple(ranks)
        self._mine = board.slots[mine : mine + 1]
        self.timeout = timeout
        self._on_lost = on_lost
        self._working = 0
        self._bound = False  # in a call that cannot be left
        self._waits: float | None = None
        self._for_steps = False  # ... for processes that should make progress
        self._outer: list[tuple[bool, bool, float | None]] = []
        # It waits for the others meanwhile: to go on, to be there at all, to go on in a call that cannot be left.
        self.for_progress = _Wait(self, for_steps=True, bound=False)
        self.for_life = _Wait(self, for_steps=False, bound=False)
        self.bound = _Wait(self, for_steps=True, bound=True)
        self._over = threading.Event()
        self._at, self._process = mine * _SLOT.itemsize, os.getpid()
        self.doing(b"", 0)
        self._thread = threading.Thread(target=self._go, name="graphkit-watch", daemon=True)
        self._thread.start()

    # --- what this process does -----------------------------------------------------------------------

    def doing(self, call: bytes, steps: int) -> None:
        """Progress: it comes to this call."""
        now = time.monotonic()
        _PROGRESS.pack_into(self._board.memory, self._at, now, now, self._process, steps, _PART, call)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """What takes long goes on meanwhile."""
        self._working += 1
        try:
            yield
        finally:
            self._working -= 1
            self._sign(progress=True)

    def end(self) -> None:
        """This process takes part no longer; its last sign stays."""
        self._mine["there"] = _ENDED
        self._over.set()

    # --- what the others do ---------------------------------------------------------------------------

    def lost(self) -> str | None:
        """Why a process is given up that this one has awaited for long enough; None as long as there is hope."""
        waits = self._waits
        now = time.monotonic()
        if waits is None or now - waits <= self.timeout:
            return None
        found = [
            reason
            for rank, slot in zip(self._ranks, self._board.slots.copy(), strict=True)
            if (reason := self._given_up(rank, slot, now)) is not None
        ]
        return "; ".join(found) or None

    def _given_up(self, rank: int, slot: np.void, now: float) -> str | None:
        if int(slot["there"]) != _PART:
            return None
        silent, still = now - float(slot["alive"]), now - float(slot["progress"])
        if silent > self.timeout:
            what = f"has shown no sign of life for {silent:.0f} s"
        elif self._for_steps and still > self.timeout:
            what = f"has not gone on for {still:.0f} s"
        else:
            return None
        call = slot["call"].decode(errors="replace")
        where = f"; it was last seen in step {int(slot['steps'])}, behind {call}" if call else ""
        return f"rank {rank} on {socket.gethostname()} (process {int(slot['process'])}) {what}{where}"

    # --- the thread -----------------------------------------------------------------------------------

    def _sign(self, progress: bool) -> None:
        now = time.monotonic()
        self._mine["alive"] = now
        if progress:
            self._mine["progress"] = now

    def _go(self) -> None:
        while not self._over.wait(min(_LONGEST, self.timeout / _SIGNS)):
            # Who waits for others is not the one that they wait for.
            self._sign(progress=self._working > 0 or self._waits is not None)
            if self._bound and (reason := self.lost()) is not None:
                self._on_lost(reason)
                return
