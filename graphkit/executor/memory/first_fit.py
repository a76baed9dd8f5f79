"""Offsets by first fit, in orders that suit networks, and a local search where none of them is good enough.

First fit gives each block the lowest place that no placed block with a common step covers. The order decides how good
the result is; some order is always optimal (the blocks of an optimal layout by rising offset).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np

# Work is counted in comparisons of a block with a neighbour, about 0.15 us each. What the orders may take in all, ...
ORDERS_WORK = 2_000_000
# ... and the local search.
SEARCH_WORK = 150_000


class FirstFit:
    """`spans` are (bytes, first step, last step) of every block, `peak` the step where most bytes live."""

    def __init__(self, spans: Sequence[tuple[int, int, int]], peak: int):
        self._spans = spans
        self._peak = peak
        self._blocks = [i for i, (size, _, _) in enumerate(spans) if size]
        self._neighbours: list[list[int]] = []
        self._cost = 0  # of placing every block once
        self._offsets = [0] * len(spans)

    def search(self, target: int, known: int) -> list[int] | None:
        """Offsets of an arena smaller than `known` bytes, if possible of at most `target`.

        None when there is none, or so many pairs of neighbours that the work would exceed its limits. Deterministic.
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
        """Which blocks have a step in common with each; False when there are too many such pairs."""
        spans = self._spans
        first, last = (np.array([spans[i][axis] for i in self._blocks]) for axis in (1, 2))
        by_start = np.argsort(first, kind="stable")
        # Counted once, at the one of the two that starts first.
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
        """Orders of which each was the best for some network of the zoo or its training step, at some batch size.

        By size, those near the peak first; by pressure, the longest lives or the latest first; from the peak outwards.
        """
        spans, peak = self._spans, self._peak
        size = [-span[0] for span in spans]
        life = [span[1] - span[2] for span in spans]
        away = [max(first - peak, peak - last, 0) for _, first, last in spans]
        yield sorted(self._blocks, key=lambda i: (size[i], away[i], life[i]))
        pressure = self._pressure()
        yield sorted(self._blocks, key=lambda i: (-pressure[i], life[i]))
        yield sorted(self._blocks, key=lambda i: (away[i], spans[i][2]))
        yield sorted(self._blocks, key=lambda i: (-pressure[i], -spans[i][2], size[i]))

    def _pressure(self) -> dict[int, int]:
        """The largest sum of live bytes during each block's life; it is reached where some block begins."""
        spans, neighbours = self._spans, self._neighbours
        begun = {}
        for i in self._blocks:
            step = spans[i][1]
            begun[i] = spans[i][0] + sum(spans[j][0] for j in neighbours[i] if spans[j][1] <= step <= spans[j][2])
        return {i: max([begun[i], *(begun[j] for j in neighbours[i] if spans[j][1] >= spans[i][1])]) for i in begun}

    def _place(self, order: Sequence[int], start: int = 0) -> int:
        """First fit in `order`, keeping the places of the first `start` blocks; the arena's size."""
        spans, offsets = self._spans, self._offsets
        placed = [False] * len(spans)
        for block in order[:start]:
            placed[block] = True
        for block in itertools.islice(order, start, None):
            size = spans[block][0]
            taken = sorted((offsets[j], offsets[j] + spans[j][0]) for j in self._neighbours[block] if placed[j])
            reach = 0
            for low, high in taken:
                if low - reach >= size:
                    break
                if high > reach:
                    reach = high
            offsets[block] = reach
            placed[block] = True
        return max((offsets[i] + spans[i][0] for i in order), default=0)

    def _improve(self, order: list[int], target: int) -> int:
        """Move or swap, in the order, blocks at the arena's end and their neighbours, while the arena does not grow.

        Leaves the best places in `_offsets`; returns their arena.
        """
        chance = random.Random(0)
        arena = self._place(order)
        for _ in range(SEARCH_WORK // self._cost):
            if arena <= target:
                break
            block = chance.choice([i for i in order if self._offsets[i] + self._spans[i][0] == arena])
            near = [block, *self._neighbours[block]]
            moved = block if chance.random() < 0.5 else chance.choice(near)
            changed, place = list(order), order.index(moved)
            if chance.random() < 0.5:
                other = chance.randrange(place + 1)
                changed.insert(other, changed.pop(place))
            else:
                other = order.index(chance.choice(near))
                changed[place], changed[other] = changed[other], changed[place]
            before = list(self._offsets)
            size = self._place(changed, min(place, other))
            if size <= arena:
                arena, order = size, changed
            else:
                self._offsets = before
        return arena
