"""What the reference count of an array says about who holds it."""

from __future__ import annotations

import sys

import numpy as np


def _count() -> int:
    array = np.empty(0)
    return sys.getrefcount(array)


# sys.getrefcount(array) of an array that only the local variable `array` refers to. Measured, as interpreters differ:
# the argument counts as a reference of its own up to Python 3.13, and borrows that of the variable from 3.14 on.
LOCAL_REFERENCES = _count()
