"""The element types that a store adds up."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import InputError
from graphkit.ir.types import NUMERIC, DType

_SUMMED = frozenset(dtype.value for dtype in NUMERIC | {DType.COMPLEX64, DType.COMPLEX128})


def check_summed(key: int | str, dtype: np.dtype[Any]) -> None:
    """Raise InputError unless a store adds up arrays of this dtype.

    Stores of all types refuse the same dtypes in one process and in several, so that a program that runs in one process
    also runs in several. bool has no sum, and float8 and int4 overflow after a few summands.

    Args:
        key: The key, or the name of a gradient, for the message.
        dtype: The dtype of the array.
    """
    if dtype.name not in _SUMMED:
        raise InputError(
            f"key {key!r} is {dtype}: a store cannot sum {dtype}; push integers, "
            "float16, bfloat16, float32, float64 or complex numbers (`broadcast` and `gather` take every dtype)"
        )
