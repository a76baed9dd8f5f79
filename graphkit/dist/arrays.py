"""Arrays as bytes, and sums of arrays in a defined order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_SMALL = 64 << 10


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the elements of an array in C order as bytes. A contiguous array is not copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def is_half(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize == 2 and dtype.kind in "fV"


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which arrays are added: float32 for float16 and bfloat16."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def sum_in_order(parts: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of arrays of one dtype and shape, added one after the other.

    float16 and bfloat16 are added in float32, and rounded once.
    """
    kind = parts[0].dtype
    wide = sum_dtype(kind)
    if len(parts) == 2:
        return np.asarray(parts[0] + parts[1])
    if isinstance(parts, np.ndarray) and parts.nbytes <= _SMALL:
        return np.asarray(np.add.accumulate(parts, axis=0, dtype=wide)[-1].astype(kind, copy=False))
    total = np.array(parts[0], dtype=wide)
    for part in parts[1:]:
        np.add(total, part, out=total, dtype=wide)
    return total.astype(kind, copy=False)
