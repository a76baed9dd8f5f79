"""Rounding to the numbers of a quantised type, as ONNX Runtime does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import DType, TensorType

BYTES = frozenset({DType.INT8, DType.UINT8})
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
    """The least and the largest number of a quantised integer type."""
    return _BOUNDS[dtype]


def saturated(xp: Any, quotient: Any, zero_point: Any, dtype: DType) -> Any:
    """round(quotient) + zero_point within the bounds of `dtype`, which the result has; see `bounded`."""
    return bounded(xp, quotient, zero_point, dtype).astype(dtype.numpy)


def bounded(xp: Any, quotient: Any, zero_point: Any, dtype: DType) -> Any:
    """round(quotient) + zero_point within the bounds of `dtype`, as int32.

    Ties go to even, before the zero point is added. Infinity is the bound of its sign, NaN the lower bound.
    """
    least, most = bounds(dtype)
    zero = xp.asarray(0 if zero_point is None else zero_point).astype(np.int32).astype(quotient.dtype)
    # fmax gives the bound for NaN.
    clipped = xp.fmin(xp.fmax(quotient, least - zero), most - zero)
    return (xp.rint(clipped) + zero).astype(np.int32)


def wrapped(total: Any) -> Any:
    """Sums as int32, which wraps around; exact sums are handed in as integers or as whole float64."""
    return total.astype(np.int64).astype(np.int32)


def centred(xp: Any, x: Any, zero_point: Any = None) -> Any:
    """x - zero_point as float64, in which sums of fewer than 2^37 products of such differences are exact."""
    wide = x.astype(np.float64)
    return wide if zero_point is None else wide - xp.asarray(zero_point).astype(np.float64)


def requantised(xp: Any, total: Any, multiplier: Any, zero_point: Any, dtype: DType) -> Any:
    """int32 sums times a float32 multiplier, rounded to `dtype`."""
    return saturated(xp, total.astype(np.float32) * multiplier, zero_point, dtype)


def single(what: str, operand: TensorType | None) -> None:
    """Raises TypeMismatch where an operand cannot hold one number, as a scalar or as a vector of one."""
    if operand is None or operand.shape is None:
        return
    if len(operand.shape) > 1 or (
        len(operand.shape) == 1 and isinstance(operand.shape[0], int) and operand.shape[0] != 1
    ):
        raise TypeMismatch(f"{what} must be one number, not {operand}")


def number(xp: Any, operand: Any) -> Any:
    """The one number of a scalar or of a vector of one, as a 0-d array."""
    return None if operand is None else xp.asarray(operand).reshape(())
