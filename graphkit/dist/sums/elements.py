"""Which elements a store adds up."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import InputError

# Kinds of numpy's dtypes: integers, unsigned integers, floating-point and complex numbers.
_KINDS = "iufc"


def check_summed(key: int | str, dtype: np.dtype[Any]) -> None:
    """Raise InputError unless arrays of this dtype can be added up: integers, floats (bfloat16 too), complex numbers.

    A store of any type and any number of processes refuses the same dtypes, so that a program that runs in one process
    also runs in several. bool has no sum, and float8 and int4 would overflow with a few summands.

    Args:
        key: The key, or the name of a gradient, for the message.
        dtype: That of the array that is to be added up.
    """
    if dtype.kind not in _KINDS and dtype.name != "bfloat16":
        raise InputError(
            f"key {key!r} is {dtype}: a store adds up what it gets, and {dtype} is not added up; push integers, "
            "float16, bfloat16, float32, float64 or complex numbers (`broadcast` and `gather` take every dtype)"
        )
