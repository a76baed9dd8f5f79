"""Quantised operators: integers with a real range, which the outputs 1 and 2 of an operator contain as vectors [1].

An integer q with the range [min, max] represents q * level, with level = max(|min|, |max|) / steps. MXNet's kernels for
the CPU use 127.5 steps for int8 and 255.5 for uint8, but 127 and 255 in requantize and for the ranges of int32, which
has 2^31 - 1. Sources: src/operator/quantization of MXNet 1.9.

In two places, MXNet's CPU kernel of a quantised convolution contradicts these rules: for uint8 data, it writes a range
for 127 steps, and it adds the integers of the bias without regard to their level. Here the rules hold.
"""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import (
    Call,
    along_axis,
    as_indices,
    axis_of,
    converter,
    flattened,
    in_range,
    rank_of,
    scalar,
    sizes_of,
    transpose,
)
from graphkit.mxnet_io.operators.convolution import window
from graphkit.mxnet_io.operators.pooling import pooling
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.ops.axes import i64

_STEPS = {DType.INT8: 127.5, DType.UINT8: 255.5, DType.INT32: 2.0**31 - 1}
# Steps of requantize, and of the factors whose product has a range of int32.
_WHOLE_STEPS = {DType.INT8: 127.0, DType.UINT8: 255.0}
_LARGEST = 2.0**31 - 1


class Range(NamedTuple):
    """Least and largest real number, float32 [1] each."""

    least: Value
    most: Value

    @property
    def magnitude(self) -> Value:
        """The larger absolute value, as a scalar."""
        both = F.max(F.abs(self.least), F.abs(self.most))
        result: Value = F.reshape(both, i64())
        return result


def _one(number: float) -> Value:
    return constant(np.full(1, number, np.float32))


def calibrated(call: Call) -> Range | None:
    """Return the range of the attributes min_calib_range and max_calib_range, if the node has them."""
    attributes = call.attributes
    least, most = "min_calib_range" in attributes, "max_calib_range" in attributes
    if not (least and most):
        return None
    return Range(_one(attributes.number("min_calib_range", 0.0)), _one(attributes.number("max_calib_range", 0.0)))


def _level(range_: Range, dtype: DType) -> Value:
    result: Value = F.div(range_.magnitude, np.float32(_STEPS[dtype]))
    return result


def real(q: Value, range_: Range) -> Value:
    """Return the real numbers of integers."""
    result: Value = F.mul(F.cast(q, to="float32"), _level(range_, q.dtype))
    return result


def _integers(x: Value, magnitude: Value, dtype: DType, steps: float) -> Value:
    """Round x * steps / magnitude to the nearest integers, halves to even ones, and clip them to the type."""
    scaled = F.mul(x, F.div(np.float32(steps), magnitude))
    result: Value = F.quantize_linear(scaled, np.float32(1.0), constant(np.zeros((), dtype.numpy)))
    return result


def quantised(x: Value, range_: Range, dtype: DType, steps: dict[DType, float] = _STEPS) -> list[Value]:
    """Quantise real numbers. The range of int8 becomes symmetric, that of uint8 stays."""
    magnitude = range_.magnitude
    q = _integers(x, magnitude, dtype, steps[dtype])
    if dtype is DType.UINT8:
        return [q, range_.least, range_.most]
    most = F.reshape(magnitude, i64(1))
    return [q, F.neg(most), most]


def _out_type(call: Call, default: str, calibrated: bool) -> DType:
    """Read out_type; auto is uint8 if the calibrated range has no negative numbers, else int8."""
    kind = call.attributes.choice("out_type", default, "int8", "uint8", "auto")
    if kind == "auto":
        positive = calibrated and call.attributes.number("min_calib_range", 0.0) >= 0
        kind = "uint8" if positive else "int8"
    return DType(kind)


def _extremes(x: Value) -> Range:
    return Range(F.reshape(F.reduce_min(x), i64(1)), F.reshape(F.reduce_max(x), i64(1)))


@converter("_contrib_quantize_v2")
def quantize_v2(call: Call) -> list[Value]:
    """Quantise with the calibrated range, or the range of the operand."""
    range_ = calibrated(call)
    dtype = _out_type(call, "int8", range_ is not None)
    return quantised(call.x, range_ or _extremes(call.x), dtype)


@converter("_contrib_quantize_asym")
def quantize_asym(call: Call) -> list[Value]:
    """Quantise to uint8: x * scale + shift. 0 and 255 are the ends of the range. Returns integers, scale and shift."""
    range_ = calibrated(call) or _extremes(call.x)
    scale = F.div(np.float32(255), F.sub(range_.most, range_.least))
    shift = F.sub(np.float32(255), F.mul(range_.most, scale))
    steps = F.round(F.add(F.mul(call.x, scale), shift))
    return [F.cast(F.clip(steps, np.float32(0), np.float32(255)), to=DType.UINT8), scale, shift]


