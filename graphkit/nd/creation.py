"""Functions that make arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import BAD_VALUE, InputError, OutOfMemory, UsageError, lacks_memory
from graphkit.ir.arrays import array_of
from graphkit.ir.types import DType, dtype_of
from graphkit.nd import elements
from graphkit.nd.ndarray import NDArray, own
from graphkit.signatures import shown

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
    return own(elements.copied(found))


def zeros(shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array of zeros."""
    return _filled("zeros", elements.zeros, sizes(shape), dtype_or_float32(dtype).numpy)


def ones(shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array of ones."""
    return _filled("ones", np.ones, sizes(shape), dtype_or_float32(dtype).numpy)


def full(shape: Shape, fill_value: Any, dtype: Any = "float32") -> NDArray:
    """Return an array whose elements all are `fill_value`. Raises UsageError if `dtype` cannot store the value."""
    return _filled(f"full: value {shown(fill_value)}", np.full, sizes(shape), fill_value, dtype_or_float32(dtype).numpy)


def empty(shape: Shape, dtype: Any = "float32") -> NDArray:
    """Return an array with arbitrary elements."""
    return _filled("empty", elements.empty, sizes(shape), dtype_or_float32(dtype).numpy)


def zeros_like(x: NDArray, dtype: Any = None) -> NDArray:
    """Return an array of zeros with the shape of `x`, and its dtype if none is given."""
    return zeros(*_like("zeros_like", x, dtype))


def ones_like(x: NDArray, dtype: Any = None) -> NDArray:
    """Return an array of ones with the shape of `x`, and its dtype if none is given."""
    return ones(*_like("ones_like", x, dtype))


def empty_like(x: NDArray, dtype: Any = None) -> NDArray:
    """Return an array of arbitrary elements with the shape of `x`, and its dtype if none is given."""
    return empty(*_like("empty_like", x, dtype))


def full_like(x: NDArray, fill_value: Any, dtype: Any = None) -> NDArray:
    """Return an array whose elements all are `fill_value`, with the shape of `x`, and its dtype if none is given."""
    shape, kind = _like("full_like", x, dtype)
    return full(shape, fill_value, kind)


def arange(start: float, stop: float | None = None, step: float = 1, dtype: Any = "float32") -> NDArray:
    """Return the numbers from `start` up to, but without, `stop`. With one argument, `start` is 0.

    Raises UsageError if `step` is 0, or if an argument is not a number.
    """
    first, last = (0, start) if stop is None else (start, stop)
    where = f"arange: start, stop and step are {shown(first)}, {shown(last)} and {shown(step)}"
    kind = dtype_or_float32(dtype).numpy
    return _filled(where, lambda: np.arange(first, last, step).astype(kind))


def linspace(start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: Any = "float32") -> NDArray:
    """Return `num` numbers at equal distances from `start` to `stop`. endpoint: whether `stop` is the last of them.

    Raises UsageError if an argument is not a number.
    """
    where = f"linspace: start, stop and num are {shown(start)}, {shown(stop)} and {shown(num)}"
    return _filled(where, lambda: np.linspace(start, stop, num, endpoint).astype(dtype_or_float32(dtype).numpy))


def eye(rows: int, columns: int | None = None, k: int = 0, dtype: Any = "float32") -> NDArray:
    """Return a matrix with ones on a diagonal. k: which one: 0 is the main one, a positive number one above it."""
    height, width = sizes((rows, rows if columns is None else columns), "eye: rows and columns")
    return _filled(f"eye: k is {shown(k)}", np.eye, height, width, k, dtype_or_float32(dtype).numpy)


def from_numpy(data: np.ndarray) -> NDArray:
    """Return an array that uses the memory of a contiguous, writable numpy array. Do not use `data` afterwards.

    Raises InputError for arrays that must be copied, such as those of another byte order.
    """
    if not isinstance(data, np.ndarray) or not data.flags.carray or not data.dtype.isnative:
        raise InputError(
            "from_numpy takes a contiguous, writable numpy array in the byte order of the machine, not "
            f"{shown(data)}; gk.nd.array copies any array"
        )
    return own(data)


def from_dlpack(x: Any) -> NDArray:
    """Return an array with a copy of a tensor of another library in host memory, such as one of PyTorch.

    Raises InputError if the tensor cannot be read.
    """
    try:
        found = np.from_dlpack(x)
    except (*BAD_VALUE, AttributeError, BufferError, RuntimeError) as error:
        raise InputError(f"from_dlpack: {shown(x)} cannot be read: {error}") from None
    return array(found)


def sizes(shape: Any, what: str = "a shape") -> tuple[int, ...]:
    """Return a shape, or the size of one axis, as a tuple. what: its name in the UsageError for anything else."""
    try:
        given = list(shape) if hasattr(shape, "__iter__") else [shape]
        found = tuple([operator.index(size) for size in given])
    except TypeError:
        found = (-1,)
    if any(size < 0 for size in found):
        raise UsageError(f"{what} must be integers of at least 0, not {shown(shape)}")
    return found


def dtype_or_float32(dtype: Any) -> DType:
    """Return the element type of a new array: float32 if `dtype` is None, as in MXNet."""
    return DType.FLOAT32 if dtype is None else dtype_of(dtype)


def _like(function: str, x: Any, dtype: Any) -> tuple[tuple[int, ...], np.dtype]:
    if not isinstance(x, (NDArray, np.ndarray)):
        raise UsageError(f"{function} takes an NDArray, not {shown(x)}")
    return x.shape, dtype_of(x.dtype if dtype is None else dtype).numpy


def _filled(where: str, make: Callable[..., np.ndarray], *arguments: Any) -> NDArray:
    """Return the array that a function of numpy makes. where: start of the messages for arguments that it refuses."""
    try:
        made = make(*arguments)
    except (*BAD_VALUE, MemoryError) as error:
        kind = OutOfMemory if lacks_memory(error) else UsageError
        raise kind(f"{where}: {error}") from None
    return own(made)
