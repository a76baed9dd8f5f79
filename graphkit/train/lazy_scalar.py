"""A number that is read from an array when somebody asks for it."""

from __future__ import annotations

import numpy as np


class LazyScalar:
    """A loss that becomes a number when somebody asks: `float(loss)`."""

    __slots__ = ("_array",)

    def __init__(self, array: np.ndarray):
        self._array = array

    def __float__(self) -> float:
        return float(self._array)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __str__(self) -> str:
        return str(float(self))

    def __repr__(self) -> str:
        """`LazyScalar(0.5)`; of an array that is not in this process's memory nothing is read."""
        return f"LazyScalar({float(self)})" if isinstance(self._array, np.ndarray) else "LazyScalar(?)"
