"""Slices with any steps, and their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.bounds import at_least_zero, lesser, never_below
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, FLOATS, INDICES, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, apply, op
from graphkit.ops.axes import contiguous, flat_positions, i64, length_of, normal_axes, scatter_flat
from graphkit.ops.known_elements import index_array, known_array, moved

# Exporters write INT_MAX, INT32_MAX and their negatives for "to the end".
_FAR = 2**31 - 1
_END, _START = int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min)


def _clamped(size: int, start: int, end: int, step: int) -> slice:
    """Return the Python slice of an axis of `size`, with bounds clamped as in the standard."""
    if step == 0:
        raise TypeMismatch("the step of a slice must not be 0")
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
    return slice(start, None if end < 0 else end, step) if start > end else slice(0, 0)


def sliced(size: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """Return the number of elements of a slice of an axis of `size`; a new symbol if the sign of a bound is unknown."""
    if not dims.is_static(step) or step == 0:
        return dims.fresh()
    if dims.is_static(size) and dims.is_static(start) and dims.is_static(end):
        return len(range(size)[_clamped(size, start, end, step)])
    first = _offset(size, start)
    last = _offset(size, end)
    if first is None or last is None:
        return dims.fresh()
    if step > 0:
        # `last` is not clamped from below, nor `first` from above: that matters only if the result is empty anyway.
        if never_below(-1, start) and never_below(last, size) and step == 1:
            return lesser(size, 0 - start)
        length = dims.ceildiv(lesser(last, size) - at_least_zero(first), step)
    else:
        first = lesser(at_least_zero(first), size - 1) if start != -1 else first
        last = lesser(last, size - 1) if never_below(last, -1) else dims.dim_max(last, -1)
        length = dims.ceildiv(first - last, 0 - step)
    return at_least_zero(length)


def _offset(size: Dim, bound: Dim) -> Dim | None:
    """Return a bound counted from the front, not clamped; None if its sign is unknown."""
    if dims.is_static(bound):
        if bound >= _FAR:
            return size
        if bound <= -_FAR:
            return -1
    if never_below(bound, 0):
        return bound
    return size + bound if never_below(-1, bound) else None


def slice_index(shape: Sequence[int], starts: Any, ends: Any, axes: Any, steps: Any) -> tuple[slice, ...]:
    """Return the numpy index of a slice, from arrays."""
    rank = len(shape)
    first, last = starts.tolist(), ends.tolist()
    where = normal_axes(range(len(first)) if axes is None else axes.tolist(), rank)
    stride = [1] * len(first) if steps is None else steps.tolist()
    index = [slice(None)] * rank
    for axis, a, b, s in zip(where, first, last, stride, strict=True):
        index[axis] = _clamped(shape[axis], a, b, s)
    return tuple(index)


_SAMPLES: tuple[tuple[Any, ...], ...] = (
    ((4, 5), i64(1, 0), i64(3, 4)),
    ((4, 5), i64(1), i64(-1), i64(-1)),
    ((4, 5), i64(0, 1), i64(_END, 5), i64(1, 0), i64(2, 3)),
    ((4, 5), i64(-1), i64(_START), i64(0), i64(-1)),
    ((5,), i64(4), i64(0), i64(0), i64(-2)),
    ((5,), i64(-100), i64(100)),
    ((5,), i64(3), i64(1)),
    ((0, 2), i64(0), i64(3), i64(0)),
    ((0, 2), i64(-1), i64(_START), i64(0), i64(-1)),
    ((2, 3, 4), np.array([1, 0], np.int32), np.array([2, 2], np.int32), np.array([2, 0], np.int32)),
    ((2, 3), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)),
)


@op
class Slice(Op):
    """x[start:end:step] along each of `axes` (by default the first ones); bounds are clamped, steps may be negative.

    starts, ends, axes, steps: integer vectors of one length.
    """

    inputs = ("x", "starts", "ends", "axes?", "steps?")
    types = {"x": ANY, "starts": INDICES, "ends": "starts", "axes": "starts", "steps": "starts"}
    symbolic_inference = True
    onnx = Onnx("Slice", since=13)
    samples = lambda: tuple(Sample(*operands) for operands in _SAMPLES)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        starts, _, axes, steps = (None if t is None else t.constants for t in (*inputs[1:], None, None)[:4])
        if starts is None or not self._has_examples(("x",), inputs, batched):
            return False
        rank = len(inputs[0].known_shape)
        where = range(len(starts)) if len(inputs) < 4 or inputs[3] is None else axes or ()
        # Along the batch axis, a slice must keep all examples: start 0, step 1. Its end is not checked: the result has
        # as many examples as x.
        forward = steps or (1,) * len(starts) if len(inputs) < 5 or inputs[4] is None or steps is not None else ()
        taken = zip(where, starts, forward, strict=False)
        return len(where) == len(forward) == len(starts) and all(
            axis % rank or (start, step) == (0, 1) for axis, start, step in taken
        )

    def infer(
        self,
        x: TensorType,
        starts: TensorType,
        ends: TensorType,
        axes: TensorType | None = None,
        steps: TensorType | None = None,
    ) -> TensorType:
        operands = [t for t in (starts, ends, axes, steps) if t is not None]
        counts = {n for n in map(length_of, operands) if n is not None}
        lengths = [t.shape[0] for t in operands if t.shape is not None]
        if len(counts) > 1 or not all(dims.may_equal(lengths[0], n) for n in lengths[1:]):
            raise TypeMismatch(f"starts, ends, axes, steps have different lengths: {sorted(counts)}")
        if x.shape is None:
            return TensorType(x.dtype, None)
        rank = len(x.shape)
        count = next(iter(counts), None)
        if axes is None and count is not None:
            where = normal_axes(range(count), rank)
        elif axes is not None and axes.constants is not None:
            where = normal_axes(axes.constants, rank)
        else:
            return TensorType(x.dtype, [dims.fresh() for _ in x.shape])
        bounds = [t.value or (None,) * len(where) for t in (starts, ends)]
        strides = (1,) * len(where) if steps is None else steps.value or (None,) * len(where)
        if 0 in strides:
            raise TypeMismatch("the step of a slice must not be 0")
        shape = list(x.shape)
        for axis, a, b, s in zip(where, *bounds, strides, strict=True):
            known = a is not None and b is not None and s is not None
            shape[axis] = sliced(shape[axis], a, b, s) if known else dims.fresh()
        value = None
        if x.value is not None:
            given = [None if t is None else index_array(t) for t in (starts, ends, axes, steps)]
            if all((g is None) == (t is None) for g, t in zip(given, (starts, ends, axes, steps), strict=True)):
                value = moved(lambda xp, data: self.reference(xp, data, *given), known_array(x))
        return TensorType(x.dtype, shape, value)

    def reference(self, xp: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        return contiguous(xp, x[slice_index(x.shape, starts, ends, axes, steps)])

    def grad(self, node: Node, dy: Any) -> Any:
        x, *bounds = node.inputs
        return apply(SliceGrad(), dy, x, *bounds), *[None] * len(bounds)


@op
class SliceGrad(Op):
    """Gradient of Slice: zeros of x's shape, with dy where Slice took its elements. Only x's shape is read."""

    domain = DOMAIN
    inputs = ("dy", "x", "starts", "ends", "axes?", "steps?")
    types = {"dy": FLOATS, "x": ANY, "starts": INDICES, "ends": "starts", "axes": "starts", "steps": "starts"}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        made = []
        for shape, *operands in _SAMPLES:
            absent = [None] * (4 - len(operands))
            taken = np.empty(shape)[slice_index(shape, *operands, *absent)].shape
            made.append(Sample(taken, shape, *operands))
        return tuple(made)

    def infer(self, dy: TensorType, x: TensorType, *bounds: TensorType | None) -> TensorType:
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
        result = xp.zeros(x.shape, dtype=dy.dtype)
        result[slice_index(x.shape, starts, ends, axes, steps)] = dy
        return result

    def grad(self, node: Node, dy: Any) -> Any:
        _, _, *bounds = node.inputs
        return apply(Slice(), dy, *bounds), *[None] * (1 + len(bounds))

    def expand(self, dy: Any, x: Any, *bounds: Any) -> Any:
        pads = self._pads(x.tensor, *(None if b is None else b.tensor for b in bounds))
        if pads is not None:
            return F.pad(dy, pads)
        return scatter_flat(dy, F.slice(flat_positions(x), *bounds), x, unique=True)

    @staticmethod
    def _pads(x: TensorType, *bounds: TensorType | None) -> np.ndarray | None:
        """Return the number of elements that a slice omits on each side; None unless bounds are known and steps 1."""
        arrays = [index_array(b) for b in bounds]
        if not x.is_static or any(a is None and b is not None for a, b in zip(arrays, bounds, strict=True)):
            return None
        index = slice_index(x.static_shape, *arrays, *[None] * (4 - len(arrays)))
        spans = [range(size)[part] for size, part in zip(x.static_shape, index, strict=True)]
        if any(s.step != 1 for s in spans):
            return None
        before = [s.start for s in spans]
        return i64(*before, *(n - s.start - len(s) for n, s in zip(x.static_shape, spans, strict=True)))
