"""Memory that the programs of one executor take turns on: arenas, packed operands, and results that nobody holds."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from graphkit.executor.memory.packing import PackedArrays, aligned_bytes
from graphkit.executor.memory.shared import SharedMemory

# What waits for the next run; a burst of more concurrent runs makes more and lets them go.
IDLE = 4

# After so many runs that needed less than a quarter of an arena, it is let go.
_PATIENCE = 256
_TOO_LARGE = 4

# Results of at least this many bytes are given out again once nobody holds them: fresh pages cost more than a copy.
RECYCLED_BYTES = 1 << 16
# What is given out again is at most this many times larger than the result: its holder keeps all of it.
_SLACK = 4
# Pieces of memory that a result keeps: runs of other sizes, or callers that hold what they got, need more than one.
_PIECES = 3


class Arenas:
    """Working memory that runs of all programs take turns on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[np.ndarray] = []
        self._largest = 0  # of the runs since arenas were let go
        self._runs = 0
        self._recent = 0  # the largest of the last `_runs`

    def take(self, size: int) -> np.ndarray:
        """At least `size` bytes, aligned and undefined, for one run alone. Raises MemoryError."""
        with self._lock:
            self._watch(size)
            while self._free:
                arena = self._free.pop()
                if arena.nbytes >= size:
                    return arena
        # Pages that no run comes to take no memory: room for larger runs costs addresses alone.
        try:
            return aligned_bytes(2 * size)
        except MemoryError:
            return aligned_bytes(size)

    def give(self, arena: np.ndarray) -> None:
        """Take an arena back after its run."""
        with self._lock:
            if len(self._free) < IDLE:
                self._free.append(arena)

    def _watch(self, size: int) -> None:
        """Let go of arenas when runs have been much smaller for long."""
        self._largest = max(self._largest, size)
        self._recent = max(self._recent, size)
        self._runs += 1
        if self._runs == _PATIENCE:
            if _TOO_LARGE * self._recent < self._largest:
                self._free.clear()
                self._largest = self._recent
            self._runs = self._recent = 0


class RecycledResults:
    """Memory of results that were given out before and that nobody sees any more, by the result's position."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_out: defaultdict[int, list[SharedMemory]] = defaultdict(list)

    def array(self, position: int, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
        """A writable array on such memory, or on new memory. Raises MemoryError, ValueError as numpy does."""
        with self._lock:
            pool = self._given_out[position]
            fitting = [m for m in pool if nbytes <= m.nbytes <= _SLACK * nbytes and not m.seen]
            memory = min(fitting, key=lambda m: m.nbytes, default=None)
            if memory is None:
                # Room for somewhat larger results: pages that nobody comes to take no memory.
                memory = SharedMemory(aligned_bytes(1 << (nbytes - 1).bit_length()))
            else:
                pool.remove(memory)
            pool.append(memory)
            del pool[:-_PIECES]  # those that were given out longest ago
            return memory.array(shape, dtype, writable=True)


@dataclass(frozen=True)
class Pools:
    """What all programs of an executor share. `stamp` tells whether a fixed operand may have another version."""

    stamp: Callable[[], int]
    packed: PackedArrays = field(default_factory=PackedArrays)
    arenas: Arenas = field(default_factory=Arenas)
    results: RecycledResults = field(default_factory=RecycledResults)
