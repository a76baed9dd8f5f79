"""Expand values into polynomials, to recognise a formula independently of the order of its operations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from graphkit.ir.graph import Node, Value
from graphkit.passes.core.match import is_op, scalar
from graphkit.passes.core.sweep import Readers

# Maps the exponents of the given values, in their order, to the coefficient.
Polynomial: TypeAlias = dict[tuple[int, ...], float]

# Formulas of interest have at most this many terms.
_TERMS = 8
_POWERS = (2.0, 3.0)
_ARITHMETIC = ("Add", "Sum", "Sub", "Mul", "Div", "Pow", "Neg")


class Expansion:
    """Expands values that are computed from `atoms` and constants by sums, products and powers.

    `of(value)` returns the polynomial, or None for other values. `closed(readers, roots)` returns whether no other node
    reads the intermediate values.
    """

    def __init__(self, atoms: Sequence[Value], nodes: int = 16):
        self._atoms = {v: tuple(int(i == j) for j in range(len(atoms))) for i, v in enumerate(atoms)}
        self._one = (0,) * len(atoms)
        self._found: dict[Value, Polynomial | None] = {}
        self._reads: Counter[Value] = Counter()
        self._left = nodes

    def of(self, value: Value) -> Polynomial | None:
        """Return the polynomial, or None if the value is not a polynomial in the atoms."""
        self._reads[value] += 1
        return self._of(value)

    def closed(self, readers: Readers, roots: Sequence[Value]) -> bool:
        """Return whether only expanded nodes read the visited values, except the atoms, the constants and `roots`."""
        return all(
            readers.count(v) == self._reads[v]
            for v in self._found
            if v not in self._atoms and v not in roots and scalar(v) is None
        )

    def _of(self, value: Value) -> Polynomial | None:
        if value in self._atoms:
            return {self._atoms[value]: 1.0}
        if value not in self._found:
            number = scalar(value)
            self._found[value] = {self._one: number} if number is not None else self._expand(value.node)
        return self._found[value]

    def _expand(self, node: Node | None) -> Polynomial | None:
        if node is None or not is_op(node, *_ARITHMETIC) or self._left <= 0:
            return None
        self._left -= 1
        parts = []
        for operand in node.operands:
            part = self.of(operand)
            if part is None:
                return None
            parts.append(part)
        return self._combine(node.op.name, parts)

    def _combine(self, name: str, parts: Sequence[Polynomial]) -> Polynomial | None:
        a, *rest = parts
        if name == "Neg":
            return {k: -c for k, c in a.items()}
        if name in ("Add", "Sum"):
            return {k: math.fsum(p.get(k, 0.0) for p in parts) for k in {k: None for p in parts for k in p}}
        (b,) = rest
        if name == "Sub":
            return {k: a.get(k, 0.0) - b.get(k, 0.0) for k in {**a, **b}}
        if name == "Mul":
            return _product(a, b)
        number = b.get(self._one) if len(b) == 1 else None
        if name == "Div":
            return {k: c / number for k, c in a.items()} if number else None
        if number not in _POWERS:
            return None
        result: Polynomial | None = a
        for _ in range(int(number) - 1):
            result = None if result is None else _product(result, a)
        return result


def _product(a: Polynomial, b: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for i, p in a.items():
        for j, q in b.items():
            key = tuple(m + n for m, n in zip(i, j, strict=True))
            result[key] = result.get(key, 0.0) + p * q
    return result if len(result) <= _TERMS else None


def matches(found: Polynomial | None, wanted: Polynomial, tolerance: float = 1e-5) -> bool:
    """Return whether the coefficients agree up to the relative tolerance, and other coefficients are zero."""
    if found is None or any(abs(c) > 1e-12 for k, c in found.items() if k not in wanted):
        return False
    return all(abs(found.get(k, 0.0) - c) <= tolerance * abs(c) for k, c in wanted.items())
