"""Gradients of convolution and pooling of data with the channels last, [N, *spatial, C].

The pass `channels_last` puts these operators into graphs that train. Weights and their gradients keep the standard
order unless `filters_last` says otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Sample, op
from graphkit.ops.internal.channels_last import (
    _OF_LAST_FILTERS,
    ChannelsLast,
    ChannelsLastConvolution,
    _first,
    _last,
    _moved,
    _shape_last,
    _transposed,
    to_first,
    to_last,
)
from graphkit.ops.nn.conv import _GEOMETRIES, ConvGradInput, ConvGradWeight, _positions
from graphkit.ops.nn.pool import _POOLS, AveragePoolGrad, AveragePooling, MaxPool, Pooling, _pooled_shape
from graphkit.ops.nn.sliding_window import overrun, pad_spatial, padding, spatial_sizes, taps
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like


@op
class ChannelsLastConvGradInput(ChannelsLastConvolution):
    """ConvGradInput of dy: [N, *positions, M] and w: [M, C / group, *kernel] -> [N, *spatial, C], the shape of x.

    With `filters_last` w is [M, *kernel, C / group].
    """

    domain = DOMAIN
    inputs = ("dy", "w", "x")
    moved = ("dy", "x")
    outputs = ("dx",)
    types = {"dy": FLOATS, "w": "dy"}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        first = [Sample(_shape_last(_positions(x, w, a)), w, _shape_last(x), **a) for x, w, a in _GEOMETRIES]
        last = (
            Sample(*map(_shape_last, (_positions(x, w, a), w, x)), **a, filters_last=True)
            for x, w, a in _OF_LAST_FILTERS
        )
        return (*first, *last)

    def standard(self) -> ConvGradInput:
        return ConvGradInput(**self.related())


@op
class ChannelsLastConvGradWeight(ChannelsLastConvolution):
    """ConvGradWeight of x: [N, *spatial, C] and dy: [N, *positions, M] -> [M, C / group, *kernel], the type of w.

    With `filters_last` w and the result are [M, *kernel, C / group]. The sum of dy over all positions, [M], is the
    gradient of the convolution's bias.
    """

    domain = DOMAIN
    inputs = ("x", "dy", "w")
    moved = ("x", "dy")
    outputs = ("dw",)
    types = {"x": FLOATS, "dy": "x", "w": FLOATS}
    shape_only = ("w",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        first = [Sample(_shape_last(x), _shape_last(_positions(x, w, a)), w, **a) for x, w, a in _GEOMETRIES]
        last = (
            Sample(*map(_shape_last, (x, _positions(x, w, a), w)), **a, filters_last=True)
            for x, w, a in _OF_LAST_FILTERS
        )
        return (*first, *last)

    @property
    def moves_result(self) -> bool:
        return self.filters_last

    def standard(self) -> ConvGradWeight:
        return ConvGradWeight(**self.related())


def _index_type(kernel: tuple[int, ...] | None) -> DType:
    return DType.UINT8 if int(np.prod(kernel or ())) <= 256 else DType.INT32


@op
class ChannelsLastMaxPoolIndices(Pooling):
    """MaxPool of x: [N, *spatial, C] -> [N, *positions, C]; also returns each maximum's index within its window.

    Elements of a window, padding included, are counted in row-major order; if elements tie, the first one counts.
    Indices are uint8, or int32 for windows of more than 256 elements.
    """

    domain = DOMAIN
    former_names = ("ChannelsLastMaxPoolTaps",)
    inputs = ("x",)
    outputs = ("y", "indices")
    samples = lambda: tuple(Sample(_shape_last(shape), **geometry) for shape, geometry in _POOLS)

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        placed: Any = _first(x)
        y = _last(MaxPool(**self.related()).infer(placed)[0])
        return y, TensorType(_index_type(self.kernel_shape), y.shape)

    def reference(self, xp: Any, x: Any) -> tuple[Any, Any]:
        planes = _moved(xp, x, to_first)
        window, positions = self._plan(planes)
        end = overrun(planes.shape[2:], window, positions)
        padded = pad_spatial(xp, planes, window.begin, end, -np.inf)
        inside = pad_spatial(xp, xp.ones(planes.shape, dtype=bool), window.begin, end)
        best = xp.full((*planes.shape[:2], *positions), -np.inf, dtype=x.dtype)
        where = xp.zeros(best.shape, dtype=_index_type(self.kernel_shape).numpy)
        seen = xp.zeros(best.shape, dtype=bool)
        for tap, (_, index) in enumerate(taps(window, positions)):
            candidate = padded[index]
            better = (candidate > best) | (xp.isnan(candidate) & ~xp.isnan(best)) | (inside[index] & ~seen)
            best = xp.where(better, candidate, best)
            where = xp.where(better, xp.asarray(tap, dtype=where.dtype), where)
            seen = seen | inside[index]
        return _moved(xp, best, to_last), _moved(xp, where, to_last)

    def expand(self, x: Any) -> tuple[Any, Any]:
        planes = _transposed(x, to_first)
        y, indices = F.max_pool(planes, **self.related())
        window, starts, sizes = _windows(self, planes, y)
        place = F.mod(indices, F.reduce_prod(sizes, keepdims=False))
        number: Any = None
        for axis in reversed(range(len(starts))):
            size = F.gather(sizes, _constant(axis))
            element = F.div(F.sub(F.mod(place, size), starts[axis]), _constant(window.dilations[axis]))
            place = F.div(place, size)
            step = math.prod(window.kernel[axis + 1 :])
            part = F.mul(F.max(element, _constant(0)), _constant(step))
            number = part if number is None else F.add(number, part)
        return _transposed(y, to_last), _transposed(F.cast(number, to=_index_type(self.kernel_shape)), to_last)


def _windows(op: Pooling, x: Any, y: Any) -> tuple[Any, list[Any], Any]:
    """For x and y in the standard order: the window, where windows start along each axis, and the spatial sizes."""
    if x.shape is None:
        raise UnsupportedError(f"{op.name} in standard operators needs an operand of known rank, not {x}")
    window = op.window_of(x.shape[2:])
    rank = len(window.kernel)
    begin, _ = padding(op, x, F.constant(value=np.empty((1, 1, *window.kernel), np.float32)), window, y)
    counts = spatial_sizes(y)
    starts = []
    for axis in range(rank):
        number = F.range(_constant(0), F.gather(counts, _constant(axis)), _constant(1))
        start = F.sub(F.mul(number, _constant(window.strides[axis])), F.gather(begin, _constant(axis)))
        behind = rank - 1 - axis
        starts.append(F.unsqueeze(start, np.arange(1, behind + 1)) if behind else start)
    return window, starts, spatial_sizes(x)


def _constant(value: int) -> Any:
    return F.constant(value=np.asarray(value, np.int64))


@op
class ChannelsLastMaxPoolGrad(Pooling):
    """Gradient of ChannelsLastMaxPoolIndices: add each element of dy to the element of x that was the maximum.

    dy, indices: [N, *positions, C]; only the shape of x, [N, *spatial, C], is used. Elements that fall on padding are
    dropped.
    """

    domain = DOMAIN
    inputs = ("dy", "indices", "x")
    outputs = ("dx",)
    types = {"dy": FLOATS, "indices": frozenset({DType.UINT8, DType.INT32})}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        made = []
        for shape, geometry in _POOLS:
            y = _shape_last(_pooled_shape(shape, geometry))
            count = int(np.prod(geometry["kernel_shape"]))
            chosen = (np.arange(int(np.prod(y))) * 7 % count).astype(np.uint8).reshape(y)
            made.append(Sample(y, chosen, _shape_last(shape), **geometry))
        return tuple(made)

    def infer(self, dy: TensorType, chosen: TensorType, x: TensorType) -> TensorType:
        placed: Any = _first(x)
        expected = _last(TensorType(dy.dtype, self.pooled(placed)))
        if not fits(dy.shape, expected.shape) or not fits(chosen.shape, expected.shape):
            raise TypeMismatch(f"the output gradient {dy} and the indices {chosen} do not fit the output {expected}")
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, chosen: Any, x: Any) -> Any:
        g, named = _moved(xp, dy, to_first), _moved(xp, chosen, to_first)
        spatial = x.shape[1:-1]
        window = self.window_of(spatial)
        positions = g.shape[2:]
        end = overrun(spatial, window, positions)
        sizes = [n + b + e for n, b, e in zip(spatial, window.begin, end, strict=True)]
        total = xp.zeros((*g.shape[:2], *sizes), dtype=g.dtype)
        for tap, (_, index) in enumerate(taps(window, positions)):
            total[index] += xp.where(named == tap, g, xp.zeros_like(g))
        inner = tuple(slice(b, b + n) for b, n in zip(window.begin, spatial, strict=True))
        return _moved(xp, total[(..., *inner)], to_last)

    def expand(self, dy: Any, chosen: Any, x: Any) -> Any:
        share, number, planes = (_transposed(v, to_first) for v in (dy, F.cast(chosen, to=DType.INT64), x))
        window, starts, sizes = _windows(self, planes, share)
        place: Any = _constant(0)
        inside: Any = None
        for axis, start in enumerate(starts):
            step = math.prod(window.kernel[axis + 1 :])
            element = F.mod(F.div(number, _constant(step)), _constant(window.kernel[axis]))
            coordinate = F.add(start, F.mul(element, _constant(window.dilations[axis])))
            size = F.gather(sizes, _constant(axis))
            within = F.and_(F.greater_or_equal(coordinate, _constant(0)), F.less(coordinate, size))
            inside = within if inside is None else F.and_(inside, within)
            place = F.add(F.mul(place, size), coordinate)

        def flat(value: Any, extents: Any) -> Any:
            area = F.reduce_prod(extents, keepdims=True)
            return F.reshape(value, F.concat(F.shape(planes, end=2), area, axis=0), allowzero=True)

        shares, places = (
            flat(F.where(inside, v, scalar_like(0, v)), spatial_sizes(share)) for v in (share, place)
        )  # fmt: skip
        area = F.concat(F.shape(planes, end=2), F.reduce_prod(sizes, keepdims=True), axis=0)
        total = F.scatter_elements(F.expand(scalar_like(0, dy), area), places, shares, axis=2, reduction="add")
        return _transposed(F.reshape(total, F.shape(planes), allowzero=True), to_last)


@op
class ChannelsLastAveragePoolGrad(ChannelsLast, AveragePooling):
    """AveragePoolGrad of dy: [N, *positions, C] -> [N, *spatial, C], the shape of x."""

    domain = DOMAIN
    inputs = ("dy", "x")
    moved = ("dy", "x")
    outputs = ("dx",)
    types = {"dy": FLOATS}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        both = [(shape, {**attrs, "count_include_pad": flag}) for shape, attrs in _POOLS for flag in (False, True)]
        return tuple(Sample(_shape_last(_pooled_shape(s, a)), _shape_last(s), **a) for s, a in both)

    def standard(self) -> AveragePoolGrad:
        return AveragePoolGrad(**self.related())
