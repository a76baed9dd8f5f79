"""Arena offsets by first fit: several orders of the blocks, then a local search if none is good enough.

First fit takes the blocks one by one. Each gets the lowest offset at which it overlaps no placed block that is live at
the same step. The size of the arena depends on the order. Some order is always optimal: the blocks of an optimal
layout, sorted by offset.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from graphkit.executor.devices.loading import native_module

# Work is counted in comparisons of two neighbours (blocks that are live at a common step), about 0.15 us each.
# Limit for all orders together.
ORDERS_WORK = 2_000_000
# Limit for the local search.
SEARCH_WORK = 150_000

# Maximum number of blocks that the native extension places. It compares each with all others, not with neighbours only.
_MOST_NATIVE = 2000


class FirstFit:
    """Searches offsets of blocks.

    Args:
        spans: Size in bytes, first step and last step of each block.
        peak: The step at which the most bytes are live.
    """

    def __init__(self, spans: Sequence[tuple[int, int, int]], peak: int):
        self._spans = spans
        self._peak = peak
        self._blocks = [i for i, (size, _, _) in enumerate(spans) if size]
        self._neighbours: list[list[int]] = []
        self._cost = 0  # work of placing every block once
        self._offsets = [0] * len(spans)

    def search(self, target: int, known: int) -> list[int] | None:
        """Return one offset per block, for an arena smaller than `known` bytes.

        Stops as soon as the arena has at most `target` bytes. Returns None if no such arena is found, or if there are
        too many neighbours for the limits of work. The result is deterministic.
        """
        if not self._find_neighbours():
            return None
        best, offsets = known, None
        start: tuple[int, list[int]] | None = None
        for _, order in zip(range(ORDERS_WORK // self._cost), self._orders(), strict=False):
            arena = self._place(order)
            if start is None or arena < start[0]:
                start = arena, order
            if arena < best:
                best, offsets = arena, list(self._offsets)
            if best <= target:
                return offsets
        if start is not None and self._improve(start[1], target) < best:
            offsets = list(self._offsets)
        return offsets

    def _find_neighbours(self) -> bool:
        """Set `_neighbours`: for each block, those that are live at a common step. False if there are too many."""
        spans = self._spans
        first, last = (np.array([spans[i][axis] for i in self._blocks]) for axis in (1, 2))
        by_start = np.argsort(first, kind="stable")
        # Each pair is counted once, at the block that starts first.
        end = np.searchsorted(first[by_start], last[by_start], side="right")
        self._cost = len(by_start) + 2 * int((end - np.arange(1, len(by_start) + 1)).sum())
        if self._cost > ORDERS_WORK:
            return False
        self._neighbours = [[] for _ in spans]
        in_order = [self._blocks[i] for i in by_start]
        for position, block in enumerate(in_order):
            later = in_order[position + 1 : end[position]]
            self._neighbours[block] += later
            for other in later:
                self._neighbours[other].append(block)
        return True

    def _orders(self) -> Iterator[list[int]]:
        """Yield orders of the blocks: by size, by pressure (twice, with different ties), by distance from the peak.

        Each order is the best one for some network of the zoo, or for its training step, at some batch size.
        """
        spans, peak = self._spans, self._peak
        size = [-span[0] for span in spans]
        length = [span[1] - span[2] for span in spans]  # negative: long live ranges first
        distance = [max(first - peak, peak - last, 0) for _, first, last in spans]
        yield sorted(self._blocks, key=lambda i: (size[i], distance[i], length[i]))
        pressure = self._pressure()
        yield sorted(self._blocks, key=lambda i: (-pressure[i], length[i]))
        yield sorted(self._blocks, key=lambda i: (distance[i], spans[i][2]))
        yield sorted(self._blocks, key=lambda i: (-pressure[i], -spans[i][2], size[i]))

    def _pressure(self) -> dict[int, int]:
        """Return, for each block, the most bytes that are live at a step of its live range."""
        spans, neighbours = self._spans, self._neighbours
        # Live bytes at the first step of each block. The maximum of a live range is reached at such a step.
        begun = {}
        for i in self._blocks:
            step = spans[i][1]
            begun[i] = spans[i][0] + sum(spans[j][0] for j in neighbours[i] if spans[j][1] <= step <= spans[j][2])
        return {i: max([begun[i], *(begun[j] for j in neighbours[i] if spans[j][1] >= spans[i][1])]) for i in begun}

    def _place(self, order: Sequence[int], start: int = 0) -> int:
        """Place the blocks in `order` by first fit, and return the size of the arena.

        The first `start` blocks keep their offsets.
        """
        spans, offsets = self._spans, self._offsets
        native = native_module() if start == 0 and len(order) <= _MOST_NATIVE else None
        if native is not None:
            self._offsets, arena = native.first_fit(spans, order)
            return int(arena)
        placed = [False] * len(spans)
        for block in order[:start]:
            placed[block] = True
        for block in itertools.islice(order, start, None):
            size = spans[block][0]
            taken = sorted((offsets[j], offsets[j] + spans[j][0]) for j in self._neighbours[block] if placed[j])
            offset = 0
            for begin, end in taken:
                if begin - offset >= size:
                    break
                if end > offset:
                    offset = end
            offsets[block] = offset
            placed[block] = True
        return max((offsets[i] + spans[i][0] for i in order), default=0)

    def _improve(self, order: list[int], target: int) -> int:
        """Local search: move or swap two blocks in the order, and keep the change if the arena does not grow.

        One of the two is a block at the end of the arena, or a neighbour of one. The best offsets are in `_offsets`
        afterwards. Returns the size of the arena.
        """
        import random  # here, because few searches get here

        rng = random.Random(0)
        arena = self._place(order)
        for _ in range(SEARCH_WORK // self._cost):
            if arena <= target:
                break
            block = rng.choice([i for i in order if self._offsets[i] + self._spans[i][0] == arena])
            candidates = [block, *self._neighbours[block]]
            moved = block if rng.random() < 0.5 else rng.choice(candidates)
            changed, place = list(order), order.index(moved)
            if rng.random() < 0.5:
                other = rng.randrange(place + 1)
                changed.insert(other, changed.pop(place))
            else:
                other = order.index(rng.choice(candidates))
                changed[place], changed[other] = changed[other], changed[place]
            previous = list(self._offsets)
            size = self._place(changed, min(place, other))
            if size <= arena:
                arena, order = size, changed
            else:
                self._offsets = previous
        return arena
