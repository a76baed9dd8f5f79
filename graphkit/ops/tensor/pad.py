"""Padding with a constant, reflection, edge values or periodic copies, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node
from graphkit.ir.types import ANY, FLOATS, INDICES, TensorType
from graphkit.ops._base import DOMAIN, F, Onnx, Op, Sample, op
from graphkit.ops.axes import (
    INT64,
    contiguous,
    flat_positions,
    fresh_shape,
    i64,
    length_of,
    normal_axes,
    reshape_like,
    scatter_flat,
    shape_text,
)
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like

_MODES = ("constant", "reflect", "edge", "wrap")


def pad_widths(rank: int, pads: Any, axes: Any) -> list[tuple[int, int]]:
    """Return (before, after) for each axis, from arrays."""
    values = pads.tolist()
    where = normal_axes(range(rank) if axes is None else axes.tolist(), rank)
    if len(values) != 2 * len(where):
        raise TypeMismatch(f"pads needs two numbers per axis, {2 * len(where)}; it has {len(values)}")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(where):
        widths[axis] = (values[i], values[len(where) + i])
    return widths


def pad_sources(xp: Any, size: int, before: int, after: int, mode: str) -> Any:
    """Return the position of x that each position of a padded axis copies. Negative pads crop before padding."""
    low, high = max(-before, 0), size + min(after, 0)
    kept = high - low
    position = xp.arange(size + before + after) - max(before, 0)
    if position.size and kept <= 0:
        raise TypeMismatch(
            f"pads ({before}, {after}) of an axis of size {size}: mode {mode!r} copies elements, but none is left"
        )
    if mode == "edge":
        source = xp.clip(position, 0, max(kept - 1, 0))
    elif mode == "wrap":
        source = xp.mod(position, max(kept, 1))
    else:
        period = max(2 * (kept - 1), 1)
        phase = xp.mod(position, period)
        source = xp.minimum(phase, period - phase) if kept > 1 else xp.zeros_like(position)
    return low + source


_SAMPLES: tuple[tuple[Any, ...], ...] = (
    ((3, 2), i64(0, 2, 1, 0)),
    ((3, 4), i64(1, 2, 2, 3)),
    ((2, 3), i64(2, 1), i64(-1)),
    ((2, 3, 3), i64(1, 0, 0, 2), np.array([-1, 0], np.int32)),
    ((4, 5), i64(-1, 2, 1, -2)),
    ((4, 5), i64(-1, -1, -1, 0)),
    ((2, 0), i64(1, 0, 0, 0)),
    ((2, 3), np.zeros(0, np.int64), np.zeros(0, np.int64)),
)


def _shape(x: TensorType, pads: TensorType, axes: TensorType | None) -> Sequence[Dim] | None:
    """Return x's dimensions after padding."""
    if x.shape is None:
        return None
    rank = len(x.shape)
    count = length_of(pads)
    if axes is None:
        where: tuple[int, ...] = tuple(range(rank))
    elif axes.constants is not None:
        where = normal_axes(axes.constants, rank)
    else:
        return fresh_shape(rank)
    if count is not None and count != 2 * len(where):
        raise TypeMismatch(
            f"pads needs two numbers per axis, {2 * len(where)} for {shape_text(x.shape)}; it has {count}"
        )
    shape = list(x.shape)
    for i, axis in enumerate(where):
        if pads.value is None:
            shape[axis] = dims.fresh()
            continue
        size = shape[axis] + pads.value[i] + pads.value[len(where) + i]
        if dims.is_static(size) and size < 0:
            raise TypeMismatch(f"pads {pads} leave {size} elements of axis {axis} of {shape_text(x.shape)}")
        shape[axis] = size
    return shape


