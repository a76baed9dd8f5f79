"""Vectors that contain several arrays, and their division into one slice per rank."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib.stride_tricks import as_strided

from graphkit.named_tuples import NamedTuple

# Arrays and slices begin at multiples of this number of bytes, as in programs.
ALIGNMENT = 64
# Neighbouring arrays with fewer than this many bytes between them form a bucket without a copy.
_GAP = 64


class Slices(NamedTuple):
    """Where arrays and slices begin in a vector, in elements. Slice r is bounds[r] to bounds[r + 1]."""

    begins: tuple[int, ...]
    sizes: tuple[int, ...]
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Sequence[int], itemsize: int, ranks: int) -> Slices:
        """Return the layout of arrays of these sizes, with one slice per rank.

        Slices have equal sizes, except that the last ones may be shorter, or empty.
        """
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

    def parts(self, rank: int) -> Iterator[tuple[int, int, int]]:
        """Yield (index, begin, end) for each array with a part in the slice of a rank. begin, end: see `part`."""
        low, high = self.bounds[rank], self.bounds[rank + 1]
        for index in range(max(bisect_right(self.begins, low) - 1, 0), bisect_left(self.begins, high)):
            begin, end = self.part(index, rank)
            if begin < end:
                yield index, begin, end

    def part(self, index: int, rank: int) -> tuple[int, int]:
        """Return the range (begin, end) of array `index` in the slice of a rank, possibly empty."""
        begin, size = self.begins[index], self.sizes[index]
        first = min(max(self.bounds[rank] - begin, 0), size)
        return first, min(max(self.bounds[rank + 1] - begin, first), size)


class Bucket(NamedTuple):
    """Arrays that are summed together, as parts of one vector.

    Attributes:
        whole: The memory of all arrays as one vector; None if they must be copied.
        gaps: The elements of `whole` between the arrays.
    """

    arrays: Sequence[np.ndarray]
    begins: Sequence[int]
    size: int
    whole: np.ndarray | None
    gaps: Sequence[np.ndarray]


def bucket_of(arrays: Sequence[np.ndarray]) -> Bucket:
    filled = [a for a in arrays if a.size]
    ends = list(itertools.accumulate(a.size for a in arrays))
    begins = [0, *ends[:-1]]
    if not filled:
        return Bucket(arrays, begins, 0, arrays[0].reshape(-1), ())
    item = filled[0].dtype.itemsize
    first = filled[0].__array_interface__["data"][0]
    begins_in_bytes = [a.__array_interface__["data"][0] - first for a in filled]
    ends_in_bytes = [at + a.nbytes for at, a in zip(begins_in_bytes, filled, strict=True)]
    between = list(zip(ends_in_bytes, begins_in_bytes[1:], strict=False))
    if any(not 0 <= begin - end < _GAP or (begin - end) % item for end, begin in between):
        return Bucket(arrays, begins, ends[-1], None, ())
    whole = as_strided(filled[0].reshape(-1), (ends_in_bytes[-1] // item,), (item,))
    gaps = [whole[end // item : begin // item] for end, begin in between if end < begin]
    places = iter(begins_in_bytes)
    begins = [next(places) // item if a.size else 0 for a in arrays]
    return Bucket(arrays, begins, whole.size, whole, gaps)
