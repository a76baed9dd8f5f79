"""Pooling: maximum and average over sliding windows, and their adjoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOATS, INDICES, DType, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op
from graphkit.ops.nn.sliding_window import (
    Sliding,
    Window,
    overrun,
    pad_spatial,
    padding,
    spatial_sizes,
    taps,
    transposed_convolution,
)
from graphkit.ops.operands import fits


class Pooling(Sliding):
    """Base of pooling: a window without weights over x [N, C, *spatial].

    `ceil_mode` allows a last window that extends beyond the padding.
    """

    ceil_mode: bool = False
    symbolic_inference = True
    types = {"x": FLOATS}

    def window_of(self, spatial: Sequence[Dim]) -> Window:
        """Return the window over these spatial sizes. Raises TypeMismatch."""
        if self.kernel_shape is None:
            raise TypeMismatch("kernel_shape is required")
        if any(k < 1 for k in self.kernel_shape):
            raise TypeMismatch(f"kernel_shape={self.kernel_shape} is empty")
        return self.window(spatial, self.kernel_shape)

    def pooled(self, x: TensorType) -> tuple[Dim, ...]:
        """Return the shape of the result."""
        if self.kernel_shape is None:
            raise TypeMismatch("kernel_shape is required")
        rank = len(self.kernel_shape)
        shape = tuple(dims.fresh() for _ in range(rank + 2)) if x.shape is None else x.shape
        if len(shape) != rank + 2:
            raise TypeMismatch(f"{x} does not have two axes and the {rank} of kernel_shape={self.kernel_shape}")
        window = self.window_of(shape[2:])
        return (*shape[:2], *self.positions(shape[2:], window, self.ceil_mode))

    def _plan(self, x: Any) -> tuple[Window, tuple[int, ...]]:
        window = self.window_of(x.shape[2:])
        return window, self.positions(x.shape[2:], window, self.ceil_mode)  # type: ignore[return-value]

    def _sum(self, xp: Any, x: Any) -> Any:
        """Return the sum over each window; padding counts as 0."""
        window, positions = self._plan(x)
        padded = pad_spatial(xp, x, window.begin, overrun(x.shape[2:], window, positions))
        total = xp.zeros((*x.shape[:2], *positions), dtype=x.dtype)
        for _, index in taps(window, positions):
            total += padded[index]
        return total

    def related(self) -> dict[str, Any]:
        """Return the attributes, for other operators of the same pool."""
        return {key: getattr(self, key) for key in self.fields}


_POOLS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((2, 3, 4, 4), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((1, 2, 5, 6), {"kernel_shape": (3, 2), "pads": (1, 0, 1, 1), "strides": (2, 1)}),
    ((1, 2, 6, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": True}),
    ((1, 2, 6, 6), {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1), "strides": (3, 3), "ceil_mode": True}),
    ((1, 2, 7, 7), {"kernel_shape": (2, 3), "dilations": (3, 2), "pads": (1, 2, 1, 2)}),
    ((1, 2, 5, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    ((1, 2, 5, 6), {"kernel_shape": (2, 2), "strides": (1, 2), "auto_pad": "SAME_LOWER"}),
    ((1, 2, 5, 6), {"kernel_shape": (2, 3), "strides": (2, 2), "auto_pad": "VALID"}),
    ((2, 2, 7), {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1)}),
    ((1, 2, 4, 3, 5), {"kernel_shape": (2, 2, 3), "strides": (2, 1, 2)}),
    ((0, 2, 4, 4), {"kernel_shape": (2, 2)}),
)


def _pool_samples(**attrs: Any) -> tuple[Sample, ...]:
    return tuple(Sample(shape, **geometry, **attrs) for shape, geometry in _POOLS)


@op
class MaxPool(Pooling):
    """Maximum of each window, and its position in x as an index into the flattened tensor.

    If several elements are equal to the maximum, the position is that of the first one. With storage_order=0, positions
    are counted as in memory, with the last spatial axis fastest. With storage_order=1, the first spatial axis is
    fastest (column-major within each channel).

    x: [N, C, *spatial] -> [N, C, *positions]. kernel_shape: size of the window on each spatial axis. ceil_mode=True
    admits a last window that runs over the end of x. auto_pad, dilations, pads and strides are those of Conv.
    """

    storage_order: int = 0
    inputs = ("x",)
    outputs = ("y", "indices")
    types = {"x": FLOATS | {DType.INT8, DType.UINT8}}
    onnx = Onnx("MaxPool", since=22)
    samples = lambda: (
        *_pool_samples(),
        Sample((2, 2, 4, 5), kernel_shape=(2, 2), strides=(2, 2), storage_order=1),
        Sample(np.arange(32, dtype=np.uint8).reshape(1, 2, 4, 4)[:, :, ::-1].copy(), kernel_shape=(3, 3)),
    )

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        shape = self.pooled(x)
        return TensorType(x.dtype, shape), TensorType(DType.INT64, shape)

    def reference(self, xp: Any, x: Any) -> tuple[Any, Any]:
        window, positions = self._plan(x)
        spatial = x.shape[2:]
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        padded = pad_spatial(xp, x, window.begin, overrun(spatial, window, positions), lowest)
        steps = [1]  # strides of the spatial axes in the flattened image
        for size in spatial[:0:-1] if self.storage_order == 0 else spatial[:-1]:
            steps.append(steps[-1] * size)
        if self.storage_order == 0:
            steps.reverse()
        best: Any = None
        where: Any = None
        for offset, index in taps(window, positions):
            candidate = padded[index]
            place, inside = xp.zeros((1,) * len(spatial), dtype=np.int64), True
            for axis, (n, o, size) in enumerate(zip(positions, offset, spatial, strict=True)):
                rows = xp.arange(n, dtype=np.int64) * window.strides[axis]
                rows = (rows + (o * window.dilations[axis] - window.begin[axis])).reshape(
                    -1, *(1,) * (len(spatial) - 1 - axis)
                )
                place = place + rows * steps[axis]
                inside = inside & (rows >= 0) & (rows < size)
            # -1 marks padding. An element that equals the padding value takes precedence over padding.
            place = xp.where(inside, place, -1)
            if best is None:
                best, where = candidate.copy(), xp.array(xp.broadcast_to(place, candidate.shape))
                continue
            better = (candidate > best) | ((where < 0) & (place >= 0))
            if x.dtype.kind not in "iu":
                better = better | (xp.isnan(candidate) & ~xp.isnan(best))
            best = xp.where(better, candidate, best)
            where = xp.where(better, place, where)
        where = xp.maximum(where, 0)
        planes = xp.arange(x.shape[0] * x.shape[1], dtype=np.int64) * math.prod(spatial)
        return best, where + planes.reshape(*x.shape[:2], *(1,) * len(spatial))

    def grad(self, node: Node, dy: Any, _indices: Any = None) -> Any:
        operands: Any = node.inputs
        (x,) = operands
        if dy is None:
            return None
        indices = node.outputs[1]
        if self.storage_order:
            _, indices = F.max_pool(x, **{**self.related(), "storage_order": 0})
        kernel = self.kernel_shape or ()
        strides = self.per_axis("strides", len(kernel), 1, 1)
        dilations = self.per_axis("dilations", len(kernel), 1, 1)
        apart = all((k - 1) * d < s for k, d, s in zip(kernel, dilations, strides, strict=True))
        return F.max_pool_grad(dy, indices, x, disjoint=apart)


@op
class MaxPoolGrad(Op):
    """Gradient of MaxPool: add each element of dy to the element of the result at its index (see MaxPool).

    dy, indices: [N, C, *positions]; only the shape of x, [N, C, *spatial], is used. `disjoint` promises that no
    position occurs twice (the windows do not overlap).
    """

    disjoint: bool = False
    domain = DOMAIN
    inputs = ("dy", "indices", "x")
    outputs = ("dx",)
    types = {"dy": FLOATS, "indices": INDICES}
    shape_only = ("x",)
    samples = lambda: (
        Sample((1, 2, 2, 2), np.array([0, 1, 5, 3, 9, 11, 14, 12]).reshape(1, 2, 2, 2), (1, 2, 3, 3), disjoint=True),
        Sample((1, 2, 2, 2), np.array([4, 4, 4, 8, 9, 11, 13, 13]).reshape(1, 2, 2, 2), (1, 2, 3, 3)),
        Sample((0, 2, 2), np.zeros((0, 2, 2), np.int64), (0, 2, 3)),
    )

    def infer(self, dy: TensorType, indices: TensorType, x: TensorType) -> TensorType:
        if not fits(dy.shape, indices.shape):
            raise TypeMismatch(f"the output gradient {dy} and the indices {indices} must have the same shape")
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, indices: Any, x: Any) -> Any:
        size = math.prod(x.shape)
        if self.disjoint or not xp.is_numpy or dy.dtype != np.float64:
            total = xp.zeros(size, dtype=dy.dtype)
            if self.disjoint:
                total[indices.reshape(-1)] = dy.reshape(-1)
            else:
                xp.scatter_add(total, indices.reshape(-1), dy.reshape(-1))
        else:
            total = xp.bincount(indices.reshape(-1), weights=dy.reshape(-1), minlength=size)
        return total.reshape(x.shape)

    def grad(self, node: Node, ddx: Any) -> Any:
        return F.gather(F.reshape(ddx, np.array([-1], np.int64)), node.operands[1], axis=0), None, None

    def expand(self, dy: Any, indices: Any, x: Any) -> Any:
        shape = F.shape(x)
        zeros = F.constant_of_shape(F.reduce_prod(shape, keepdims=True), value=np.zeros(1, dy.dtype.numpy))
        flat = np.array([-1], np.int64)
        reduction = "none" if self.disjoint else "add"
        total = F.scatter_elements(zeros, F.reshape(indices, flat), F.reshape(dy, flat), axis=0, reduction=reduction)
        return F.reshape(total, shape)


def _counts(spatial: Sequence[Any], window: Window, positions: Sequence[Any], padded: bool) -> list[np.ndarray] | None:
    """Return the number of elements of each window, per axis; None for unknown sizes. padded: count padding."""
    if not window.is_static or any(isinstance(v, DimExpr) for v in (*spatial, *positions)):
        return None
    result = []
    for axis, (n, o) in enumerate(zip(spatial, positions, strict=True)):
        begin, end = window.begin[axis], window.end[axis]
        starts = np.arange(o) * window.strides[axis] - begin
        places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
        low, high = (-begin, n + end) if padded else (0, n)
        result.append(((places >= low) & (places < high)).sum(axis=1))
    return result


class AveragePooling(Pooling):
    """Base of AveragePool and its adjoint: the number of elements by which each window's sum is divided.

    Padding counts if `count_include_pad` is set; positions after the padding, which ceil_mode may add, never count.
    """

    count_include_pad: bool = False

    def divisors(self, x: Any, y: Any, dtype: DType) -> Any:
        """The divisor of each window, broadcastable to y: [N, C, *positions]; an array when sizes are static.

        x and y are values, or arrays; only their shapes are used.
        """
        spatial, positions = x.shape[2:], y.shape[2:]
        window = self.window_of(spatial)
        rank = len(spatial)
        padded = self.count_include_pad
        nothing_padded = window.is_static and not any(window.pads) and not self.checked_auto_pad().startswith("SAME")
        if not self.ceil_mode and (padded or nothing_padded):
            return np.asarray(math.prod(self.kernel_shape or ()), dtype.numpy)
        known = _counts(spatial, window, positions, padded)
        if known is not None:
            product = np.ones((1,) * rank)
            for axis, count in enumerate(known):
                product = product * count.reshape(-1, *(1,) * (rank - 1 - axis))
            return product.astype(dtype.numpy)
        return self._divisors_value(x, y, window, dtype)

    def _divisors_value(self, x: Any, y: Any, window: Window, dtype: DType) -> Any:
        """Compute the divisors in the graph, from sizes at run time."""
        weights = np.empty((1, 1, *(self.kernel_shape or ())), np.float32)
        begin, end = padding(self, x, F.constant(value=weights), window, y)
        sizes, counts = spatial_sizes(x), spatial_sizes(y)
        zero, one = np.array(0, np.int64), np.array(1, np.int64)
        low: Value | np.ndarray
        if self.count_include_pad:
            low, high = F.neg(begin), F.add(sizes, end)
        else:
            low, high = np.zeros(len(window.kernel), np.int64), sizes
        product: Any = None
        for axis in range(len(window.kernel)):
            at = np.array(axis, np.int64)
            starts = F.mul(F.range(zero, F.gather(counts, at), one), np.array(window.strides[axis], np.int64))
            offsets = np.arange(window.kernel[axis], dtype=np.int64) * window.dilations[axis]
            places = F.add(F.unsqueeze(F.sub(starts, F.gather(begin, at)), np.array([1])), offsets)
            inside = F.and_(F.greater_or_equal(places, F.gather(low, at)), F.less(places, F.gather(high, at)))
            count = F.reduce_sum(F.cast(inside, to=dtype), np.array([1]), keepdims=False)
            trailing = len(window.kernel) - 1 - axis
            if trailing:
                count = F.unsqueeze(count, np.arange(1, trailing + 1))
            product = count if product is None else F.mul(product, count)
        return product


@op
class AveragePool(AveragePooling):
    """Mean of each window; padding counts only with `count_include_pad`.

    x: [N, C, *spatial] -> [N, C, *positions]. The other attributes are those of MaxPool.
    """

    per_example = ("x",)
    inputs = ("x",)
    onnx = Onnx("AveragePool", since=22)
    samples = lambda: (*_pool_samples(), *_pool_samples(count_include_pad=True))

    def infer(self, x: TensorType) -> TensorType:
        return TensorType(x.dtype, self.pooled(x))

    def reference(self, xp: Any, x: Any) -> Any:
        total = self._sum(xp, x)
        return total / xp.asarray(self.divisors(x, total, DType.of(x.dtype)))

    def grad(self, node: Node, dy: Any) -> Any:
        return F.average_pool_grad(dy, node.operands[0], **self.related())


@op
class AveragePoolGrad(AveragePooling):
    """Gradient of AveragePool: each element of dy, divided by the count of its window, is added to the whole window.

    dy: [N, C, *positions]; only the shape of x, [N, C, *spatial], is used. The attributes are AveragePool's.
    """

    domain = DOMAIN
    inputs = ("dy", "x")
    outputs = ("dx",)
    types = {"dy": FLOATS}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        both = [(shape, {**attrs, "count_include_pad": flag}) for shape, attrs in _POOLS for flag in (False, True)]
        return tuple(Sample(_pooled_shape(shape, attrs), shape, **attrs) for shape, attrs in both)

    def infer(self, dy: TensorType, x: TensorType) -> TensorType:
        expected = self.pooled(x)
        if not fits(dy.shape, expected):
            raise TypeMismatch(f"the output gradient {dy} does not fit the output [{', '.join(map(str, expected))}]")
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, x: Any) -> Any:
        window, positions = self._plan(x)
        spatial = x.shape[2:]
        share = dy / xp.asarray(self.divisors(x, dy, DType.of(dy.dtype)))
        end = overrun(spatial, window, positions)
        sizes = [n + b + e for n, b, e in zip(spatial, window.begin, end, strict=True)]
        total = xp.zeros((*dy.shape[:2], *sizes), dtype=dy.dtype)
        for _, index in taps(window, positions):
            total[index] += share
        inner = tuple(slice(b, b + n) for b, n in zip(window.begin, spatial, strict=True))
        return xp.ascontiguousarray(total[(..., *inner)])

    def grad(self, node: Node, ddx: Any) -> Any:
        return F.average_pool(ddx, **self.related()), None

    def expand(self, dy: Any, x: Any) -> Any:
        """Build a transposed convolution with weights 1, with channels as images."""
        if x.shape is None:
            raise UnsupportedError(f"AveragePoolGrad in standard operators needs an operand of known rank, not {x}")
        share = F.div(dy, self.divisors(x, dy, dy.dtype))
        return _spread(self, share, x)


def _spread(op: Pooling, share: Any, x: Any) -> Any:
    """Add each element of `share` to all elements of its window. x has a known rank; the result has x's shape."""
    sizes = F.shape(share, start=2)
    images = F.reshape(share, F.concat(np.array([-1, 1], np.int64), sizes, axis=0))
    weights = F.constant(value=np.ones((1, 1, *(op.kernel_shape or ())), share.dtype.numpy))
    spread = transposed_convolution(op, images, weights, x, op.window_of(x.shape[2:]), 1)
    return F.reshape(spread, F.shape(x))


def _pooled_shape(shape: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    return AveragePool(**attrs).infer(TensorType("float32", shape)).static_shape
