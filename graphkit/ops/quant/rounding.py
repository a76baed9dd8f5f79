"""Rounding to the numbers of a quantised type, as ONNX Runtime does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import DType, TensorType

SCALES = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})

_BOUNDS = {
    DType.UINT2: (0, 3),
    DType.INT2: (-2, 1),
    DType.UINT4: (0, 15),
    DType.INT4: (-8, 7),
    DType.UINT8: (0, 255),
    DType.INT8: (-128, 127),
    DType.UINT16: (0, 65535),
    DType.INT16: (-32768, 32767),
}


def bounds(dtype: DType) -> tuple[int, int]:
    """Return the least and the largest number of a quantised integer type."""
    return _BOUNDS[dtype]


def saturated(xp: Any, quotient: Any, zero_point: Any, dtype: DType) -> Any:
    """Return round(quotient) + zero_point, saturated and converted to `dtype`; see `bounded`."""
    return bounded(xp, quotient, zero_point, dtype).astype(dtype.numpy)


def bounded(xp: Any, quotient: Any, zero_point: Any, dtype: DType) -> Any:
    """Return round(quotient) + zero_point, saturated to the bounds of `dtype`, as int32.

    Ties go to even, before the zero point is added. Infinity is the bound of its sign, NaN the lower bound.
    """
    least, most = bounds(dtype)
    zero = xp.asarray(0 if zero_point is None else zero_point).astype(np.int32).astype(quotient.dtype)
    # fmax gives the bound for NaN.
    clipped = xp.fmin(xp.fmax(quotient, least - zero), most - zero)
    return (xp.rint(clipped) + zero).astype(np.int32)


def wrapped(total: Any) -> Any:
    """Convert sums to int32, which wraps around. total: exact sums, integers or whole float64 numbers."""
    return total.astype(np.int64).astype(np.int32)


def centred(xp: Any, x: Any, zero_point: Any = None) -> Any:
    """Return x - zero_point as float64, in which sums of fewer than 2^37 products of 8-bit differences are exact."""
    wide = x.astype(np.float64)
    return wide if zero_point is None else wide - xp.asarray(zero_point).astype(np.float64)


def requantised(xp: Any, total: Any, multiplier: Any, zero_point: Any, dtype: DType) -> Any:
    """Multiply int32 sums by a float32 multiplier, and round to `dtype`."""
    return saturated(xp, total.astype(np.float32) * multiplier, zero_point, dtype)


def single(what: str, operand: TensorType | None) -> None:
    """Raise TypeMismatch unless an operand can be one number: a scalar, or a vector of one element."""
    if operand is None or operand.shape is None:
        return
    if len(operand.shape) > 1 or (
        len(operand.shape) == 1 and isinstance(operand.shape[0], int) and operand.shape[0] != 1
    ):
        raise TypeMismatch(f"{what} must be one number, not {operand}")


def number(xp: Any, operand: Any) -> Any:
    """Return the number in a scalar, or in a vector of one element, as a 0-d array."""
    return None if operand is None else xp.asarray(operand).reshape(())
