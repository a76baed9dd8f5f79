"""Helpers of the quantisation rules: find dequantised values and the parameters of quantisation."""

from __future__ import annotations

import numpy as np

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import BYTES, DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import constant, operator
from graphkit.ops.quant.linear import DequantizeLinear, QuantizeLinear
from graphkit.passes.core.match import array_of, producer

# Products and quotients of scales stay finite if scales are at most this large, and scales of results at least its
# reciprocal.
_LARGEST_SCALE = np.float32(2.0**40)
# A sum is computed on integers only if the scales of its operands are at most this many times the scale of the result.
_LARGEST_RATIO = 2.0**12
# Relative difference up to which the scale of a bias equals the product of the other scales. All are rounded to
# float32.
_BIAS_TOLERANCE = 1e-5


class Quantised(NamedTuple):
    """An 8-bit tensor `x` that represents (x - zero) * scale.

    `axis`: the axis of the scale; None if the scale is a scalar.
    """

    x: Value
    scale: Value
    zero: Value
    axis: int | None

    @property
    def known_scale(self) -> np.ndarray | None:
        """The scale, if it is constant, positive and not too large; else None.

        Then larger integers represent larger numbers.
        """
        array = array_of(self.scale)
        usable = array is not None and bool(np.all((array > np.finfo(np.float32).tiny) & (array <= _LARGEST_SCALE)))
        return array if usable else None

    @property
    def is_factor(self) -> bool:
        """Whether the scale may be multiplied with others.

        False for a constant scale that is NaN, infinite or too large.
        """
        array = array_of(self.scale)
        return array is None or bool(np.all(np.abs(array) <= _LARGEST_SCALE))

    @property
    def is_divisor(self) -> bool:
        """Whether a product of scales may be divided by the scale.

        False for a constant scale that is NaN, 0 or too small.
        """
        array = array_of(self.scale)
        return array is None or bool(np.all(np.abs(array) >= 1 / _LARGEST_SCALE))

    def is_addend_of(self, total: Quantised) -> bool:
        """Return whether numbers with this scale can be added accurately in units of the scale of `total`.

        False if both scales are constant, and this one is much larger.
        """
        mine, other = array_of(self.scale), array_of(total.scale)
        return mine is None or other is None or bool(np.all(np.abs(mine) <= _LARGEST_RATIO * np.abs(other)))

    def same_parameters(self, other: Quantised) -> bool:
        """Return whether both have the same type, and the same constant scalar scale and zero point."""
        if self.x.dtype is not other.x.dtype or self.axis is not None or other.axis is not None:
            return False
        pairs = (array_of(self.zero), array_of(other.zero)), (self.known_scale, other.known_scale)
        return all(a is not None and b is not None and np.array_equal(np.ravel(a), np.ravel(b)) for a, b in pairs)


def is_single_element(value: Value) -> bool:
    """Return whether a value is known to be a scalar, or a vector of one element."""
    return value.shape is not None and value.shape in ((), (1,))


def dequantised(value: Value | None) -> Quantised | None:
    """Return the 8-bit tensor from which a float32 value was dequantised; None if there is none."""
    node = producer(value, "DequantizeLinear")
    if node is None or node.output.dtype is not DType.FLOAT32:
        return None
    op = operator(node, DequantizeLinear)
    x, scale = node.operands[:2]
    if op.block_size or x.dtype not in BYTES or scale.dtype is not DType.FLOAT32:
        return None
    return _with_zero(x, scale, node.inputs[2] if len(node.inputs) > 2 else None, x.dtype, op.axis)


def quantisation(node: Node) -> Quantised | None:
    """Return the parameters of a QuantizeLinear to 8 bits with a scalar scale; None if it has another form.

    `x` is the result of the node.
    """
    op = operator(node, QuantizeLinear)
    x, scale = node.operands[:2]
    floats = x.dtype is scale.dtype is DType.FLOAT32 and op.precision in (None, DType.FLOAT32)
    if not floats or node.output.dtype not in BYTES or not is_single_element(scale):
        return None
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return _with_zero(node.output, scale, zero, node.output.dtype, op.axis)


def _with_zero(x: Value, scale: Value, zero: Value | None, dtype: DType, axis: int) -> Quantised | None:
    if is_single_element(scale):
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
    """Return the int32 tensor of a bias with one element for each channel; None if it has another form.

    The scale of the bias must be the product of `factor` and the scales of x and w.
    """
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
    """Return whether a value is known to be a vector of this length."""
    return value.shape is not None and len(value.shape) == 1 and value.shape[0] == length
