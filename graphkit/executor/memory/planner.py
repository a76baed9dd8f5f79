"""The memory planner: a pure function from lifetimes to offsets in one arena.

In-place (a result takes the memory of an operand that dies there) and co-share (memory of dead values is used
again) are the two techniques of Chen et al., "MXNet", 2015, section 3.1, as separate switches.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphkit.executor.memory.first_fit import FirstFit

ALIGNMENT = 64

# An arena within this factor of the lower bound is taken; the next strategy would cost time for nothing that matters.
CLOSE_ENOUGH = 1.01


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


@dataclass(slots=True, eq=False)
class _Block:
    """Requests in one place: a chain of in-place results."""

    size: int
    first: int
    last: int
    offset: int = 0


def plan_memory(
    requests: Sequence[Request], *, inplace: bool = True, share: bool = True, known: Sequence[int] | None = None
) -> Layout:
    """Offsets such that requests which live at one step never overlap, unless one took the other's memory over.

    Two sweeps over time with a best-fit free list, n log n; where they leave gaps, first fit in several orders and a
    search among their neighbours, both with a bounded amount of work. The smallest arena wins. Offsets are multiples of
    ALIGNMENT; an empty request has offset 0. `known` are offsets found before, one per request, which are taken as they
    are (see `fits`).
    """
    owner, blocks = _blocks(requests, inplace)
    bound, peak = _peak(blocks)
    if known is not None:
        offsets = _of_blocks(owner, blocks, known)
    else:
        offsets = _shared(blocks, bound, peak) if share else _side_by_side(blocks)
    return Layout(
        offsets=tuple(offsets[owner[i]] if r.size else 0 for i, r in enumerate(requests)),
        arena_bytes=max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0),
        lower_bound=bound,
        naive_bytes=sum(aligned(r.size) for r in requests),
        peak_step=peak,
        inplace_count=len(requests) - len(blocks),
    )


def fits(requests: Sequence[Request], offsets: Sequence[int], *, inplace: bool = True) -> bool:
    """Whether offsets, one per request, put requests that live at one step beside each other. n log n."""
    if len(offsets) != len(requests) or any(o < 0 or o % ALIGNMENT for o in offsets):
        return False
    owner, blocks = _blocks(requests, inplace)
    placed = _of_blocks(owner, blocks, offsets)
    if any(offsets[i] != (placed[owner[i]] if r.size else 0) for i, r in enumerate(requests)):
        return False
    events = [(b.first, 1, i) for i, b in enumerate(blocks) if b.size]
    events += [(b.last + 1, 0, i) for i, b in enumerate(blocks) if b.size]
    live: list[tuple[int, int]] = []  # (offset, end), sorted
    for _, begins, index in sorted(events):
        span = (placed[index], placed[index] + blocks[index].size)
        position = bisect.bisect_left(live, span)
        if not begins:
            del live[position]
            continue
        before, after = live[position - 1 : position] if position else [], live[position : position + 1]
        if (before and before[0][1] > span[0]) or (after and after[0][0] < span[1]):
            return False
        live.insert(position, span)
    return True


def _of_blocks(owner: Sequence[int], blocks: Sequence[_Block], offsets: Sequence[int]) -> list[int]:
    """The offset of every block from those of the requests."""
    placed = [0] * len(blocks)
    for request, block in enumerate(owner):
        placed[block] = max(placed[block], offsets[request])
    return placed


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
            fits = source.size and blocks[owner[candidate]].size >= request.size
            if fits and candidate not in taken and source.last == request.first > source.first:
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


def _side_by_side(blocks: Sequence[_Block]) -> list[int]:
    """The offset of every block when none shares memory with another."""
    end = 0
    return [(end := end + b.size) - b.size for b in blocks]


def _shared(blocks: Sequence[_Block], bound: int, peak: int) -> list[int]:
    """The offset of every block: the best that the strategies find before one is close enough to `bound`."""
    best = _sweep(blocks)
    offsets = [b.offset for b in blocks]
    if best <= CLOSE_ENOUGH * bound:
        return offsets
    if (arena := _sweep(blocks, backwards=True)) < best:
        best, offsets = arena, [b.offset for b in blocks]
    if best <= CLOSE_ENOUGH * bound:
        return offsets
    spans = [(b.size, b.first, b.last) for b in blocks]
    found = FirstFit(spans, peak).search(round(CLOSE_ENOUGH * bound), best)
    return offsets if found is None else found


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
