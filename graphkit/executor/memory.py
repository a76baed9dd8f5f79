"""The memory planner: a pure function from lifetimes to offsets in one arena.

In-place (a result takes the memory of an operand that dies there) and co-share (memory of dead values is used
again) are the two techniques of Chen et al., "MXNet", 2015, section 3.1, as separate switches.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 64

# Placing by size compares every pair of blocks; above this many blocks only the sweeps run.
PAIRWISE_LIMIT = 1500


@dataclass(frozen=True, slots=True)
class Request:
    """`size` bytes that live from step `first` (written) to step `last` (read for the last time), both included.

    `inplace` lists requests whose memory this one may take over: those that die at the step that writes it.
    """

    size: int
    first: int
    last: int
    inplace: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """One offset per request; what the arena takes, and what it would take at least and without a plan."""

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound: int  # the largest sum of bytes that live at one step
    naive_bytes: int  # every request in a place of its own
    peak_step: int
    inplace_count: int


@dataclass(slots=True)
class _Block:
    """Requests in one place: a chain of in-place results."""

    size: int
    first: int
    last: int
    offset: int = 0


def plan_memory(requests: Sequence[Request], *, inplace: bool = True, share: bool = True) -> Layout:
    """Offsets such that requests which live at one step never overlap, unless one took the other's memory over.

    Near-linear: two sweeps over time with a best-fit free list; for few blocks also first fit by falling size.
    The smallest arena wins. Offsets are multiples of ALIGNMENT; an empty request has offset 0.
    """
    owner, blocks = _blocks(requests, inplace)
    bound, peak = _peak(blocks)
    if not share:
        arena = 0
        for block in blocks:
            block.offset, arena = arena, arena + block.size
    else:
        arena = _sweep(blocks)
        offsets = [b.offset for b in blocks]
        for strategy in (_sweep_backwards, _by_size):
            if arena == bound:
                break
            other = strategy(blocks)
            if other is not None and other < arena:
                arena, offsets = other, [b.offset for b in blocks]
        for block, offset in zip(blocks, offsets, strict=True):
            block.offset = offset
    return Layout(
        offsets=tuple(blocks[owner[i]].offset if r.size else 0 for i, r in enumerate(requests)),
        arena_bytes=arena,
        lower_bound=bound,
        naive_bytes=sum(aligned(r.size) for r in requests),
        peak_step=peak,
        inplace_count=len(requests) - len(blocks),
    )


def aligned(size: int) -> int:
    """`size` rounded up to ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _blocks(requests: Sequence[Request], inplace: bool) -> tuple[list[int], list[_Block]]:
    """The block of each request, and the blocks. A chain's memory goes on to one successor at most."""
    owner: list[int] = [0] * len(requests)
    blocks: list[_Block] = []
    taken: set[int] = set()
    for index in sorted(range(len(requests)), key=lambda i: (requests[i].first, i)):
        request = requests[index]
        for candidate in request.inplace if inplace and request.size else ():
            source = requests[candidate]
            if candidate not in taken and source.last == request.first > source.first and source.size >= request.size:
                taken.add(candidate)
                owner[index] = owner[candidate]
                blocks[owner[index]].last = request.last
                break
        else:
            owner[index] = len(blocks)
            blocks.append(_Block(aligned(request.size), request.first, request.last))
    return owner, blocks


def _peak(blocks: Iterable[_Block]) -> tuple[int, int]:
    """The largest sum of live bytes, and the first step that reaches it."""
    changes: dict[int, int] = {}
    for block in blocks:
        changes[block.first] = changes.get(block.first, 0) + block.size
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.size
    live = bound = peak = 0
    for step in sorted(changes):
        live += changes[step]
        if live > bound:
            bound, peak = live, step
    return bound, peak


def _sweep(blocks: Sequence[_Block], backwards: bool = False) -> int:
    """Allocate in order of time from the tightest free range that fits; return the arena's size."""
    keyed = [(-b.last, -b.first, b) if backwards else (b.first, b.last, b) for b in blocks if b.size]
    starts = sorted(keyed, key=lambda item: (item[0], -item[2].size))
    ends = sorted(keyed, key=lambda item: item[1])
    free = _FreeRanges()
    done = 0
    for start, _, block in starts:
        while ends[done][1] < start:
            free.give(ends[done][2].offset, ends[done][2].size)
            done += 1
        block.offset = free.take(block.size)
    return free.end


def _sweep_backwards(blocks: Sequence[_Block]) -> int:
    return _sweep(blocks, backwards=True)


class _FreeRanges:
    """Free ranges below `end`, none adjacent to another: found by size, merged by position."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # (size, offset), sorted
        self._size_at: dict[int, int] = {}  # offset -> size
        self._offset_before: dict[int, int] = {}  # offset + size -> offset

    def take(self, size: int) -> int:
        """The offset of `size` bytes, out of the smallest range that has them; the arena grows when none has."""
        position = bisect.bisect_left(self._by_size, (size, -1))
        if position < len(self._by_size):
            offset = self._by_size[position][1]
            rest = self._remove(offset) - size
            if rest:
                self._insert(offset + size, rest)
            return offset
        offset = self._offset_before.get(self.end, self.end)
        if offset != self.end:
            self._remove(offset)
        self.end = offset + size
        return offset

    def give(self, offset: int, size: int) -> None:
        """Return a range, merged with its free neighbours."""
        if offset + size in self._size_at:
            size += self._remove(offset + size)
        if offset in self._offset_before:
            offset = self._offset_before[offset]
            size += self._remove(offset)
        self._insert(offset, size)

    def _insert(self, offset: int, size: int) -> None:
        bisect.insort(self._by_size, (size, offset))
        self._size_at[offset] = size
        self._offset_before[offset + size] = offset

    def _remove(self, offset: int) -> int:
        size = self._size_at.pop(offset)
        del self._offset_before[offset + size]
        del self._by_size[bisect.bisect_left(self._by_size, (size, offset))]
        return size


def _by_size(blocks: Sequence[_Block]) -> int | None:
    """Largest first, each at the lowest place that is free all its life; None when there are too many blocks."""
    order = sorted((b for b in blocks if b.size), key=lambda b: (-b.size, b.first))
    if len(order) > PAIRWISE_LIMIT:
        return None
    first, last, low, high = np.zeros((4, len(order)), dtype=np.int64)
    arena = 0
    for count, block in enumerate(order):
        overlaps = (first[:count] <= block.last) & (last[:count] >= block.first)
        starts, ends = low[:count][overlaps], high[:count][overlaps]
        by_start = np.argsort(starts, kind="stable")
        # The gap before each placed neighbour reaches from the end of all lower ones to its start.
        starts, reach = starts[by_start], np.maximum.accumulate(np.concatenate([[0], ends[by_start]]))
        fits = np.flatnonzero(starts - reach[:-1] >= block.size)
        block.offset = int(reach[fits[0]] if fits.size else reach[-1])
        end = block.offset + block.size
        first[count], last[count], low[count], high[count] = block.first, block.last, block.offset, end
        arena = max(arena, end)
    return arena
