"""Memory that the programs of one executor share: arenas, packed operands, and the memory of released results."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from graphkit.executor.memory.packing import PackedArrays, aligned_bytes, provided_bytes
from graphkit.executor.memory.shared import SharedMemory

# How many idle arenas, and idle instances of a program, are kept for later runs. With more concurrent runs, the others
# are freed.
IDLE = 4

# Extra addresses that are reserved after an arena: this multiple of its size, but at most _MAX_RESERVE bytes.
_RESERVE_FACTOR = 7
_MAX_RESERVE = 1 << 30

# Every _SHRINK_RUNS runs, idle arenas are freed if all of these runs needed less than 1 / _SHRINK_FACTOR of the largest
# size since arenas were last freed.
_SHRINK_RUNS = 256
_SHRINK_FACTOR = 4

# Memory of results of at least this many bytes is recycled: the page faults of new memory cost more than a copy.
RECYCLED_BYTES = 1 << 16
# Recycled memory is at most this many times larger than the result, because the caller then keeps all of it.
MAX_OVERSIZE = 8
# Pieces of memory that are kept per result. Results of several sizes, or callers that hold results, need more than one.
_PIECES = 3


class Arenas:
    """The arenas of all programs of an executor. Each run takes one, and gives it back.

    There is no lock, because after a fork the child could wait for a thread that it does not have. Operations on lists
    are atomic; the counters may miss a concurrent run.

    idle: Maximum number of idle arenas, at least IDLE.
    """

    def __init__(self, idle: int = IDLE) -> None:
        self._idle = max(idle, IDLE)
        self._free: list[np.ndarray] = []
        # The largest size since arenas were freed, and the largest of the latest `_runs` runs.
        self._largest = 0
        self._recent = 0
        self._runs = 0

    def take(self, size: int) -> np.ndarray:
        """Return an arena of at least `size` bytes, aligned and uninitialised. Raises MemoryError."""
        self._runs += 1
        if size > self._recent or self._runs >= _SHRINK_RUNS:
            self._count_run(size)
        try:
            while (arena := self._free.pop()).nbytes < size:
                pass
        except IndexError:
            # Pages that no run writes take no memory, so the reserve costs only addresses. A larger run can then reuse
            # the pages of this arena.
            try:
                return provided_bytes(size, min(_RESERVE_FACTOR * size, _MAX_RESERVE))
            except MemoryError:
                return provided_bytes(size)
        return arena

    def give(self, arena: np.ndarray) -> None:
        """Return an arena after its run."""
        if len(self._free) < self._idle:
            self._free.append(arena)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the idle arena that the next run would take; 0 if there is none."""
        try:
            return self._free[-1].nbytes
        except IndexError:
            return 0

    def _count_run(self, size: int) -> None:
        """Remember that a run needs `size` bytes. Free the idle arenas if all recent runs needed much less."""
        if size > self._recent:
            self._recent = size
            self._largest = max(self._largest, size)
        if self._runs >= _SHRINK_RUNS:
            if _SHRINK_FACTOR * self._recent < self._largest:
                self._free.clear()
                self._largest = self._recent
            self._runs = self._recent = 0


class RecycledResults:
    """Recycles the memory of results that callers have released, for each position of a result.

    There is no lock (see Arenas): a thread that has removed memory from its queue is its only user.
    """

    def __init__(self) -> None:
        # A full queue drops its oldest memory.
        self._memory: defaultdict[int, deque[SharedMemory]] = defaultdict(lambda: deque(maxlen=_PIECES))

    def array(self, position: int, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
        """Return a writable array in recycled or new memory, for the result at `position`.

        Raises MemoryError or ValueError, as numpy does.
        """
        queue = self._memory[position]
        memory = None
        for _ in range(len(queue)):
            try:
                memory = queue.pop()  # the latest first, because more of it is still in the caches
            except IndexError:  # taken by another thread
                break
            if nbytes <= memory.nbytes <= MAX_OVERSIZE * nbytes and not memory.is_referenced:
                break
            queue.appendleft(memory)
            memory = None
        if memory is None:
            # Rounded up, so that somewhat larger results can reuse it. Pages that are never written take no memory.
            try:
                memory = SharedMemory(aligned_bytes(1 << (nbytes - 1).bit_length()))
            except MemoryError:
                memory = SharedMemory(aligned_bytes(nbytes))
        array = memory.array(shape, dtype, writable=True)
        queue.append(memory)
        return array


class Pools:
    """The memory that all programs of an executor share.

    Args:
        stamp: Returns a number that changes whenever a parameter or constant may have a new version.
        arenas: The arenas, which may be shared with other pools.
    """

    def __init__(self, stamp: Callable[[], int], arenas: Arenas):
        self.stamp = stamp
        self.arenas = arenas
        self.packed = PackedArrays(stamp)
        self.results = RecycledResults()