@converter("_contrib_quantize")
def quantize(call: Call) -> list[Value]:
    """Quantise with the range of the operands 1 and 2."""
    return quantised(call[0], Range(call[1], call[2]), _out_type(call, "uint8", False))


@converter("_contrib_dequantize")
def dequantize(call: Call) -> Value:
    call.attributes.choice("out_type", "float32")
    return real(call[0], Range(call[1], call[2]))


@converter("_contrib_requantize")
def requantize(call: Call) -> list[Value]:
    """Quantise int32 to 8 bits with the calibrated range, or the range of the operand."""
    range_ = calibrated(call)
    dtype = _out_type(call, "int8", range_ is not None)
    x = real(call[0], Range(call[1], call[2]))
    return quantised(x, range_ or _extremes(x), dtype, _WHOLE_STEPS)


# --- products ---------------------------------------------------------------------------------------------


def _products(call: Call, biased: bool) -> tuple[Range, Value | None]:
    """Return the range of the products of data and weights, and the bias in int32 at their level."""
    first = 3 if biased else 2
    data, weight = Range(call[first], call[first + 1]), Range(call[first + 2], call[first + 3])
    steps = _WHOLE_STEPS[call[0].dtype] * _WHOLE_STEPS[call[1].dtype]
    written = F.mul(F.mul(data.magnitude, weight.magnitude), np.float32(_LARGEST / steps))
    most = F.reshape(written, i64(1))
    range_ = Range(F.neg(most), most)
    if not biased:
        return range_, None
    q = call[2]
    level = F.mul(_level(data, call[0].dtype), _level(weight, call[1].dtype))
    ratio = F.div(_level(Range(call[first + 4], call[first + 5]), q.dtype), level)
    # Cast rounds towards zero.
    return range_, F.cast(F.mul(F.cast(q, to="float32"), ratio), to="int32")


@converter("_contrib_quantized_conv")
def quantized_convolution(call: Call) -> list[Value]:
    attributes = call.attributes
    kernel = attributes.integers("kernel")
    attributes.integer("num_filter", 0)
    if attributes.text("layout", "NCHW")[:2] != "NC":
        raise UnsupportedError("layout: quantised convolution with channels last")
    biased = not attributes.flag("no_bias", False)
    places = window(call, kernel)
    group = attributes.integer("num_group", 1)
    range_, bias = _products(call, biased)
    y: Value = F.conv_integer(call[0], call[1], group=group, kernel_shape=kernel, **places, name=call.name)
    if bias is not None:
        y = F.add(y, F.reshape(bias, i64(-1, *(1,) * len(kernel))))
    return [y, *range_]


@converter("_contrib_quantized_fully_connected")
def quantized_fully_connected(call: Call) -> list[Value]:
    attributes = call.attributes
    attributes.integer("num_hidden", 0)
    biased = not attributes.flag("no_bias", False)
    x = flattened(call[0]) if attributes.flag("flatten", True) else call[0]
    range_, bias = _products(call, biased)
    y: Value = F.mat_mul_integer(x, transpose(call[1], 1, 0), name=call.name)
    return [y if bias is None else F.add(y, bias), *range_]


@converter("_contrib_quantized_embedding")
def quantized_embedding(call: Call) -> list[Value]:
    call.attributes.ignore("input_dim", "output_dim", "dtype")
    table = call[1]
    rows = in_range(as_indices(call[0]), sizes_of(table, 0), "clip")
    return [F.gather(table, rows, axis=0, name=call.name), call[2], call[3]]


# --- operators that keep the range -----------------------------------------------------------------------


@converter("_contrib_quantized_flatten")
def quantized_flatten(call: Call) -> list[Value]:
    return [flattened(call[0]), call[1], call[2]]


@converter("_contrib_quantized_act")
def quantized_activation(call: Call) -> list[Value]:
    kind = call.attributes.text("act_type", "relu")
    if kind != "relu":
        raise UnsupportedError(f"act_type {kind}: quantised activations other than relu")
    x = call[0]
    return [F.max(x, scalar(0, x)), call[1], call[2]]


@converter("_contrib_quantized_pooling")
def quantized_pooling(call: Call) -> list[Value]:
    """Pool the integers. Averages are rounded to the nearest, halves to the even neighbour."""
    q = call[0]
    pooled = pooling(Replaced(call, F.cast(q, to="float32")))
    return [F.cast(F.round(pooled), to=q.dtype), call[1], call[2]]


class Replaced(Call):
    """A node whose first operand is another value."""

    def __init__(self, call: Call, first: Value) -> None:
        self.__dict__.update(call.__dict__)
        self._first = first

    def __getitem__(self, position: int) -> Value:
        return self._first if position == 0 else super().__getitem__(position)


# --- operators of several ranges ---------------------------------------------------------------------------


