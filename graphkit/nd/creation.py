"""Functions that make arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import InputError, UsageError
from graphkit.ir.arrays import array_of
from graphkit.ir.types import dtype_of
from graphkit.nd.ndarray import NDArray, own

Shape = int | Sequence[int]


def array(data: Any, dtype: Any = None) -> NDArray:
    """Return an array with a copy of `data`.

    Args:
        data: An array, a number, or nested lists of numbers.
        dtype: Element type. By default that of an array, and float32 for Python's floats, int64 for its integers.

    Raises:
        InputError: The rows of nested lists have different lengths.
    """
    if isinstance(data, NDArray):
        return data.astype(data.dtype if dtype is None else dtype)
    is_array = isinstance(data, (np.ndarray, np.generic)) or hasattr(data, "__array__")
    found = array_of("an array", data)
    if dtype is not None:
        with np.errstate(over="ignore"):
            found = found.astype(dtype_of(dtype).numpy)
    elif found.dtype == np.float64 and not is_array:
        found = found.astype(np.float32)
    return own(np.array(found, order="C", dtype=found.dtype.newbyteorder("=")))


def zeros(shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array of zeros."""
    return own(np.zeros(_sizes(shape), dtype_of(dtype).numpy))


def ones(shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array of ones."""
    return own(np.ones(_sizes(shape), dtype_of(dtype).numpy))


def full(shape: Shape, value: Any, dtype: Any = "float32") -> NDArray:
    """Return an array whose elements all are `value`."""
    return own(np.full(_sizes(shape), value, dtype_of(dtype).numpy))


def empty(shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array with arbitrary elements."""
    return own(np.empty(_sizes(shape), dtype_of(dtype).numpy))


def zeros_like(x: NDArray) -> NDArray:
    """Return an array of zeros with the shape and dtype of `x`."""
    return own(np.zeros(x.shape, x.dtype))


def ones_like(x: NDArray) -> NDArray:
    """Return an array of ones with the shape and dtype of `x`."""
    return own(np.ones(x.shape, x.dtype))


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = "float32") -> NDArray:
    """Return the numbers from `start` up to, but without, `stop`. With one argument, `start` is 0."""
    first, last = (0, start) if stop is None else (start, stop)
    return own(np.arange(first, last, step).astype(dtype_of(dtype).numpy))


def eye(rows: int, columns: int | None = None, dtype: Any = "float32") -> NDArray:
    """Return a matrix with ones on the diagonal."""
    return own(np.eye(rows, columns, dtype=dtype_of(dtype).numpy))


def from_numpy(data: np.ndarray) -> NDArray:
    """Return an array that uses the memory of a contiguous, writable numpy array. Do not use `data` afterwards."""
    if not isinstance(data, np.ndarray) or not data.flags.carray:
        raise InputError("from_numpy takes a contiguous, writable numpy array; gk.nd.array copies any array")
    return own(data)


def _sizes(shape: Any) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
    if not all(isinstance(size, (int, np.integer)) and size >= 0 for size in sizes):
        raise UsageError(f"a shape consists of integers of at least 0, not {shape!r}")
    return tuple(int(size) for size in sizes)
