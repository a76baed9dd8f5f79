"""Interpolation of images, on arrays and on graph values: the same code is reference and expansion.

Along each axis a coordinate becomes a few taps, places inside the axis with weights. The result is the sum over all
combinations of taps of the element at their places times their weights, so autodiff of this code gives the derivatives
with respect to image and coordinates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import limits
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F, as_value
from graphkit.ops.pointwise import scalar_like

# Coefficient of the cubic kernel of Keys (1981) that the standard fixes.
_CUBIC = -0.75


class ArrayImage:
    """x: [N, C, *spatial] as an array."""

    def __init__(self, xp: Any, x: Any):
        self.xp = xp
        self.sizes: tuple[Any, ...] = x.shape[2:]
        self.rows = xp.moveaxis(x, 1, -1).reshape(-1, x.shape[1])

    def batch(self, rank: int) -> Any:
        """Return 0, 1, ..., N - 1 with shape [N, 1, ..., 1] of this rank."""
        count = self.rows.shape[0] // max(int(np.prod(self.sizes)), 1)
        return self.xp.arange(count, dtype=np.int64).reshape(-1, *(1,) * (rank - 1))

    def length(self, axis: int, like: Any) -> Any:
        """Return the size of a spatial axis in the dtype of `like`."""
        return like.dtype.type(self.sizes[axis])

    def floor(self, at: Any) -> Any:
        return self.xp.floor(at)

    def round(self, at: Any) -> Any:
        return self.xp.rint(at)

    def clip(self, at: Any, low: Any, high: Any) -> Any:
        return self.xp.clip(at, low, high)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.xp.where(condition, a, b)

    def both(self, a: Any, b: Any) -> Any:
        return a & b

    def ceil(self, at: Any) -> Any:
        return self.xp.ceil(at)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.xp.maximum(a, b)

    def largest(self, at: Any) -> Any:
        """Return the largest element, as an integer."""
        return int(at.max())

    def steps(self, count: Any, like: Any) -> Any:
        """Return 0, 1, ..., count - 1 in the dtype of `like`."""
        limits.require_memory(8 * count, "samples along an axis")
        return self.xp.arange(count).astype(like.dtype)

    def admit(self, *factors: Any) -> None:
        """Raise OutOfMemory if samples of the broadcast shape of `factors` would exceed the memory limit."""
        count = math.prod(np.broadcast_shapes(*(f.shape for f in factors))) * self.rows.shape[1]
        limits.require_memory(count * self.rows.dtype.itemsize, "samples of an image")

    def with_axes(self, at: Any, *axes: int) -> Any:
        """Insert axes of size 1 at these positions of the result."""
        return self.xp.expand_dims(at, axes)

    def join(self, *parts: Any) -> Any:
        """Concatenate arrays along the last axis."""
        return self.xp.concatenate(parts, axis=-1)

    def total(self, at: Any, *axes: int) -> Any:
        return self.xp.sum(at, axis=axes)

    def peak(self, at: Any, *axes: int) -> Any:
        return self.xp.max(at, axis=axes)

    def whole(self, at: Any) -> Any:
        return at.astype(np.int64)

    def take(self, index: Any) -> Any:
        """Rows of channels at positions of the flat image: [*index, C]."""
        return self.xp.take(self.rows, index, axis=0)

    def weighted(self, rows: Any, weight: Any) -> Any:
        return rows * weight.astype(rows.dtype)[..., None]


class GraphImage:
    """x: [N, C, *spatial] as a graph value of known rank."""

    def __init__(self, x: Any):
        self.x = x
        self.sizes = tuple(_size(x, axis) for axis in range(2, x.rank))
        last = F.transpose(x, perm=(0, *range(2, x.rank), 1))
        flat = F.concat(np.array([-1], np.int64), F.shape(x, start=1, end=2), axis=0)
        self.rows = F.reshape(last, flat)

    def batch(self, rank: int) -> Any:
        zero, one = np.array(0, np.int64), np.array(1, np.int64)
        count = F.squeeze(F.shape(self.x, start=0, end=1), np.array([0]))
        return F.unsqueeze(F.range(zero, count, one), np.arange(1, rank))

    def length(self, axis: int, like: Any) -> Any:
        return _converted(self.sizes[axis], like)

    def floor(self, at: Any) -> Any:
        return F.floor(at)

    def round(self, at: Any) -> Any:
        return F.round(at)

    def clip(self, at: Any, low: Any, high: Any) -> Any:
        return F.clip(at, as_value(low, at), as_value(high, at))

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        like = a if isinstance(a, Value) else b
        return F.where(condition, as_value(a, like), as_value(b, like))

    def both(self, a: Any, b: Any) -> Any:
        return F.and_(a, b)

    def ceil(self, at: Any) -> Any:
        return F.ceil(at)

    def maximum(self, a: Any, b: Any) -> Any:
        return F.max(a, as_value(b, a))

    def largest(self, at: Any) -> Any:
        return F.cast(F.reduce_max(at, keepdims=False), to=DType.INT64)

    def steps(self, count: Any, like: Any) -> Any:
        if isinstance(count, int):
            limits.require_memory(8 * count, "samples along an axis")
            return F.constant(value=np.arange(count).astype(like.dtype.numpy))
        return F.cast(F.range(np.array(0, np.int64), count, np.array(1, np.int64)), to=like.dtype)

    def admit(self, *factors: Any) -> None:
        """Do nothing: the run of the graph checks its memory."""

    def with_axes(self, at: Any, *axes: int) -> Any:
        return F.unsqueeze(at, np.array(axes, np.int64))

    def join(self, *parts: Any) -> Any:
        return F.concat(*parts, axis=-1)

    def total(self, at: Any, *axes: int) -> Any:
        return F.reduce_sum(at, np.array(axes, np.int64), keepdims=False)

    def peak(self, at: Any, *axes: int) -> Any:
        return F.reduce_max(at, np.array(axes, np.int64), keepdims=False)

    def whole(self, at: Any) -> Any:
        return F.cast(at, to=DType.INT64)

    def take(self, index: Any) -> Any:
        return F.gather(self.rows, index, axis=0)

    def weighted(self, rows: Any, weight: Any) -> Any:
        weight = weight if weight.dtype is rows.dtype else F.cast(weight, to=rows.dtype)
        return F.mul(rows, F.unsqueeze(weight, np.array([-1], np.int64)))


def check_sampled(x: TensorType, y: TensorType) -> None:
    """Raise TypeMismatch if samples y of images x: [N, C, *spatial] have elements but the images have no positions."""
    if x.shape is None or y.shape is None or not all(isinstance(size, int) and size for size in y.shape):
        return
    empty = [axis for axis, size in enumerate(x.shape) if axis >= 2 and size == 0]
    if empty:
        raise TypeMismatch(f"images {x} cannot be sampled: axis {empty[0]} has size 0")


def length_of_axis(x: Any, axis: int, like: Any) -> Any:
    """Return the size of a spatial axis of a graph value in the dtype of `like`."""
    return _converted(_size(x, 2 + axis), like)


def _converted(size: Any, like: Any) -> Any:
    return scalar_like(float(size), like) if isinstance(size, int) else F.cast(size, to=like.dtype)


def _size(x: Any, axis: int) -> Any:
    """Return the size of an axis: an int if static, else a 0-d int64 value."""
    size = x.shape[axis]
    return F.gather(F.shape(x), np.array(axis, np.int64)) if isinstance(size, DimExpr) else size


# Function that maps places beyond the axis into it, before they are clipped. None: places beyond the axis have weight
# 0.
Fold: TypeAlias = Callable[[Any], Any] | None


class Tap(NamedTuple):
    """Positions along one axis that are read, and their weights (None: 1)."""

    place: Any
    weight: Any


def linear_taps(image: Any, axis: int, at: Any, fold: Fold) -> list[Tap]:
    """Return taps for the two neighbours of each coordinate."""
    low = image.floor(at)
    rest = at - low
    return [tap(image, axis, low, 1.0 - rest, fold), tap(image, axis, low + 1.0, rest, fold)]


def cubic_taps(image: Any, axis: int, at: Any, fold: Fold) -> list[Tap]:
    """Return taps for the four nearest elements of each coordinate, weighted by the kernel of Keys."""
    low = image.floor(at)
    rest = at - low
    weights = (_far(rest + 1.0), _near(rest), _near(1.0 - rest), _far(2.0 - rest))
    return [tap(image, axis, low + float(i - 1), weight, fold) for i, weight in enumerate(weights)]


def _near(t: Any) -> Any:
    return ((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1.0


def _far(t: Any) -> Any:
    return ((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC


def unmoved(places: Any) -> Any:
    """Fold that changes nothing: clipping then moves places beyond the axis to its first or last element."""
    return places


def tap(image: Any, axis: int, at: Any, weight: Any, fold: Fold) -> Tap:
    """Return the tap at these coordinates, which are whole numbers."""
    last = image.length(axis, at) - 1.0
    if fold is None:
        inside = image.both(at >= 0.0, at <= last)
        weight = image.where(inside, at * 0.0 + 1.0 if weight is None else weight, 0.0)
    else:
        at = fold(at)
    # A NaN coordinate reads position 0, so that only its weight is NaN.
    return Tap(image.whole(image.where(at >= 0.0, image.clip(at, 0.0, last), 0.0)), weight)


def terms(image: Any, batch: Any, taps: Sequence[Sequence[Tap]]) -> Iterator[Any]:
    """Yield the weighted elements [*points, C] for each combination of one tap per axis. Places broadcast."""
    for chosen in itertools.product(*taps):
        index, weight = batch, None
        for axis, (place, factor) in enumerate(chosen):
            index = index * image.sizes[axis] + place
            if factor is not None:
                weight = factor if weight is None else weight * factor
        rows = image.take(index)
        yield rows if weight is None else image.weighted(rows, weight)


def interpolated(image: Any, batch: Any, taps: Sequence[Sequence[Tap]]) -> Any:
    """Return the sum of `terms`: [*points, C]."""
    total = None
    for term in terms(image, batch, taps):
        total = term if total is None else total + term
    return total
