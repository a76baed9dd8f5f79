"""Lower bounds of symbolic dimensions, and comparisons of two dimensions, for all values of their symbols.

The search replaces calls to get simpler expressions that are never larger: `N - min(N, M)` is at least `N - N`. After a
fixed number of expressions, it gives up, and the answer is "unknown".
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from graphkit.ir import dims
from graphkit.ir.dims import Atom, Dim, DimExpr, Monomial

# Enough for the longest sum of calls with two operands, even if each call must be replaced by its second operand.
_MAX_TRIED = dims.MAX_ATOMS


def lower_bound(dim: Dim) -> int | None:
    """Return a lower bound of `dim`, an integer, given that symbols are at least 0; None if none is found.

    There may be a greater one: the search ends at the first that is not negative, and after a fixed number of steps.
    Equal expressions have equal bounds.
    """
    return _searched(dim) if isinstance(dim, DimExpr) else dim


def never_below(a: Dim, b: Dim) -> bool:
    """Return whether a >= b for all values of the symbols. False: not always, or unknown."""
    bound = lower_bound(a - b)
    return bound is not None and bound >= 0


def lesser(a: Dim, b: Dim) -> Dim:
    """Return min(a, b), simplified if one of them is known to be the smaller one."""
    if never_below(b, a):
        return a
    return b if never_below(a, b) else dims.dim_min(a, b)


def at_least_zero(a: Dim) -> Dim:
    """Return max(a, 0), simplified if a is known to be at least 0."""
    return a if never_below(a, 0) else dims.dim_max(a, 0)


@functools.lru_cache(maxsize=1 << 14)
def _searched(dim: DimExpr) -> int | None:
    """Search best first: fewer negative terms come first, because a negative term has no bound until it is replaced."""
    import heapq  # here, because most bounds need no search

    best: int | None = None
    tried = 0
    seen: set[Dim] = {dim}
    waiting = [(*_distance(dim), 0, dim)]
    while waiting:
        candidate = heapq.heappop(waiting)[-1]
        bound = _sum_bound(candidate)
        if bound is not None and (best is None or bound > best):
            best = bound
        if best is not None and best >= 0:
            return best
        for simpler in _simpler(candidate):
            tried += 1
            if tried > _MAX_TRIED:
                return best
            if simpler in seen:
                continue
            seen.add(simpler)
            if not isinstance(simpler, DimExpr):
                best = simpler if best is None else max(best, simpler)
            elif not _unbounded(simpler):
                heapq.heappush(waiting, (*_distance(simpler), tried, simpler))
    return best


def _distance(dim: DimExpr) -> tuple[int, int]:
    """Return the priority of a sum in the search, lowest first: numbers of negative terms, and of terms."""
    return sum(c < 0 for m, c in dim.terms if m), len(dim.terms)


def _unbounded(dim: DimExpr) -> bool:
    """Whether a symbol is subtracted and no other term could cancel it, so that there is no lower bound."""
    subtracted: set[str] = set()
    left: set[str] = set()
    for monomial, coefficient in dim.terms:
        for atom in monomial:
            if atom[0] != "sym":
                left.update(s for operand in atom[1:] if isinstance(operand, DimExpr) for s in operand.symbols)
            else:
                (subtracted if coefficient < 0 else left).add(atom[1])
    return not subtracted <= left


def _simpler(dim: DimExpr) -> Iterator[Dim]:
    """Yield sums that are never larger, each with one call replaced.

    All negative terms must be replaced sooner or later, in any order. So only the first one that can be replaced is.
    """
    replaced = False
    for monomial, coefficient in dim.terms:
        if len(monomial) != 1 or (coefficient < 0 and replaced):
            continue
        options = _below(monomial[0], coefficient)
        replaced = replaced or (coefficient < 0 and bool(options))
        if options:
            rest = dim - DimExpr(((monomial, coefficient),))
            yield from (rest + below for below in options)


def _below(atom: Atom, factor: int) -> list[Dim]:
    """Return simpler dimensions that are never above factor * atom."""
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


def _sum_bound(dim: DimExpr) -> int | None:
    """Return the sum of the lower bounds of all terms; None if a term has none."""
    total = 0
    for monomial, coefficient in dim.terms:
        bound = _product_bound(monomial)
        if bound is None or (coefficient < 0 and monomial):
            return None
        total += coefficient * bound
    return total


def _product_bound(monomial: Monomial) -> int | None:
    bounds = [_atom_bound(atom) for atom in monomial]
    if len(bounds) == 1:
        return bounds[0]
    product = 1
    for bound in bounds:
        if bound is None or bound < 0:
            return None
        product *= bound
    return product


def _atom_bound(atom: Atom) -> int | None:
    match atom[0]:
        case "sym" | "broadcast":
            return 0
        case "max" | "min":
            bounds = [lower_bound(operand) for operand in atom[1:]]
            known = [b for b in bounds if b is not None]
            if atom[0] == "max":
                return max(known, default=None)
            return min(known) if len(known) == len(bounds) else None
        case kind:
            # A divisor is never 0: such a division is an error.
            if not never_below(atom[2], 0):
                return None
            return 0 if kind == "mod" or never_below(atom[1], 0) else None
