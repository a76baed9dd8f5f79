"""Memory that the programs of one executor take turns on: arenas, packed operands, and results that nobody holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from graphkit.executor.memory.packing import PackedArrays, aligned_bytes
from graphkit.executor.memory.shared import SharedMemory

# What waits for the next run; a burst of more concurrent runs makes more and lets them go.
IDLE = 4

# Addresses behind an arena, times its size and at most.
_ROOM = 7
_MOST_ROOM = 1 << 30

# After so many runs that needed less than a quarter of an arena, it is let go.
_PATIENCE = 256
_TOO_LARGE = 4

# Results of at least this many bytes are given out again once nobody holds them: fresh pages cost more than a copy.
RECYCLED_BYTES = 1 << 16
# What is given out again is at most this many times larger than the result: its holder keeps all of it.
_SLACK = 8
# Pieces of memory that a result keeps: runs of other sizes, or callers that hold what they got, need more than one.
_PIECES = 3


class Arenas:
    """Working memory that runs of all programs take turns on.

    Nothing here locks: the child of a fork would wait for a thread that it does not have. Operations of lists are
    atomic; what is counted may be off by a run or two.
    """

    def __init__(self, idle: int = IDLE) -> None:
        """`idle`: how many wait for runs to come, at most."""
        self._idle = max(idle, IDLE)
        self._free: list[np.ndarray] = []
        self._largest = 0  # of the runs since arenas were let go
        self._runs = 0
        self._recent = 0  # the largest of the last `_runs`

    def take(self, size: int) -> np.ndarray:
        """At least `size` bytes, aligned and undefined, for one run alone. Raises MemoryError."""
        self._watch(size)
        try:
            while (arena := self._free.pop()).nbytes < size:
                pass
        except IndexError:
            # Pages that no run comes to take no memory: room for larger runs costs addresses alone, and they find the
            # pages of this one there.
            try:
                return aligned_bytes(size + min(_ROOM * size, _MOST_ROOM))
            except MemoryError:
                return aligned_bytes(size)
        return arena

    def give(self, arena: np.ndarray) -> None:
        """Take an arena back after its run."""
        if len(self._free) < self._idle:
            self._free.append(arena)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the arena that the next run would take."""
        try:
            return self._free[-1].nbytes
        except IndexError:
            return 0

    def _watch(self, size: int) -> None:
        """Let go of arenas when runs have been much smaller for long."""
        if size > self._recent:
            self._recent = size
            self._largest = max(self._largest, size)
        self._runs += 1
        if self._runs >= _PATIENCE:
            if _TOO_LARGE * self._recent < self._largest:
                self._free.clear()
                self._largest = self._recent
            self._runs = self._recent = 0


class RecycledResults:
    """Memory of results that were given out before and that nobody sees any more, by the result's position.

    Nothing here locks either: who has taken memory out of its queue has it alone.
    """

    def __init__(self) -> None:
        self._given_out: dict[int, deque[SharedMemory]] = {}

    def array(self, position: int, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
        """A writable array on such memory, or on new memory. Raises MemoryError, ValueError as numpy does."""
        # The one that was given out longest ago makes room.
        queue = self._given_out.setdefault(position, deque(maxlen=_PIECES))
        memory = None
        for _ in range(len(queue)):
            try:
                memory = queue.popleft()
            except IndexError:  # taken by another thread
                break
            if nbytes <= memory.nbytes <= _SLACK * nbytes and not memory.seen:
                break
            queue.append(memory)
            memory = None
        if memory is None:
            # Room for somewhat larger results: pages that nobody comes to take no memory.
            try:
                memory = SharedMemory(aligned_bytes(1 << (nbytes - 1).bit_length()))
            except MemoryError:
                memory = SharedMemory(aligned_bytes(nbytes))
        array = memory.array(shape, dtype, writable=True)
        queue.append(memory)
        return array


class Pools:
    """What all programs of an executor share. `stamp` tells whether a fixed operand may have another version."""

    def __init__(self, stamp: Callable[[], int], arenas: Arenas):
        self.stamp = stamp
        self.arenas = arenas
        self.packed = PackedArrays(stamp)
        self.results = RecycledResults()
