"""Formulas as data: patterns of operators, values and numbers, and what they are in a graph.

    X = Some("x")
    swish = Op("Mul", X, Op("Sigmoid", Scaled(X, Number("alpha"))))

`match(swish, node, readers)` gives each way in which the node is such a product, its factors in either order, where
nothing else reads what lies between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from graphkit.ir.graph import Node, Value
from graphkit.passes.core.match import close, scalar, scaled, shifted
from graphkit.passes.core.sweep import Readers

_COMMUTATIVE = frozenset({"Add", "Mul"})


@dataclass(frozen=True)
class Match:
    """The values that the names of a pattern match; `inside` are the results of its operators, `reads` all operands."""

    values: dict[str, Value]
    numbers: dict[str, float]
    inside: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()

    def node(self, name: str) -> Node:
        """The node of the operator with this name."""
        node = self.values[name].node
        assert node is not None, f"{name} names an operator"
        return node

    def closed(self, readers: Readers) -> bool:
        """Whether nothing outside reads the inner results; the last result is not an operand."""
        counts = Counter(self.reads)
        return all(readers.count(v) == counts[v] for v in self.inside if v in counts)


class Pattern(ABC):
    def possible(self, value: Value | None) -> bool:
        """Whether `at` may find something, by a look at the operator that makes the value."""
        return value is not None

    @abstractmethod
    def at(self, value: Value, found: Match) -> Iterator[Match]:
        """Each way in which the value is what the pattern says, given what has been found before."""


@dataclass(frozen=True)
class Some(Pattern):
    """A value, the same one wherever the pattern has its name; also that of an operator with this name."""

    name: str

    def at(self, value: Value, found: Match) -> Iterator[Match]:
        known = found.values.get(self.name)
        if known is None:
            yield replace(found, values={**found.values, self.name: value})
        elif known is value:
            yield found


@dataclass(frozen=True)
class Number(Pattern):
    """A constant of one element: this number, or any, under this name."""

    wanted: float | str

    def possible(self, value: Value | None) -> bool:
        return scalar(value) is not None

    def at(self, value: Value, found: Match) -> Iterator[Match]:
        number = scalar(value)
        if number is not None:
            yield from self.holds(number, found)

    def holds(self, number: float, found: Match) -> Iterator[Match]:
        if isinstance(self.wanted, str):
            yield replace(found, numbers={**found.numbers, self.wanted: number})
        elif number == self.wanted or (self.wanted and close(number, self.wanted)):
            yield found


class Op(Pattern):
    """The result of an operator of the standard on these operands; `rest`: whatever operands follow them."""

    def __init__(self, op: str, *operands: Pattern, name: str = "", rest: bool = False):
        self.op, self.operands, self.name, self.rest = op, operands, name, rest

    def possible(self, value: Value | None) -> bool:
        node = None if value is None else value.node
        return node is not None and node.op.name == self.op and not node.op.domain

    def at(self, value: Value, found: Match) -> Iterator[Match]:
        node = value.node
        if not self.possible(value) or node is None or not self._fits(len(node.inputs)):
            return
        given = node.inputs[: len(self.operands)]
        orders = [given, given[::-1]] if self.op in _COMMUTATIVE else [given]
        orders = [order for order in orders if all(map(_possible, self.operands, order))]
        if not orders:
            return
        values = {**found.values, self.name: value} if self.name else found.values
        found = replace(found, values=values, inside=(*found.inside, value))
        for order in orders:
            yield from _all(list(zip(self.operands, order, strict=True)), found)

    def _fits(self, count: int) -> bool:
        return count >= len(self.operands) if self.rest else count == len(self.operands)


class _WithNumber(Pattern):
    # (x, s) of a node that is of this kind, and the operators that may be.
    split: Callable[[Node], tuple[Value, float] | None]
    operators: tuple[str, ...]

    def __init__(self, operand: Pattern, number: Number):
        self.operand, self.number = operand, number

    def possible(self, value: Value | None) -> bool:
        return value is not None and value.node is not None and value.node.op.name in self.operators

    def at(self, value: Value, found: Match) -> Iterator[Match]:
        parts = None if value.node is None else type(self).split(value.node)
        if parts is not None:
            operand, number = parts
            found = replace(found, inside=(*found.inside, value), reads=(*found.reads, operand))
            for next_found in self.number.holds(number, found):
                yield from self.operand.at(operand, next_found)


class Scaled(_WithNumber):
    """A tensor times a constant, or divided by the inverse of one, that keeps its shape."""

    split = staticmethod(scaled)
    operators = ("Mul", "Div")


class Shifted(_WithNumber):
    """A tensor plus a constant that keeps its shape."""

    split = staticmethod(shifted)
    operators = ("Add",)


def _possible(pattern: Pattern, value: Value | None) -> bool:
    return pattern.possible(value)


def match(pattern: Pattern, node: Node, readers: Readers) -> Iterator[Match]:
    """Each way in which the only result of `node` is what the pattern says, and nothing else reads what is inside."""
    if not pattern.possible(node.outputs[0]):
        return
    for found in pattern.at(node.outputs[0], Match({}, {})):
        if found.closed(readers):
            yield found


def _all(pairs: list[tuple[Pattern, Value | None]], found: Match) -> Iterator[Match]:
    if not pairs:
        yield found
        return
    (pattern, value), *others = pairs
    if value is not None:
        for next_found in pattern.at(value, replace(found, reads=(*found.reads, value))):
            yield from _all(others, next_found)
