"""Indexing of arrays, and assignment to parts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import BAD_VALUE, TypeMismatch, UsageError
from graphkit.ir.arrays import array_of
from graphkit.ir.graph import Value
from graphkit.ir.types import INDICES, DType
from graphkit.named_tuples import NamedTuple
from graphkit.nd.ndarray import NDArray, contiguous, own, signature, view, write
from graphkit.nd.operators import call, check_writable, immediate
from graphkit.nd.runtime import settings
from graphkit.nd.tape import is_tracked
from graphkit.ops import F
from graphkit.ops._value_operators import index_value


def getitem(self: NDArray, key: Any) -> Any:
    """Index as numpy does.

    Integers, slices, None and ... give a view; indices with arrays of integers or booleans give a copy.
    """
    if settings.capture is not None:
        return immediate.constant(self)[key]
    if not _is_basic(key):
        if (truth := _truth(key)) is not None:
            return _rows(self[None], [0] if truth else [])
        return _gathered(self, key) if _gathers(key) else _rows(self, key)
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
    _scattered(self, key, source)


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


class _Advanced(NamedTuple):
    """An index with arrays, as an index of slices and None, and then indices of some axes.

    Attributes:
        basic: The first index. It keeps the axes that arrays index.
        axes: The axes of its result that arrays index.
        places: The indices of these axes, int64[..., number of axes].
        position: Number of axes of the result before those of the indices.
    """

    basic: tuple[Any, ...]
    axes: list[int]
    places: NDArray
    position: int

    def moved(self, rank: int) -> list[int]:
        """Return the order of the axes that puts the indexed ones first."""
        return [*self.axes, *[a for a in range(rank) if a not in self.axes]]

    def spread(self, rank: int) -> list[int]:
        """Return the order that moves the axes of the indices from the front to their place in the result."""
        own = list(range(self.places.ndim - 1))
        rest = list(range(len(own), len(own) + rank - len(self.axes)))
        return [*rest[: self.position], *own, *rest[self.position :]]


def _gathered(self: NDArray, key: Any) -> NDArray:
    found = _advanced(self, key)
    part = _with_axes(getitem(self, found.basic), found.moved)
    return _with_axes(call("gather_nd", part, found.places), lambda _: found.spread(part.ndim))


def _scattered(self: NDArray, key: Any, source: NDArray) -> None:
    found = _advanced(self, key)
    part = _with_axes(view(self, _part(self, found.basic)), found.moved)
    order = found.spread(part.ndim)
    shape = (*found.places.shape[:-1], *part.shape[len(found.axes) :])
    spread = _broadcast(source, tuple([shape[a] for a in order]), self)
    updates = _with_axes(spread, lambda _: [order.index(a) for a in range(len(order))])
    write(call("scatter_nd", part, found.places, contiguous(updates)), self, part._data)


def _with_axes(x: NDArray, order_of: Callable[[int], list[int]]) -> NDArray:
    """Return the array with its axes in the order that a function of their number returns."""
    order = order_of(x.ndim)
    if order == sorted(order):
        return x
    if settings.recording and is_tracked(x):
        return F.transpose(x, perm=order)  # type: ignore[return-value]
    return view(x, x._data.transpose(order))


def _advanced(self: NDArray, key: Any) -> _Advanced:
    """Split an index with arrays as numpy does: integers beside arrays count as arrays."""
    basic: list[Any] = []
    axes: list[int] = []
    arrays: list[np.ndarray] = []
    spots: list[int] = []
    axis = 0
    for spot, k in enumerate(_spelled_out(self, key)):
        if k is Ellipsis:
            continue
        if k is None or isinstance(k, slice):
            basic.append(k)
            axis += k is not None
            continue
        spots.append(spot)
        if k.ndim == 0 and k.dtype == np.bool_:
            # As numpy: an axis of size 1, which is selected as a whole or not at all.
            parts: Sequence[np.ndarray] = [np.zeros(int(k), np.int64)]
            basic.append(None)
            axes.append(len(basic) - 1)
        else:
            parts = _checked(self, k, axis)
            axes += range(len(basic), len(basic) + len(parts))
            basic += [slice(None)] * len(parts)
            axis += len(parts)
        arrays += parts
    try:
        together = np.broadcast_arrays(*arrays)
    except ValueError:
        shapes = ", ".join(str(list(found.shape)) for found in arrays)
        raise UsageError(f"index of {self.describe()}: indices of shapes {shapes} do not broadcast") from None
    places = own(np.stack(together, axis=-1).astype(np.int64, order="C"))
    is_adjacent = spots[-1] - spots[0] == len(spots) - 1
    return _Advanced(tuple(basic), axes, places, axes[0] if is_adjacent else 0)


def _checked(self: NDArray, k: np.ndarray, axis: int) -> Sequence[np.ndarray]:
    """Return the indices of one axis, or those of several axes for booleans."""
    if k.dtype == np.bool_:
        if k.shape != self.shape[axis : axis + k.ndim]:
            raise UsageError(f"index of {self.describe()}: booleans of shape {list(k.shape)} do not fit its axes")
        return np.nonzero(k)
    size = self.shape[axis]
    if k.size and (k.min() < -size or k.max() >= size):
        raise UsageError(f"index of {self.describe()}: out of range for axis {axis}, of size {size}")
    return [k]


def _spelled_out(self: NDArray, key: Any) -> list[Any]:
    """Return the parts of an index: None, slices, and numpy arrays of integers or booleans.

    `...` becomes slices. One that stands for no axes stays, because it separates arrays.
    """
    keys = [k if k is None or k is Ellipsis or isinstance(k, slice) else _index(k) for k in _keys(key)]
    used = sum(map(_axes_used, keys))
    if used > self.ndim:
        raise UsageError(f"{self.describe()} has {self.ndim} axes, {used} indices given")
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise UsageError(f"index of {self.describe()}: it can contain ... only once")
    place = dots[0] if dots else len(keys)
    if used == self.ndim:
        return keys
    return [*keys[:place], *[slice(None)] * (self.ndim - used), *keys[place + 1 :]]


def _axes_used(k: Any) -> int:
    """Return the number of axes that a part of an index selects from."""
    if k is None or k is Ellipsis:
        return 0
    return k.ndim if isinstance(k, np.ndarray) and k.dtype == np.bool_ else 1


def _source(value: Any, like: NDArray) -> NDArray:
    """Return a value to assign as an array of the dtype of `like`."""
    if isinstance(value, NDArray):
        return value if value.dtype == like.dtype else call("cast", value, to=like.tensor.dtype)
    if isinstance(value, Value):
        raise UsageError(f"{value} cannot be assigned to elements of an array: it has no elements before a run")
    try:
        with np.errstate(over="ignore"):
            found = np.array(value).astype(like.dtype, order="C", copy=False)
    except BAD_VALUE as error:
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