@op
class Pad(Op):
    """Add elements (a negative pad: remove them) at both ends of each of `axes`, by default of all axes.

    pads: [begin of every axis, end of every axis]. mode "constant": constant_value, 0 by default; "reflect": mirrored
    at the first and last element, which are not repeated; "edge": the nearest element; "wrap": periodic.
    """

    mode: str = "constant"
    inputs = ("x", "pads", "constant_value?", "axes?")
    types = {"x": ANY, "pads": INT64, "constant_value": "x", "axes": INDICES}
    onnx = Onnx("Pad", since=25)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        pads, axes = inputs[1].constants, inputs[3] if len(inputs) > 3 else None
        return (
            self._has_examples(("x",), inputs, batched)
            and pads is not None
            and axes is None
            and (pads[0] == pads[len(pads) // 2] == 0)
        )

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        made = [Sample(x, pads, None, *axes) for x, pads, *axes in _SAMPLES]
        made += [Sample(x, pads, (), *axes) for x, pads, *axes in _SAMPLES[:3]]
        # onnx's evaluator does not take negative pads; ONNX Runtime does.
        made = [Sample(*s.inputs, onnx=not (s.inputs[1] < 0).any()) for s in made]
        for mode in _MODES[1:]:
            made += [
                Sample(x, pads, None, *axes, mode=mode, onnx=not (pads < 0).any())
                for x, pads, *axes in _SAMPLES
                if not (mode == "reflect" and x == (3, 4)) and 0 not in x
            ]
            # Pads wider than the axis, an axis of one element, and an empty tensor whose empty axis is not padded.
            made += [
                Sample((3, 1), i64(4, 2, 0, 2), None, mode=mode),
                Sample((2, 0), i64(1, 0, 0, 0), None, mode=mode),
            ]
        return (*made, Sample(np.array([["a", "b"]], object), i64(0, 1, 0, 0), np.array("z", object)))

    def infer(
        self,
        x: TensorType,
        pads: TensorType,
        constant_value: TensorType | None = None,
        axes: TensorType | None = None,
    ) -> TensorType:
        if self.mode not in _MODES:
            raise UsageError(f"mode must be one of {', '.join(_MODES)}, not {self.mode!r}")
        return TensorType(x.dtype, _shape(x, pads, axes))

    def reference(self, xp: Any, x: Any, pads: Any, constant_value: Any = None, axes: Any = None) -> Any:
        widths = pad_widths(x.ndim, pads, axes)
        if self.mode != "constant":
            for axis, (before, after) in enumerate(widths):
                if before or after:
                    x = xp.take(x, pad_sources(xp, x.shape[axis], before, after, self.mode), axis=axis)
            return contiguous(xp, x)
        shape = tuple(n + before + after for n, (before, after) in zip(x.shape, widths, strict=True))
        if any(n < 0 for n in shape):
            raise TypeMismatch(f"pads {pads.tolist()} remove more than {list(x.shape)} has")
        result = xp.empty(shape, dtype=x.dtype)
        if constant_value is None:
            result[...] = "" if x.dtype.kind == "O" else 0
        else:
            # Assign an array, because numpy drops zero bytes at the end of a single string.
            result[...] = constant_value.reshape(())
        source, target = [], []
        for n, (before, after) in zip(x.shape, widths, strict=True):
            low, high = max(-before, 0), max(n + min(after, 0), 0)
            high = max(high, low)
            source.append(slice(low, high))
            target.append(slice(low + before, high + before))
        result[tuple(target)] = x[tuple(source)]
        return result

    def grad(self, node: Node, dy: Any) -> Any:
        x, pads, value, axes = (*node.inputs, None, None)[:4]
        assert x is not None
        assert pads is not None
        if self.mode != "constant":
            return (F.pad_grad(dy, x, pads, axes, mode=self.mode), *[None] * 3)[: len(node.inputs)]
        dx = F.pad(dy, F.neg(pads), None, axes)
        if value is None:
            return (dx, *[None] * 3)[: len(node.inputs)]
        inside = F.pad(F.expand(np.array(True), F.shape(x)), pads, None, axes)
        total = F.reduce_sum(F.where(inside, scalar_like(0.0, dy), dy), keepdims=False)
        return (dx, None, reshape_like(total, value), None)[: len(node.inputs)]


@op
class PadGrad(Op):
    """Gradient of Pad: zeros of x's shape, to which each element of dy is added where Pad copied it from.

    mode: any of Pad's but "constant". Only x's shape is read.
    """

    mode: str
    domain = DOMAIN
    inputs = ("dy", "x", "pads", "axes?")
    types = {"dy": FLOATS, "x": ANY, "pads": INT64, "axes": INDICES}
    shape_only = ("x",)

    @staticmethod
    def samples() -> tuple[Sample, ...]:
        made = []
        for mode in _MODES[1:]:
            for shape, pads, *axes in (*_SAMPLES[:6], ((3, 1), i64(4, 2, 0, 2))):
                widths = pad_widths(len(shape), pads, *(axes or [None]))
                padded = tuple(n + before + after for n, (before, after) in zip(shape, widths, strict=True))
                made.append(Sample(padded, shape, pads, *axes, mode=mode))
        return tuple(made)

    def infer(self, dy: TensorType, x: TensorType, pads: TensorType, axes: TensorType | None = None) -> TensorType:
        if self.mode not in _MODES[1:]:
            raise UsageError(f"mode must be one of {', '.join(_MODES[1:])}, not {self.mode!r}")
        if dy.rank is not None and x.rank is not None and dy.rank != x.rank:
            raise TypeMismatch(f"dy {dy} and x {x} differ in rank")
        # If pads are known only at run time, the kernel is compiled in the run with static sizes. dy and x are not
        # compared then.
        padded = _shape(x, pads, axes) if pads.constants is not None else None
        if padded is not None and not fits(dy.shape, padded):
            raise TypeMismatch(f"dy is {dy}; x {x} is padded to {TensorType(dy.dtype, padded)}")
        return TensorType(dy.dtype, x.shape)

    def reference(self, xp: Any, dy: Any, x: Any, pads: Any, axes: Any = None) -> Any:
        for axis, (before, after) in enumerate(pad_widths(x.ndim, pads, axes)):
            if before or after:
                shape = (*dy.shape[:axis], x.shape[axis], *dy.shape[axis + 1 :])
                result = xp.zeros(shape, dtype=dy.dtype)
                source = pad_sources(xp, x.shape[axis], before, after, self.mode)
                xp.scatter_add(result, (*(slice(None),) * axis, source), dy)
                dy = result
        return contiguous(xp, dy)

    def grad(self, node: Node, dy: Any) -> Any:
        _, _, pads, axes = self.named_inputs(node.inputs).values()
        return (F.pad(dy, pads, None, axes, mode=self.mode), *[None] * 3)[: len(node.inputs)]

    def expand(self, dy: Any, x: Any, pads: Any, axes: Any = None) -> Any:
        return scatter_flat(dy, F.pad(flat_positions(x), pads, None, axes, mode=self.mode), x)
