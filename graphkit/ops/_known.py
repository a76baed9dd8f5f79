"""Known elements of small integer tensors: the arithmetic that lets Shape, Gather, Concat, Reshape chains infer.

A known value is a flat tuple of dimensions (`TensorType.value`). Data movement is propagated by running the
operator's own reference on an object array of them, comparisons by bounds that hold whatever the names stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.ir import dims
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, TensorType
from graphkit.ops.xp import numpy_xp

# Substituting the operands of nested min and max is exponential in their number.
_MAX_DEPTH = 4


def known_array(x: TensorType | None) -> np.ndarray | None:
    """The known elements as an object array of x's shape; None when they are not known."""
    if x is None or x.value is None or not x.is_static:
        return None
    array = np.empty(len(x.value), dtype=object)
    array[:] = x.value
    return array.reshape(x.static_shape)


def index_array(x: TensorType | None) -> np.ndarray | None:
    """The known elements as an int64 array of x's shape; None unless all of them are integers."""
    if x is None or x.constants is None or not x.is_static:
        return None
    return np.array(x.constants, dtype=np.int64).reshape(x.static_shape)


def known_value(array: np.ndarray | None) -> tuple[Dim, ...] | None:
    """The flat tuple that a type carries; None when there are too many elements."""
    if array is None or array.size > MAX_KNOWN_ELEMENTS:
        return None
    return tuple(array.reshape(-1).tolist())


def moved(reference: Callable[..., Any], *operands: np.ndarray | None) -> tuple[Dim, ...] | None:
    """Known elements after `reference(xp, *operands)`, which only moves elements; None when an operand is unknown."""
    if any(operand is None for operand in operands):
        return None
    return known_value(reference(numpy_xp, *operands))


def lower_bound(dim: Dim, depth: int = _MAX_DEPTH) -> int | None:
    """An integer that `dim` is never below, as names are never negative; None when none is evident."""
    if not isinstance(dim, DimExpr):
        return dim
    bounds = [_termwise_bound(dim, depth)]
    if depth:
        for monomial, coefficient in dim.terms:
            if len(monomial) == 1:
                rest = dim - DimExpr(((monomial, coefficient),))
                bounds += [lower_bound(rest + below, depth - 1) for below in _below(monomial[0], coefficient)]
    return max((b for b in bounds if b is not None), default=None)


def _below(atom: tuple, factor: int) -> list[Dim]:
    """Simpler dimensions that factor * atom is never below."""
    kind, *operands = atom
    if kind == ("max" if factor > 0 else "min"):
        return [factor * operand for operand in operands]
    if kind in ("floordiv", "ceildiv", "mod") and isinstance(operands[1], int) and operands[1] > 0:
        a, b = operands
        if kind == "mod":
            return [factor * (b - 1)] if factor < 0 else []
        # b * ceildiv(a, b) >= a >= b * floordiv(a, b); for a >= 0 both quotients are at most a.
        exact = [factor // b * a] if factor % b == 0 and kind == ("ceildiv" if factor > 0 else "floordiv") else []
        return [*exact, factor * a] if factor < 0 and never_below(a, 0) else exact
    return []


def _termwise_bound(dim: DimExpr, depth: int) -> int | None:
    total = 0
    for monomial, coefficient in dim.terms:
        bounds = [_atom_bound(atom, depth) for atom in monomial]
        if (coefficient < 0 and monomial) or any(b is None or b < 0 for b in bounds):
            return None
        for bound in bounds:
            coefficient *= bound  # type: ignore[operator]
        total += coefficient
    return total


def _atom_bound(atom: tuple, depth: int) -> int | None:
    match atom[0]:
        case "sym" | "broadcast" | "mod":
            return 0
        case "max" | "min":
            bounds = [lower_bound(operand, depth - 1) if depth else None for operand in atom[1:]]
            known = [b for b in bounds if b is not None]
            if atom[0] == "max":
                return max(known, default=None)
            return min(known) if len(known) == len(bounds) else None
        case _:  # floordiv and ceildiv by something positive
            bound = lower_bound(atom[1], depth - 1) if depth else None
            return 0 if bound is not None and bound >= 0 else None


def never_below(a: Dim, b: Dim) -> bool:
    """Whether a >= b whatever the names stand for (False: not evident)."""
    bound = lower_bound(a - b)
    return bound is not None and bound >= 0


def lesser(a: Dim, b: Dim) -> Dim:
    """min(a, b), simplified where one is evidently not above the other."""
    if never_below(b, a):
        return a
    return b if never_below(a, b) else dims.dim_min(a, b)


def at_least_zero(a: Dim) -> Dim:
    """max(a, 0), simplified where a is evidently not negative."""
    return a if never_below(a, 0) else dims.dim_max(a, 0)


def decide_equal(a: Dim, b: Dim) -> int | None:
    """1, 0, or None where it depends on the names."""
    if a == b:
        return 1
    if not dims.may_equal(a, b) or never_below(a, b + 1) or never_below(b, a + 1):
        return 0
    return None


def decide_less(a: Dim, b: Dim) -> int | None:
    """1, 0, or None where it depends on the names."""
    if never_below(b, a + 1):
        return 1
    return 0 if never_below(a, b) else None


def decided(rule: Callable[..., Dim | None], operands: Sequence[TensorType]) -> tuple[Dim, ...] | None:
    """Broadcast known operands and apply `rule` to each element; None when one of the results is."""
    arrays = [known_array(x) for x in operands]
    if any(a is None for a in arrays):
        return None
    columns = np.broadcast_arrays(*arrays)  # type: ignore[arg-type]
    if columns[0].size > MAX_KNOWN_ELEMENTS:
        return None
    results = [rule(*row) for row in zip(*(c.reshape(-1).tolist() for c in columns), strict=True)]
    return None if any(r is None for r in results) else tuple(results)  # type: ignore[arg-type]
