"""The free ranges of an arena, from which the planner allocates blocks if there is no native extension."""

from __future__ import annotations

import bisect


class FreeRanges:
    """The free ranges below `end`. Adjacent ranges are merged."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []  # (size, offset), sorted
        self._size_at: dict[int, int] = {}  # offset -> size
        self._offset_before: dict[int, int] = {}  # offset + size -> offset

    def take(self, size: int) -> int:
        """Allocate `size` bytes from the smallest range that is large enough, and return the offset.

        If there is none, the arena grows.
        """
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
        """Free a range, and merge it with adjacent free ranges."""
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