@converter("_contrib_quantized_concat")
def quantized_concat(call: Call) -> list[Value]:
    """Join tensors, brought to one range. Operands: the tensors, then least and largest number of each."""
    axis, count = call.attributes.integer("dim", 1), len(call) // 3
    tensors = [call[i] for i in range(count)]
    ranges = [Range(call[count + 2 * i], call[count + 2 * i + 1]) for i in range(count)]
    least = F.min(*(r.least for r in ranges))
    most = F.max(*(r.most for r in ranges))
    kinds = {q.dtype for q in tensors}
    dtype = kinds.pop() if len(kinds) == 1 else DType.INT8
    magnitude = Range(least, most).magnitude
    parts = [_integers(real(q, r), magnitude, dtype, _STEPS[dtype]) for q, r in zip(tensors, ranges, strict=True)]
    return [F.concat(*parts, axis=axis, name=call.name), least, most]


@converter("_contrib_quantized_elemwise_add")
def quantized_add(call: Call) -> list[Value]:
    """Add. The result has 8 bits with a calibrated range, else int32 with the sum of both ranges."""
    a, b = call[0], call[1]
    ranges = Range(call[2], call[3]), Range(call[4], call[5])
    total = F.add(real(a, ranges[0]), real(b, ranges[1]))
    range_ = calibrated(call)
    if range_ is None:
        most = F.reshape(F.add(ranges[0].magnitude, ranges[1].magnitude), i64(1))
        # In float64, because float32 cannot hold 2^31 - 1.
        steps = F.div(F.cast(total, to="float64"), F.cast(_level(Range(most, most), DType.INT32), to="float64"))
        return [F.cast(F.round(steps), to="int32"), F.neg(most), most]
    dtype = DType.UINT8 if a.dtype is b.dtype is DType.UINT8 else DType.INT8
    return [_integers(total, range_.magnitude, dtype, _STEPS[dtype]), range_.least, range_.most]


@converter("_contrib_quantized_elemwise_mul")
def quantized_multiply(call: Call) -> Value | list[Value]:
    """Multiply. The result is real, int8 with a calibrated range (rounded towards zero, as in MXNet), or int32."""
    a, b = call[0], call[1]
    ranges, range_ = (Range(call[2], call[3]), Range(call[4], call[5])), calibrated(call)
    if call.attributes.flag("enable_float_output", False) or range_ is not None:
        product = F.mul(real(a, ranges[0]), real(b, ranges[1]))
        if range_ is None:
            result: Value = product
            return result
        steps = F.div(product, _level(range_, DType.INT8))
        q = F.cast(F.clip(steps, np.float32(-128), np.float32(127)), to=DType.INT8)
        return [q, range_.least, range_.most]
    factor = _LARGEST / (_WHOLE_STEPS[a.dtype] * _WHOLE_STEPS[b.dtype])
    most = F.reshape(F.mul(F.mul(ranges[0].magnitude, ranges[1].magnitude), np.float32(factor)), i64(1))
    return [F.mul(F.cast(a, to="int32"), F.cast(b, to="int32")), F.neg(most), most]


@converter("_contrib_quantized_batch_norm")
def quantized_batch_norm(call: Call) -> list[Value]:
    """Normalise by the running statistics; the result is int8 with the calibrated range.

    As in MXNet's kernel, data of uint8 are rounded to int8 first, and the scaled data (not the shift) are divided by
    sqrt(1 + eps) a second time.
    """
    range_, attributes = calibrated(call), call.attributes
    if range_ is None:
        raise UnsupportedError("a quantised BatchNorm without a calibrated range")
    attributes.ignore("momentum", "use_global_stats")
    if attributes.flag("output_mean_var", False):
        raise UnsupportedError("output_mean_var=True")
    epsilon, fixed = attributes.number("eps", 1e-3), attributes.flag("fix_gamma", True)
    q, shift, mean, variance = call[0], call[2], call[3], call[4]
    axis, rank = axis_of(q, attributes.integer("axis", 1)), rank_of(q)
    if q.dtype is DType.UINT8:
        q = _integers(F.cast(q, to="float32"), constant(np.float32(255.5)), DType.INT8, 127.5)
    factor = F.div(np.float32(1.0) if fixed else call[1], F.sqrt(F.add(variance, np.float32(epsilon))))
    scale = F.mul(factor, F.div(Range(call[5], call[6]).magnitude, range_.magnitude))
    scale = F.div(scale, np.float32(np.sqrt(1 + epsilon)))
    offset = F.mul(F.sub(shift, F.mul(mean, factor)), F.div(np.float32(127.5), range_.magnitude))
    scaled = F.mul(F.cast(q, to="float32"), along_axis(scale, axis, rank))
    integers = F.quantize_linear(F.add(scaled, along_axis(offset, axis, rank)), np.float32(1.0), constant(np.int8(0)))
    most = F.reshape(range_.magnitude, i64(1))
    return [integers, F.neg(most), most]
