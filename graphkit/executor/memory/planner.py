"""The memory planner: a pure function from sizes and live ranges to offsets in one arena.

Two techniques can be switched off separately (Chen et al., "MXNet", 2015, section 3.1). In-place: a result overwrites
an operand that is not read again. Co-share: values that are not live at the same time share addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphkit.executor.devices.loading import native_module
from graphkit.named_tuples import NamedTuple

ALIGNMENT = 64

# An arena within this factor of the lower bound is good enough: no further strategy is tried.
CLOSE_ENOUGH = 1.01


class Request(NamedTuple):
    """A block of memory with its live range.

    Attributes:
        size: Bytes.
        first: The step that writes the block.
        last: The last step that reads it. Both steps belong to the live range.
        inplace: Indices of requests that this one may overwrite: their last step is the `first` of this one.
    """

    size: int
    first: int
    last: int
    inplace: tuple[int, ...] = ()


class Layout(NamedTuple):
    """The offset of every request, the size of the arena, and bounds of that size."""

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound: int  # the most bytes that are live at one step
    naive_bytes: int  # the size of an arena in which no two requests share memory
    peak_step: int
    inplace_count: int


class _Block:
    """Memory of one request, or of a chain of requests that each overwrite the previous one."""

    __slots__ = ("size", "first", "last", "offset")

    def __init__(self, size: int, first: int, last: int):
        self.size, self.first, self.last, self.offset = size, first, last, 0


def plan_memory(
    requests: Sequence[Request], *, inplace: bool = True, share: bool = True, known: Sequence[int] | None = None
) -> Layout:
    """Choose an offset for each request.

    Requests that are live at the same step overlap only if one overwrites the other (in-place).

    Two sweeps over time with a best-fit free list take O(n log n) time. If neither comes close to the lower bound,
    first fit in several orders and a local search follow, both with a limit of work. The smallest arena is taken.

    Args:
        requests: The blocks. Their offsets are multiples of ALIGNMENT; the offset of an empty block is 0.
        inplace: Whether requests may overwrite others (see `Request.inplace`).
        share: Whether requests that are not live at the same time may share addresses.
        known: Offsets that an earlier call found. They are used without a check (see `is_valid_layout`).
    """
    owner, blocks = _blocks(requests, inplace)
    bound, peak = _peak(blocks)
    if known is not None:
        offsets = _block_offsets(owner, blocks, known)
    else:
        offsets = _with_sharing(blocks, bound, peak) if share else _without_sharing(blocks)
    return Layout(
        offsets=tuple(offsets[owner[i]] if r.size else 0 for i, r in enumerate(requests)),
        arena_bytes=max((o + b.size for o, b in zip(offsets, blocks, strict=True)), default=0),
        lower_bound=bound,
        naive_bytes=sum(aligned(r.size) for r in requests),
        peak_step=peak,
        inplace_count=len(requests) - len(blocks),
    )


def is_valid_layout(requests: Sequence[Request], offsets: Sequence[int], *, inplace: bool = True) -> bool:
    """Whether offsets are aligned, and requests that are live at the same step do not overlap. O(n log n).

    offsets: One per request.
    """
    if len(offsets) != len(requests) or any(o < 0 or o % ALIGNMENT for o in offsets):
        return False
    import bisect  # here, because most processes need neither it nor its extension module

    owner, blocks = _blocks(requests, inplace)
    placed = _block_offsets(owner, blocks, offsets)
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


def _block_offsets(owner: Sequence[int], blocks: Sequence[_Block], offsets: Sequence[int]) -> list[int]:
    """Return the offset of every block, from the offsets of the requests.

    owner: The block of each request.
    """
    placed = [0] * len(blocks)
    for request, block in enumerate(owner):
        placed[block] = max(placed[block], offsets[request])
    return placed


def aligned(size: int) -> int:
    """Return `size` rounded up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def all_aligned(sizes: Iterable[int]) -> list[int]:
    """Return what `aligned` returns for each size."""
    return [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]


def _blocks(requests: Sequence[Request], inplace: bool) -> tuple[list[int], list[_Block]]:
    """Return the block of each request, and the blocks. Each request is overwritten by at most one other."""
    owner: list[int] = [0] * len(requests)
    blocks: list[_Block] = []
    taken: set[int] = set()
    sizes = all_aligned([request.size for request in requests])
    # Sorting is stable: requests that begin at the same step keep their order.
    for index in sorted(range(len(requests)), key=[request.first for request in requests].__getitem__):
        request = requests[index]
        for candidate in request.inplace if inplace and request.size else ():
            source = requests[candidate]
            is_large_enough = source.size and blocks[owner[candidate]].size >= request.size
            if is_large_enough and candidate not in taken and source.last == request.first > source.first:
                taken.add(candidate)
                owner[index] = owner[candidate]
                blocks[owner[index]].last = request.last
                break
        else:
            owner[index] = len(blocks)
            blocks.append(_Block(sizes[index], request.first, request.last))
    return owner, blocks


def _peak(blocks: Iterable[_Block]) -> tuple[int, int]:
    """Return the most bytes that are live at one step, and the first step at which they are."""
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


def _without_sharing(blocks: Sequence[_Block]) -> list[int]:
    """Return the offset of every block if no two share addresses."""
    end = 0
    return [(end := end + b.size) - b.size for b in blocks]


def _with_sharing(blocks: Sequence[_Block], bound: int, peak: int) -> list[int]:
    """Return the offset of every block. Strategies are tried until the arena is close enough to `bound`."""
    best = _sweep(blocks)
    offsets = [b.offset for b in blocks]
    if best <= CLOSE_ENOUGH * bound:
        return offsets
    if (arena := _sweep(blocks, backwards=True)) < best:
        best, offsets = arena, [b.offset for b in blocks]
    if best <= CLOSE_ENOUGH * bound:
        return offsets
    from graphkit.executor.memory.first_fit import FirstFit  # here, because few graphs need it

    spans = [(b.size, b.first, b.last) for b in blocks]
    found = FirstFit(spans, peak).search(round(CLOSE_ENOUGH * bound), best)
    return offsets if found is None else found


def _sweep(blocks: Sequence[_Block], backwards: bool = False) -> int:
    """Allocate the blocks in order of time, each from the smallest free range that is large enough (best fit).

    Sets `offset` of each block, and returns the size of the arena. backwards: from the last step to the first.
    """
    native = native_module()
    if native is not None:
        offsets, end = native.best_fit([(b.size, b.first, b.last) for b in blocks], backwards)
        for block, offset in zip(blocks, offsets, strict=True):
            block.offset = offset
        return int(end)
    keyed = [(-b.last, -b.first, b) if backwards else (b.first, b.last, b) for b in blocks if b.size]
    starts = sorted(keyed, key=lambda item: (item[0], -item[2].size))
    ends = sorted(keyed, key=lambda item: item[1])
    from graphkit.executor.memory.free_ranges import FreeRanges  # here, because the native extension replaces it

    free = FreeRanges()
    done = 0
    for start, _, block in starts:
        while ends[done][1] < start:
            free.give(ends[done][2].offset, ends[done][2].size)
            done += 1
        block.offset = free.take(block.size)
    return free.end
