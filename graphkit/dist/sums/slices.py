"""Arrays one behind the other, cut into a slice for each rank, of which each rank works on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Arrays and slices begin at multiples of so many bytes, as the arrays of a program's memory do.
ALIGNMENT = 64


class Slices(NamedTuple):
    """In elements: where each array begins, and where the slice of each rank does; the last bound is the end of all."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], itemsize: int, ranks: int) -> Slices:
        """Of arrays with so many elements."""
        unit = max(1, ALIGNMENT // itemsize)
        begins, end = [], 0
        for size in sizes:
            begins.append(end)
            end += -(-size // unit) * unit
        whole = begins[-1] + sizes[-1]
        step = -(-whole // (unit * ranks)) * unit
        return cls(tuple(begins), tuple(sizes), tuple(min(whole, rank * step) for rank in range(ranks + 1)))

    def of_rank(self, rank: int) -> slice:
        return slice(self.bounds[rank], self.bounds[rank + 1])

    def part(self, index: int, rank: int) -> tuple[int, int]:
        """Begin and end, in the array itself, of what a rank's slice has of it; equal where it has nothing."""
        begin, size = self.begins[index], self.sizes[index]
        first = min(max(self.bounds[rank] - begin, 0), size)
        return first, min(max(self.bounds[rank + 1] - begin, first), size)
