"""Known elements of small integer tensors: shape inference through chains of Shape, Gather, Concat and Reshape.

A known value is a flat tuple of dimensions (`TensorType.value`). Data movement is propagated by running the
operator's own reference on an object array of them, comparisons by bounds that hold whatever the names stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, TensorType

T = TypeVar("T")


def known_array(x: TensorType | None) -> np.ndarray | None:
    """Return the known elements as an object array of x's shape; None if they are unknown."""
    if x is None or x.value is None or not x.is_static:
        return None
    array = np.empty(len(x.value), dtype=object)
    array[:] = x.value
    return array.reshape(x.static_shape)


def index_array(x: TensorType | None) -> np.ndarray | None:
    """Return the known elements as an int64 array of x's shape; None unless all of them are known integers."""
    if x is None or x.constants is None or not x.is_static:
        return None
    return np.array(x.constants, dtype=np.int64).reshape(x.static_shape)


def known_value(array: np.ndarray | None) -> tuple[Dim, ...] | None:
    """Return an array of elements as the flat tuple of a type; None if there are too many elements."""
    if array is None or array.size > MAX_KNOWN_ELEMENTS:
        return None
    return tuple(array.reshape(-1).tolist())


def all_of(found: Iterable[T | None]) -> tuple[T, ...] | None:
    """Return all items as a tuple; None if one of them is None."""
    known = []
    for one in found:
        if one is None:
            return None
        known.append(one)
    return tuple(known)


def moved(reference: Callable[..., Any], *operands: np.ndarray | None) -> tuple[Dim, ...] | None:
    """Return the known elements of `reference(xp, *operands)`, which only moves them; None if an operand is unknown."""
    if any(operand is None for operand in operands):
        return None
    from graphkit.ops.xp import numpy_xp

    return known_value(reference(numpy_xp, *operands))


def decide_equal(a: Dim, b: Dim) -> int | None:
    """Compare for equality: 1 or 0; None if it depends on the symbols' values."""
    if a == b:
        return 1
    if not dims.may_equal(a, b):
        return 0
    from graphkit.ir.bounds import never_below

    if never_below(a, b + 1) or never_below(b, a + 1):
        return 0
    return None


def decide_less(a: Dim, b: Dim) -> int | None:
    """Return 1 if a < b, 0 if not, and None if it depends on the symbols' values."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a < b)
    from graphkit.ir.bounds import never_below

    if never_below(b, a + 1):
        return 1
    return 0 if never_below(a, b) else None


def decided(rule: Callable[..., Dim | None], operands: Sequence[TensorType]) -> tuple[Dim, ...] | None:
    """Broadcast known operands and apply `rule` to each element. Return None if an operand or a result is unknown."""
    arrays = all_of(known_array(x) for x in operands)
    if arrays is None:
        return None
    columns = np.broadcast_arrays(*arrays)
    if columns[0].size > MAX_KNOWN_ELEMENTS:
        return None
    return all_of(rule(*row) for row in zip(*(c.reshape(-1).tolist() for c in columns), strict=True))
