"""Shared by the quantisation rules: dequantised values, and the parameters of quantisation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops import constant, operator
from graphkit.ops.quant.linear import DequantizeLinear, QuantizeLinear
from graphkit.ops.quant.rounding import BYTES
from graphkit.passes.core.match import array_of, producer

# Products and quotients of scales up to this one, and of those of results down to its reciprocal, are numbers.
_LARGEST_SCALE = np.float32(2.0**40)
# How much larger than the scale of a sum those of its operands are, at most, whose sums are exact enough.
_LARGEST_RATIO = 2.0**12
# Scales of the two sides of a bias that count as one: both were rounded to float32.
_BIAS_TOLERANCE = 1e-5


class Quantised(NamedTuple):
    """8-bit numbers `x` that stand for (x - zero) * scale; `axis` is that of the scale, None where it is one number."""

    x: Value
    scale: Value
    zero: Value
    axis: int | None

    @property
    def known_scale(self) -> np.ndarray | None:
        """The scale where it is a constant for which larger integers stand for larger numbers, finite ones."""
        array = array_of(self.scale)
        usable = array is not None and bool(np.all((array > np.finfo(np.float32).tiny) & (array <= _LARGEST_SCALE)))
        return array if usable else None

    @property
    def is_factor(self) -> bool:
        """Whether the scale may be multiplied with others: no constant that is not finite, or too large for it."""
        array = array_of(self.scale)
        return array is None or bool(np.all(np.abs(array) <= _LARGEST_SCALE))

    @property
    def is_divisor(self) -> bool:
        """Whether a product of scales may be divided by the scale: no constant that is NaN, 0, or too small for it."""
        array = array_of(self.scale)
        return array is None or bool(np.all(np.abs(array) >= 1 / _LARGEST_SCALE))

    def is_addend_of(self, total: Quantised) -> bool:
        """Whether numbers of this scale may be added in steps of another: no constants of which this is far larger."""
        mine, other = array_of(self.scale), array_of(total.scale)
        return mine is None or other is None or bool(np.all(np.abs(mine) <= _LARGEST_RATIO * np.abs(other)))

    def same_parameters(self, other: Quantised) -> bool:
        """Whether both have one type, one known scale and one zero point."""
        if self.x.dtype is not other.x.dtype or self.axis is not None or other.axis is not None:
            return False
        pairs = (array_of(self.zero), array_of(other.zero)), (self.known_scale, other.known_scale)
        return all(a is not None and b is not None and np.array_equal(np.ravel(a), np.ravel(b)) for a, b in pairs)


def is_one_number(value: Value) -> bool:
    """Whether a value is surely a scalar, or a vector of one element."""
    return value.shape is not None and value.shape in ((), (1,))


def dequantised(value: Value | None) -> Quantised | None:
    """What a float32 value was before it was dequantised, where that has 8 bits."""
    node = producer(value, "DequantizeLinear")
    if node is None or node.output.dtype is not DType.FLOAT32:
        return None
    op = operator(node, DequantizeLinear)
    x, scale = node.operands[:2]
    if op.block_size or x.dtype not in BYTES or scale.dtype is not DType.FLOAT32:
        return None
    return _with_zero(x, scale, node.inputs[2] if len(node.inputs) > 2 else None, x.dtype, op.axis)


def quantisation(node: Node) -> Quantised | None:
    """The parameters of a QuantizeLinear to 8 bits whose scale is one number; `x` is its result."""
    op = operator(node, QuantizeLinear)
    x, scale = node.operands[:2]
    floats = x.dtype is scale.dtype is DType.FLOAT32 and op.precision in (None, DType.FLOAT32)
    if not floats or node.output.dtype not in BYTES or not is_one_number(scale):
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return _with_zero(node.output, scale, zero, node.output.dtype, op.axis)


def _with_zero(x: Value, scale: Value, zero: Value | None, dtype: DType, axis: int) -> Quantised | None:
    if is_one_number(scale):
        along = None
    elif scale.rank == 1 and x.rank is not None and -x.rank <= axis < x.rank:
        along = axis % x.rank
    else:
        return None
    if zero is None:
        zero = constant(np.array(0, dtype.numpy))
    return Quantised(x, scale, zero, along)


def integer_bias(
    value: Value | None, x: Quantised, w: Quantised, channels: object, factor: float = 1.0
) -> Value | None:
    """The int32 numbers of a bias whose scale is that of x times that of w times `factor`, one for each channel."""
    node = producer(value, "DequantizeLinear")
    if node is None or node.output.dtype is not DType.FLOAT32 or operator(node, DequantizeLinear).block_size:
        return None
    b, scale = node.operands[:2]
    zero = None if len(node.inputs) < 3 else node.inputs[2]
    known, of_x, of_w = array_of(scale), x.known_scale, w.known_scale
    if b.dtype is not DType.INT32 or known is None or of_x is None or of_w is None or not is_vector(b, channels):
        return None
    if zero is not None and (array_of(zero) is None or np.any(array_of(zero))):
        return None
    expected = factor * np.ravel(of_x.astype(np.float64)) * np.ravel(of_w)
    if known.size not in (1, expected.size) and expected.size != 1:
        return None
    return b if np.allclose(np.ravel(known), expected, rtol=_BIAS_TOLERANCE, atol=0) else None


def is_vector(value: Value, length: object) -> bool:
    """Whether a value has one axis, surely of this length."""
    return value.shape is not None and len(value.shape) == 1 and value.shape[0] == length
