"""Indexing of arrays, and assignment to parts of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.arrays import array_of
from graphkit.ir.graph import Value
from graphkit.ir.types import INDICES, DType
from graphkit.nd.ndarray import NDArray, contiguous, own, signature, view, write
from graphkit.nd.operators import call, check_writable, immediate
from graphkit.nd.runtime import settings
from graphkit.nd.tape import is_tracked
from graphkit.ops._value_operators import index_value


def getitem(self: NDArray, key: Any) -> Any:
    """Index as numpy does. Integers, slices, None and ... give a view; arrays of integers or booleans give a copy."""
    if settings.capture is not None:
        return immediate.constant(self)[key]
    if not _is_basic(key):
        if (truth := _truth(key)) is not None:
            return _rows(self[None], [0] if truth else [])
        return call("gather_nd", self, _places(self, key)) if _gathers(key) else _rows(self, key)
    if settings.recording and is_tracked(self):
        return index_value(self, key)
    return view(self, _part(self, key))


def setitem(self: NDArray, key: Any, value: Any) -> None:
    """Write elements, converted to the dtype of the array, as numpy does. An operation in the background does it."""
    check_writable(self, value)
    source = _source(value, self)
    is_basic = _is_basic(key)
    if not is_basic and (truth := _truth(key)) is not None:
        if not truth:
            _broadcast(source, (0, *self.shape), self)  # raises an error if the value does not fit
            return
        key, is_basic = ..., True
    if is_basic:
        part = _part(self, key)
        write(_broadcast(source, part.shape, self), self, part)
        return
    places = _places(self, key)
    shape = (*places.shape[:-1], *self.shape[places.shape[-1] :])
    updates = contiguous(_broadcast(source, shape, self))
    write(call("scatter_nd", self, places, updates), self)


def iterate(self: NDArray) -> Iterator[NDArray]:
    """Iterate over the first axis."""
    if not self.shape:
        raise TypeError("an array without axes cannot be iterated")
    return (self[i] for i in range(self.shape[0]))


def _keys(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _is_basic(key: Any) -> bool:
    return all(
        k is None
        or k is Ellipsis
        or isinstance(k, slice)
        or (isinstance(k, (int, np.integer)) and not isinstance(k, (bool, np.bool_)))
        for k in _keys(key)
    )


def _truth(key: Any) -> bool | None:
    """Return whether all booleans of an index of single booleans are true; None for other indices.

    As in numpy, such an index adds an axis of size 1 if it is true, or of size 0.
    """
    keys = _keys(key)
    if not keys or not all(map(_is_boolean, keys)):
        return None
    return all(map(bool, keys))


def _is_boolean(k: Any) -> bool:
    return isinstance(k, (bool, np.bool_)) or (
        isinstance(k, (np.ndarray, NDArray)) and k.ndim == 0 and k.dtype == np.bool_
    )


def _part(self: NDArray, key: Any) -> np.ndarray:
    """Return the view of the elements that a key of integers and slices selects."""
    keys = _keys(key)
    if not any(k is Ellipsis for k in keys):
        keys = (*keys, Ellipsis)  # so that numpy returns an array even for one element
    try:
        found: np.ndarray = self._data[keys]
    except (IndexError, TypeError, ValueError) as error:
        raise UsageError(f"index of {self.describe()}: {error}") from None
    return found


def _index(k: Any) -> np.ndarray:
    found = k.asnumpy() if isinstance(k, NDArray) else array_of("an index", k, objects=True)
    if found.size == 0 and isinstance(k, list):
        found = found.astype(np.int64)
    if found.dtype.kind not in "iub":
        raise UsageError(f"an index is an integer, a slice, or an array of integers or booleans, not {found.dtype}")
    return found


def _gathers(key: Any) -> bool:
    """Whether a key needs one place for each element: it has several arrays, or booleans."""
    keys = _keys(key)
    if len(keys) > 1:
        return True
    first = keys[0]
    return (first.dtype if isinstance(first, (NDArray, np.ndarray)) else _index(first).dtype) == np.bool_


def _rows(self: NDArray, key: Any) -> Any:
    """Index the first axis by one array of integers."""
    (k,) = _keys(key)
    indices = k if isinstance(k, NDArray) else own(np.array(_index(k), np.int64, order="C"))
    if not self.shape:
        raise UsageError(f"{self.describe()} has no axis that an array can index")
    if indices.tensor.dtype not in INDICES:
        if not indices.tensor.dtype.is_integer:
            raise UsageError(f"an index must be integers or booleans, not {indices.describe()}")
        indices = call("cast", indices, to=DType.INT64)
    return call("gather", self, indices, axis=0)


def _places(self: NDArray, key: Any) -> NDArray:
    """Return the places that arrays of integers or booleans select, int64[..., number of indexed axes]."""
    arrays: list[np.ndarray] = []
    single: list[np.ndarray] = []  # of booleans without an axis, which select all or nothing
    for k in _keys(key):
        if k is None or k is Ellipsis or isinstance(k, slice):
            raise UsageError(
                f"index of {self.describe()}: arrays of indices cannot be combined with slices; index twice"
            )
        found = _index(k)
        if _is_boolean(k):
            single.append(np.zeros(int(found), np.int64))
        elif found.dtype == np.bool_:
            if found.shape != self.shape[len(arrays) : len(arrays) + found.ndim]:
                raise UsageError(
                    f"index of {self.describe()}: booleans of shape {list(found.shape)} do not fit its axes"
                )
            arrays += np.nonzero(found)
        else:
            arrays.append(found)
    if len(arrays) > self.ndim:
        raise UsageError(f"{self.describe()} has {self.ndim} axes, {len(arrays)} indices given")
    for axis, found in enumerate(arrays):
        if found.size and (found.min() < -self.shape[axis] or found.max() >= self.shape[axis]):
            raise UsageError(f"index of {self.describe()}: out of range for axis {axis}, of size {self.shape[axis]}")
    try:
        together = np.broadcast_arrays(*arrays, *single)[: len(arrays)]
    except ValueError:
        shapes = ", ".join(str(list(found.shape)) for found in [*arrays, *single])
        raise UsageError(f"index of {self.describe()}: indices of shapes {shapes} do not broadcast") from None
    return own(np.stack(together, axis=-1).astype(np.int64, order="C"))


def _source(value: Any, like: NDArray) -> NDArray:
    """Return a value to assign as an array of the dtype of `like`."""
    if isinstance(value, NDArray):
        return value if value.dtype == like.dtype else call("cast", value, to=like.tensor.dtype)
    if isinstance(value, Value):
        raise UsageError(f"{value} cannot be assigned to elements of an array: it has no elements before a run")
    try:
        with np.errstate(over="ignore"):
            found = np.array(value).astype(like.dtype, order="C")
    except (TypeError, ValueError) as error:
        raise UsageError(f"assignment to {like.describe()}: {error}") from None
    return own(found)


def _broadcast(source: NDArray, shape: tuple[int, ...], target: NDArray) -> NDArray:
    data = source._data
    while data.ndim > len(shape) and data.shape[0] == 1:
        data = data[0]
    try:
        spread = np.broadcast_to(data, shape)
    except ValueError:
        raise TypeMismatch(
            f"assignment to {target.describe()}: elements of shape {list(source.shape)} cannot be broadcast to "
            f"{list(shape)}"
        ) from None
    return NDArray(spread, source._memory, signature(spread.dtype, spread.shape))
