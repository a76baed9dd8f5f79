"""Linear quantisation of whole tensors, along an axis, or in blocks: QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import FLOAT8, TINY_FLOATS, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Rand, Sample, op
from graphkit.ops.axes import normal_axis, shape_text
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import unbroadcast
from graphkit.ops.quant.rounding import SCALES, bounded
from graphkit.ops.tensor.cast import convert

_INTEGERS = frozenset(
    {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT4, DType.UINT4, DType.INT2, DType.UINT2}
)
_TARGETS = _INTEGERS | FLOAT8 | {DType.FLOAT4E2M1}
_E8M0 = frozenset({DType.FLOAT8E8M0})


class _Linear(Op):
    """Base of both directions: finds the scale and zero point of each element."""

    axis: int = 1
    block_size: int = 0
    symbolic_inference = True
    reference_in_float32 = False

    def check_parameters(self, x: TensorType, scale: TensorType, zero_point: TensorType | None) -> None:
        """Raise TypeMismatch if scale or zero point do not fit x."""
        if zero_point is not None and not _alike(scale.shape, zero_point.shape):
            raise TypeMismatch(f"scale {scale} and zero point {zero_point} must have the same shape")
        if self.block_size < 0:
            raise TypeMismatch(f"block_size={self.block_size} is negative")
        # A vector of unknown length may have one element, which applies to all of x.
        if x.shape is None or scale.shape is None or _may_be_single(scale.shape):
            return
        wanted: tuple[Dim, ...]
        axis = normal_axis(self.axis, len(x.shape))
        if self.block_size:
            wanted = (*x.shape[:axis], dims.ceildiv(x.shape[axis], self.block_size), *x.shape[axis + 1 :])
        else:
            wanted = (x.shape[axis],)
        if not fits(scale.shape, wanted):
            how = f"blocks of {self.block_size} along axis {axis}" if self.block_size else f"axis {axis} of x"
            raise TypeMismatch(
                f"the scale must be a scalar or have shape {shape_text(wanted)}, for {how}; it has "
                f"{shape_text(scale.shape)}"
            )

    def spread(self, xp: Any, parameter: Any, shape: Sequence[int]) -> Any:
        """Return a scale or a zero point as an array that broadcasts to x's shape."""
        if parameter is None or (parameter.size == 1 and parameter.ndim < 2):
            return None if parameter is None else parameter.reshape(())
        axis = normal_axis(self.axis, len(shape))
        if self.block_size:
            # The last block may extend beyond the end of x; a single block may be longer than x.
            whole = xp.repeat(parameter, min(self.block_size, shape[axis]), axis=axis)
            return whole[(slice(None),) * axis + (slice(shape[axis]),)]
        return parameter.reshape(-1, *(1,) * (len(shape) - axis - 1))

    def spread_values(self, parameter: Any, x: Any) -> Any:
        """Return a scale or a zero point as a graph value that broadcasts to x."""
        if parameter.rank == 0 or (parameter.rank == 1 and parameter.shape == (1,)):
            return F.reshape(parameter, np.zeros(0, np.int64))
        axis = self.axis % x.rank
        if not self.block_size:
            return F.reshape(parameter, np.array([-1, *(1,) * (x.rank - axis - 1)], np.int64))
        length = x.shape[axis] if x.shape is not None else None
        if isinstance(length, int):
            return F.gather(parameter, np.arange(length) // self.block_size, axis=axis)
        count = F.squeeze(F.shape(x, start=axis, end=axis + 1), np.array([0]))
        places = F.range(np.array(0), count, np.array(1))
        return F.gather(parameter, F.div(places, np.array(self.block_size)), axis=axis)

    def gathered(self, gradient: Any, scale: Any, x: Any) -> Any:
        """Build the sum over the elements that share a scale."""
        if not self.block_size:
            spread = self.spread_values(scale, x)
            return F.reshape(unbroadcast(gradient, spread), F.shape(scale))
        axis = self.axis % x.rank
        length = F.shape(x, start=axis, end=axis + 1)
        size = F.max(F.min(length, np.array([self.block_size])), np.array([1]))
        missing = F.sub(F.mul(F.shape(scale, start=axis, end=axis + 1), size), length)
        padded = F.pad(gradient, F.concat(np.array([0]), missing, axis=0), None, np.array([axis]))
        around = F.shape(x, start=0, end=axis), F.shape(x, start=axis + 1)
        blocks = F.reshape(padded, F.concat(around[0], np.array([-1]), size, around[1], axis=0))
        return F.reduce_sum(blocks, np.array([axis + 1]), keepdims=False)

    def is_batchwise(self, inputs: Sequence[Any], batched: Sequence[bool]) -> bool:
        shape, rank = inputs[1].known_shape, inputs[0].rank
        apart = len(shape) == 0 or (len(shape) == 1 and rank > 1 and self.axis % rank != 0)
        return apart and self._has_examples(("x",), inputs, batched)


def _may_be_single(shape: Sequence[Dim]) -> bool:
    return len(shape) == 0 or (len(shape) == 1 and dims.may_equal(shape[0], 1))


def _alike(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> bool:
    return fits(a, b) or (a is not None and b is not None and _may_be_single(a) and _may_be_single(b))


_X = np.array([[0.0, 2.0, 3.0, 1000.0], [-254.0, -1000.0, 0.5, 1.5]], np.float32)
_ONE = np.array(2.0, np.float32)
_ROW = np.array([2.0, 4.0, 0.5, 100.0], np.float32)
_BLOCKS = np.array([[1.5, 2.5], [3.0, 200.0]], np.float32)

_HALVES, _HALF = Rand((2, 3), -9.0, 9.0, "float16"), Rand((), 0.5, 1.0, "float16")


def _quantise_samples() -> tuple[Sample, ...]:
    of = np.dtype
    whole: list[tuple[Any, int]] = [(of(np.uint8), 128), (of(np.int8), -3), (of(np.uint16), 32767), (of(np.int16), 256)]
    narrow = [DType.INT4, DType.UINT4, DType.INT2, DType.UINT2]
    return (
        Sample(_X, _ONE, grad=False),
        *(Sample(_X, _ONE, np.array(zero, dtype), grad=False) for dtype, zero in whole),
        *(Sample(_X, _ONE, np.array(1, dtype.numpy), grad=False) for dtype in narrow),
        *(Sample(_X, _ONE, output_dtype=dtype, grad=False) for dtype in (*narrow, DType.FLOAT4E2M1)),
        *(
            Sample(_X, _ONE, output_dtype=dtype, saturate=saturate, grad=False)
            for dtype in sorted(FLOAT8, key=str)
            for saturate in (True, False)
        ),
        Sample(_X, _ROW, np.array([0, 1, 2, 255], np.uint8), grad=False),
        Sample(_X, _ROW[:2], np.array([-3, 9], np.int8), axis=0, grad=False),
        Sample(_X, _BLOCKS, np.array([[0, 3], [100, 200]], np.uint8), axis=-1, block_size=2, grad=False),
        Sample(_X[:, :3], _BLOCKS, axis=1, block_size=2, grad=False),
        Sample(_HALVES, _HALF, np.array(3, np.int8), grad=False),
        Sample(_X, _ONE, precision=DType.FLOAT16, grad=False),
        Sample(np.array([7, -9, 300], np.int32), _ONE, np.array(3, np.int8), grad=False),
        Sample(np.zeros((0, 2), np.float32), _ONE, grad=False),
        Sample(np.array([3.0, 5.0], np.float32), _ONE.reshape(1), np.zeros(1, np.uint8), grad=False),
    )


@op
class QuantizeLinear(_Linear):
    """round(x / y_scale) + y_zero_point, clipped to the bounds of the result's type; ties go to even.

    y_scale, y_zero_point: scalars, vectors along `axis`, or, with `block_size`, tensors like x with one element for
    each block along `axis`. The result has the zero point's type, else `output_dtype`, else uint8. float16 and bfloat16
    are divided in float32, as in ONNX Runtime, unless `precision` names another type. NaN becomes the least integer.
    `saturate` applies to 8-bit floats: numbers that are too large become the largest one.
    """

    saturate: bool = True
    output_dtype: DType | None = None
    precision: DType | None = None
    inputs = ("x", "y_scale", "y_zero_point?")
    types = {"x": SCALES | {DType.INT32}, "y_scale": SCALES | _E8M0 | {DType.INT32}, "y_zero_point": _TARGETS}
    onnx: ClassVar[Onnx | None] = Onnx("QuantizeLinear", since=28)
    samples: ClassVar[Any] = _quantise_samples

    def infer(self, x: TensorType, y_scale: TensorType, y_zero_point: TensorType | None = None) -> TensorType:
        self.check_parameters(x, y_scale, y_zero_point)
        if self.precision is not None and self.precision not in SCALES:
            raise TypeMismatch(f"precision={self.precision} is not one of {', '.join(sorted(map(str, SCALES)))}")
        return TensorType(self.target(y_zero_point), x.shape)

    def target(self, zero_point: TensorType | None) -> DType:
        """Return the element type of the result. Raises TypeMismatch."""
        named = None if zero_point is None else zero_point.dtype
        if named is not None and self.output_dtype is not None and named is not self.output_dtype:
            raise TypeMismatch(f"the zero point is {named}, but output_dtype is {self.output_dtype}")
        target = named or self.output_dtype or DType.UINT8
        if target not in _TARGETS:
            raise TypeMismatch(f"output_dtype={target} is not one of {', '.join(sorted(map(str, _TARGETS)))}")
        return target

    def reference(self, xp: Any, x: Any, y_scale: Any, y_zero_point: Any = None) -> Any:
        return self.quantised(xp, x, y_scale, y_zero_point).astype(self._target(y_zero_point).numpy)

    def _target(self, y_zero_point: Any) -> DType:
        return self.target(None if y_zero_point is None else TensorType(y_zero_point.dtype, y_zero_point.shape))

    def quantised(self, xp: Any, x: Any, y_scale: Any, y_zero_point: Any = None) -> Any:
        """Return the result; integers as int32, not yet in the target type."""
        target = self._target(y_zero_point)
        scale, zero = (self.spread(xp, p, x.shape) for p in (y_scale, y_zero_point))
        if self.precision is not None:
            named = self.precision.numpy
            quotient = (x.astype(named) / scale.astype(named)).astype(np.float32)
        else:
            wide = np.float64 if x.dtype == np.int32 else np.float32
            quotient = x.astype(wide) / scale.astype(wide)
        if target in _INTEGERS:
            return bounded(xp, quotient, zero, target)
        if zero is not None and target is DType.FLOAT4E2M1:
            quotient = quotient + zero.astype(quotient.dtype)
        return convert(xp, quotient, target, self.saturate)

    def grad(self, node: Node, dy: Value) -> Any:
        """No gradient: a step function, also for float8 results. Training uses FakeQuantize instead."""
        return None


def _dequantise_samples() -> tuple[Sample, ...]:
    x = np.array([[0, 3, 128, 255], [1, 2, 7, 200]], np.uint8)
    narrow = [DType.INT4, DType.UINT4, DType.INT2, DType.UINT2]
    tiny = sorted(FLOAT8 | {DType.FLOAT4E2M1}, key=str)
    values = np.array([[0.0, -1.0, 1.5, 6.0]], np.float32)
    return (
        Sample(x, _ONE, grad=False),
        Sample(x, _ONE, np.array(128, np.uint8), grad=False),
        Sample(x.astype(np.int8), _ONE, np.array(-3, np.int8), grad=False),
        Sample(x.astype(np.uint16) * 257, _ONE, np.array(32767, np.uint16), grad=False),
        Sample(x.astype(np.int16) * -100, _ONE, np.array(-1024, np.int16), grad=False),
        Sample(x.astype(np.int32) * 8000000, _ONE, grad=False),
        *(Sample((x % 2).astype(t.numpy), _ONE, np.array(1, t.numpy), grad=False) for t in narrow),
        *(Sample(values.astype(t.numpy), _ONE, grad=False) for t in tiny),
        Sample(x, _ROW, np.array([0, 1, 2, 255], np.uint8), grad=False),
        Sample(x, _ROW[:2], axis=0, grad=False),
        Sample(x, _BLOCKS, np.array([[0, 3], [100, 200]], np.uint8), axis=-1, block_size=2, grad=False),
        Sample(x[:, :3], _BLOCKS, axis=1, block_size=2, grad=False),
        Sample(x, _HALF, np.array(3, np.uint8), grad=False),
        Sample(x, _ONE, output_dtype=DType.FLOAT16, grad=False),
        Sample(np.zeros((0, 2), np.int8), _ONE, grad=False),
        Sample(Rand((3,), 0, 9, "uint8"), _ONE.reshape(1), np.ones(1, np.uint8), grad=False),
    )


@op
class DequantizeLinear(_Linear):
    """(x - x_zero_point) * x_scale, in the scale's type unless `output_dtype` names another one.

    x_scale, x_zero_point: one number for all of x, one per position on `axis`, or with `block_size` one per block of
    that many positions. The product is computed in float32, as ONNX Runtime does.
    Differentiable in the scale.
    """

    output_dtype: DType | None = None
    inputs = ("x", "x_scale", "x_zero_point?")
    types = {"x": _TARGETS | {DType.INT32}, "x_scale": SCALES | _E8M0, "x_zero_point": "x"}
    onnx = Onnx("DequantizeLinear", since=28)
    samples: ClassVar[Any] = _dequantise_samples

    def infer(self, x: TensorType, x_scale: TensorType, x_zero_point: TensorType | None = None) -> TensorType:
        self.check_parameters(x, x_scale, x_zero_point)
        result = self.output_dtype or x_scale.dtype
        if result not in SCALES:
            raise TypeMismatch(f"the result would be {result}; output_dtype is one of float32, float16, bfloat16")
        return TensorType(result, x.shape)

    def reference(self, xp: Any, x: Any, x_scale: Any, x_zero_point: Any = None) -> Any:
        scale, zero = (self.spread(xp, p, x.shape) for p in (x_scale, x_zero_point))
        tiny = DType.of(x.dtype) in TINY_FLOATS
        wide = np.float32 if tiny else np.int32
        centred = x.astype(wide) if zero is None else x.astype(wide) - zero.astype(wide)
        result = x_scale.dtype if self.output_dtype is None else self.output_dtype.numpy
        return (centred.astype(np.float32) * scale.astype(np.float32)).astype(result)

    def grad(self, node: Node, dy: Any) -> Any:
        operands: Any = (*node.inputs, None)[:3]
        x, scale, zero = operands
        if x.rank is None or scale.rank is None:
            raise UnsupportedError(f"{node.describe()}: the gradient of a scale needs operands of known rank")
        if scale.dtype is DType.FLOAT8E8M0:
            return (None,) * len(node.inputs)
        centred = F.cast(x, to=DType.FLOAT32)
        if zero is not None:
            centred = F.sub(centred, self.spread_values(F.cast(zero, to=DType.FLOAT32), x))
        dscale = self.gathered(F.mul(F.cast(dy, to=DType.FLOAT32), centred), scale, x)
        return None, F.cast(dscale, to=scale.dtype), *(None,) * (zero is not None)
