"""Memory for the elements of arrays. Large arrays begin at a page, so that kernels write whole cache lines."""

from __future__ import annotations

import math

import numpy as np

from graphkit.executor.memory.packing import aligned_bytes

# numpy's memory begins 16 bytes behind a cache line or page. For smaller arrays, that costs less than a second array.
LARGE = 1 << 14
_PAGE = 4096


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array with arbitrary elements."""
    size = math.prod(shape) * dtype.itemsize
    return np.empty(shape, dtype) if size < LARGE else np.ndarray(shape, dtype, aligned_bytes(size))


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array of zeros."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE:
        return np.zeros(shape, dtype)
    raw = np.zeros(size + _PAGE, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.ctypes.data % _PAGE)


def copied(x: np.ndarray) -> np.ndarray:
    """Return a contiguous copy in the byte order of the machine."""
    made = empty(x.shape, x.dtype.newbyteorder("="))
    made[...] = x
    return made
