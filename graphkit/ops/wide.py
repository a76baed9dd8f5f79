"""Arithmetic in a wider type: the type in which operators on float16 and bfloat16 sum and interpolate."""

from __future__ import annotations

from typing import Any

from graphkit.ir.types import HALVES, DType
from graphkit.ops._base import F


def converted(x: Any, dtype: DType) -> Any:
    """Convert `x` to this element type; return x itself if it already has it."""
    return x if x.dtype is dtype else F.cast(x, to=dtype)


def wide_type(dtype: DType) -> DType:
    """Return the type in which values of `dtype` are summed."""
    return DType.FLOAT32 if dtype in HALVES else dtype
