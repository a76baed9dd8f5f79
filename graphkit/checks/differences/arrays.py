"""How two arrays of one type and shape differ: bits, elements, largest differences. Large arrays are read in parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphkit.checks.comparison import errors
from graphkit.ir.limits import check_time
from graphkit.ir.stored import StoredArray
from graphkit.ir.types import DType, dtype_of

# Elements that are compared at once: the temporary arrays of float64 take some 50 times this number of bytes.
_PART = 1 << 20


@dataclass(frozen=True)
class ArrayDifference:
    """How array b differs from array a.

    Attributes:
        elements: Number of elements.
        different: Number of elements that are not equal. NaN equals NaN, and 0 equals -0.
        nonfinite: Those of the different elements where only one array has NaN, or both have not the same infinity.
        max_abs: Largest |a - b| of the other elements. For strings and bools, 1.
        max_rel: Largest |a - b| / |a| of these elements.
        same_bits: Whether all bits are equal. Arrays without different elements may have other bits: 0 and -0, or NaNs.
    """

    elements: int
    different: int
    nonfinite: int
    max_abs: float
    max_rel: float
    same_bits: bool

    def __str__(self) -> str:
        if self.same_bits:
            return "equal"
        if not self.different:
            return f"equal values with other bits (-0, NaN) in {self.elements:,} elements"
        text = f"{self.different:,} of {self.elements:,} elements differ"
        if self.different > self.nonfinite:
            text += f", by up to {self.max_abs:.3g} (relative {self.max_rel:.3g})"
        return text + (f", {self.nonfinite:,} by NaN or infinity" if self.nonfinite else "")


def array_difference(a: np.ndarray | StoredArray, b: np.ndarray | StoredArray) -> ArrayDifference:
    """Compare two arrays of one dtype and shape."""
    dtype = dtype_of(a.dtype)
    different = nonfinite = 0
    max_abs = max_rel = 0.0
    equal_bits = True
    for one, other in _parts(a, b):
        check_time()
        if _same_bits(one, other, dtype):
            continue
        equal_bits = False
        error, size = errors(other, one, dtype)
        wrong, finite = error > 0, (error > 0) & np.isfinite(error)
        different += int(np.count_nonzero(wrong))
        nonfinite += int(np.count_nonzero(wrong)) - int(np.count_nonzero(finite))
        max_abs = max(max_abs, float(error[finite].max(initial=0.0)))
        with np.errstate(divide="ignore"):
            relative = error[finite] / (1.0 if dtype in (DType.STRING, DType.BOOL) else size[finite])
        max_rel = max(max_rel, float(relative.max(initial=0.0)))
    return ArrayDifference(math.prod(a.shape), different, nonfinite, max_abs, max_rel, equal_bits)


def same_bits(a: np.ndarray | StoredArray, b: np.ndarray | StoredArray) -> bool:
    """Whether two arrays of one dtype and shape have the same bits. Stops at the first difference."""
    dtype = dtype_of(a.dtype)
    return all(_same_bits(one, other, dtype) for one, other in _parts(a, b))


def _parts(a: np.ndarray | StoredArray, b: np.ndarray | StoredArray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    count = math.prod(a.shape)
    for start in range(0, count, _PART):
        stop = min(start + _PART, count)
        yield part(a, start, stop), part(b, start, stop)


def part(array: np.ndarray | StoredArray, start: int, stop: int) -> np.ndarray:
    """Return elements of an array in row-major order, without reading the others from a file."""
    return array.part(start, stop) if isinstance(array, StoredArray) else array.reshape(-1)[start:stop]


def _same_bits(a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    if dtype is DType.STRING:
        return bool((a == b).all())
    return a is b or np.array_equal(_bytes(a), _bytes(b))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)
