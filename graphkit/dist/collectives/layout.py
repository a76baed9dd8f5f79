"""Vectors that contain several arrays, divided into one slice per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Arrays and slices begin at multiples of this number of bytes, as in the memory of a program.
ALIGNMENT = 64


class Slices(NamedTuple):
    """Where arrays and slices begin in a vector, in elements. Slice r is bounds[r] to bounds[r + 1]."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], itemsize: int, ranks: int) -> Slices:
        """Return the layout of arrays with these numbers of elements, in equal slices for the ranks."""
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
        """Return begin and end, within array `index`, of its part in the slice of a rank; equal if there is none."""
        begin, size = self.begins[index], self.sizes[index]
        first = min(max(self.bounds[rank] - begin, 0), size)
        return first, min(max(self.bounds[rank + 1] - begin, first), size)
