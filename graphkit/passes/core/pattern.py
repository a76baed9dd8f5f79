"""Match formulas in a graph. A pattern consists of operators, values and numbers.

    X = Some("x")
    swish = Op("Mul", X, Op("Sigmoid", Scaled(X, Number("alpha"))))

`match(swish, node, readers)` yields each match whose result is the node's. The factors may be in either order. There is
no match if a node outside reads an intermediate value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator

from graphkit.ir.graph import Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.passes.core.match import is_close, scalar, split_scale, split_shift
from graphkit.passes.core.sweep import Readers

_COMMUTATIVE = frozenset({"Add", "Mul"})


class Match(NamedTuple):
    """One match: the values and the numbers by their names in the pattern.

    `inside`: the results of the matched operators. `reads`: all of their operands, once for each use.
    """

    values: dict[str, Value]
    numbers: dict[str, float]
    inside: tuple[Value, ...] = ()
    reads: tuple[Value, ...] = ()

    def node(self, name: str) -> Node:
        """Return the node of the operator with this name."""
        node = self.values[name].node
        assert node is not None, f"{name} names an operator"
        return node

    def closed(self, readers: Readers) -> bool:
        """Return whether no node outside reads an intermediate result. The last result may have other readers."""
        counts = Counter(self.reads)
        return all(readers.count(v) == counts[v] for v in self.inside if v in counts)


class Pattern(ABC):
    def possible(self, value: Value | None) -> bool:
        """Return whether `at` could yield a match. Fast: looks only at the operator that computes the value."""
        return value is not None

    @abstractmethod
    def at(self, value: Value, found: Match) -> Iterator[Match]:
        """Yield each match of the pattern with a value. found: the names that are matched so far."""


class Some(Pattern):
    """Any value, with a name.

    All places with the same name must match the same value, including the result of an operator with this name.
    """

    def __init__(self, name: str):
        self.name = name

    def at(self, value: Value, found: Match) -> Iterator[Match]:
        known = found.values.get(self.name)
        if known is None:
            yield found._replace(values={**found.values, self.name: value})
        elif known is value:
            yield found


class Number(Pattern):
    """A constant of one element: a given number, or any number, which is stored in the match under a given name."""

    def __init__(self, wanted: float | str):
        self.wanted = wanted

    def possible(self, value: Value | None) -> bool:
        return scalar(value) is not None

    def at(self, value: Value, found: Match) -> Iterator[Match]:
        number = scalar(value)
        if number is not None:
            yield from self.holds(number, found)

    def holds(self, number: float, found: Match) -> Iterator[Match]:
        if isinstance(self.wanted, str):
            yield found._replace(numbers={**found.numbers, self.wanted: number})
        elif number == self.wanted or (self.wanted and is_close(number, self.wanted)):
            yield found


class Op(Pattern):
    """The result of a standard operator with operands that match these patterns. rest: further operands are allowed."""

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
        found = found._replace(values=values, inside=(*found.inside, value))
        for order in orders:
            yield from _all(list(zip(self.operands, order, strict=True)), found)

    def _fits(self, count: int) -> bool:
        return count >= len(self.operands) if self.rest else count == len(self.operands)


class _WithNumber(Pattern):
    # Returns (x, s) for a node of this kind, else None. `operators` are the possible operators.
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
            found = found._replace(inside=(*found.inside, value), reads=(*found.reads, operand))
            for next_found in self.number.holds(number, found):
                yield from self.operand.at(operand, next_found)


class Scaled(_WithNumber):
    """The product of a tensor and a constant, or the quotient, if the result has the tensor's shape."""

    split = staticmethod(split_scale)
    operators = ("Mul", "Div")


class Shifted(_WithNumber):
    """The sum of a tensor and a constant, if the result has the tensor's shape."""

    split = staticmethod(split_shift)
    operators = ("Add",)


def _possible(pattern: Pattern, value: Value | None) -> bool:
    return pattern.possible(value)


def match(pattern: Pattern, node: Node, readers: Readers) -> Iterator[Match]:
    """Yield each match of the pattern with the result of `node`. No node outside may read an intermediate result."""
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
        for next_found in pattern.at(value, found._replace(reads=(*found.reads, value))):
            yield from _all(others, next_found)
