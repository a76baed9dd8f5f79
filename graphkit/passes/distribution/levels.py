"""Divide one graph or subgraph of a model among ranks: which rank builds which node, and which values are sent."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.internal.ordering import ControlDependency
from graphkit.ops.internal.transfer import TOKEN, UNKNOWN, Elements, Receive, Send
from graphkit.passes.distribution.homes import Homes


@dataclass
class Transfers:
    """State that all levels of a distribution share.

    Attributes:
        sources: For each dimension name: an input of the outermost graph, and the axis that determines the size.
        divide: Divides an If, Loop or Scan. It makes a Level for each subgraph.
        numbers: Yields the tags of transfers.
    """

    sources: Mapping[str, tuple[Value, int]]
    divide: Callable[[Level, Node], None]
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass
class Side:
    """The part of a level that one rank computes.

    Attributes:
        rank: The rank.
        start: The first token of its chain of transfers.
        token: The last token so far.
        table: The rank's values, by the values of the undivided graph.
        captured: The inputs of this part, by the values of the enclosing graph that they capture.
    """

    rank: int
    start: Value = field(default_factory=lambda: Value(TOKEN, "transfers"))
    token: Value = field(init=False)
    table: dict[Value, Value] = field(default_factory=dict)
    captured: dict[Value, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.token = self.start

    @property
    def exchanges(self) -> bool:
        """Whether the rank sends or receives a value."""
        return self.token is not self.start

    def capture(self, outer: Value) -> Value:
        """Capture a value of the enclosing graph and return the input for it."""
        if outer not in self.captured:
            self.captured[outer] = Value(outer.type, outer.name)
        return self.captured[outer]


class Level(ABC):
    """A graph that is being divided. path: the prefix of its value names in messages."""

    def __init__(self, graph: Graph, homes: Homes, transfers: Transfers, path: str):
        self.graph, self.homes, self.transfers, self.path = graph, homes, transfers, path
        self.sides: dict[int, Side] = {}

    def side(self, rank: int) -> Side:
        if rank not in self.sides:
            self.sides[rank] = Side(rank)
        return self.sides[rank]

    @abstractmethod
    def make_input(self, side: Side, value: Value) -> Value:
        """Return an input of the undivided graph on a rank that does not have it yet."""

    @abstractmethod
    def outermost_input(self, side: Side, source: Value) -> Value:
        """Return the value on a rank for an input of the outermost graph that all ranks have."""

    def is_local(self, rank: int, value: Value) -> bool:
        """Return whether a rank has a value, or gets it without a message of its own."""
        return self.homes.of[value] in (None, rank) or value in self.side(rank).table

    def build_nodes(self) -> None:
        """Build every node that has a home, in the order of the graph."""
        for node in self.graph.nodes:
            home = self.homes.nodes[node]
            if node in self.homes.inner:
                self.transfers.divide(self, node)
            elif home is not None and not all(map(self.homes.is_shape_value, node.outputs)):
                self._build(home, node)

    def _build(self, rank: int, node: Node) -> None:
        side = self.side(rank)
        if isinstance(node.op, ControlDependency):
            x, token = node.operands
            if not self.is_local(rank, token):  # the dependency is between nodes of another rank
                side.table[node.output] = self.at(rank, x)
                return
        made = node.rebuilt([None if v is None else self.at(rank, v) for v in node.inputs])
        side.table.update(zip(node.outputs, made.outputs, strict=True))

    def at(self, rank: int, value: Value) -> Value:
        """Return a value on a rank. If the rank does not have it, compute it there, or transfer it."""
        side = self.side(rank)
        if value not in side.table:
            home = self.homes.of[value]
            if value.node is None:
                side.table[value] = self.make_input(side, value)
            elif home is None:
                self._compute(side, value)
            else:
                assert home != rank, "the nodes of a rank are built in their order"
                self.transfer(value, home, rank)
        return side.table[value]

    def _compute(self, side: Side, value: Value) -> None:
        """Compute a value without a home on a rank. Its operands are computed first."""
        stack = [value]
        while stack:
            value, node = stack[-1], stack[-1].node
            if value in side.table or node is None:
                stack.pop()
            elif any(self.homes.of[v] is not None for v in node.operands):
                side.table[value] = self._elements(side, value)
            elif waiting := [v for v in node.operands if v.node is not None and v not in side.table]:
                stack += waiting
            else:
                made = node.rebuilt([None if v is None else self.at(side.rank, v) for v in node.inputs])
                side.table.update(zip(node.outputs, made.outputs, strict=True))

    def _elements(self, side: Side, value: Value) -> Value:
        kind = value.tensor
        assert kind.value is not None, "its elements follow from its type"
        texts, symbols, axes, likes = self._sized(side, kind.value)
        op = Elements(dtype=kind.dtype, shape=kind.static_shape, elements=texts, symbols=symbols, axes=axes)
        return Node(op, likes, output_names=[value.name]).output

    def _sized(
        self, side: Side, sizes: Sequence[Dim]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...], list[Value]]:
        """Return sizes as text, the dimension names in them, and for each name the axis and the value that determine
        it.
        """
        known = [not isinstance(d, DimExpr) or d.symbols <= self.homes.symbols for d in sizes]
        texts = tuple(str(d) if k else UNKNOWN for d, k in zip(sizes, known, strict=True))
        names = [d.symbols for d, k in zip(sizes, known, strict=True) if k and isinstance(d, DimExpr)]
        symbols = tuple(sorted(frozenset().union(*names)))
        found = [self.transfers.sources[s] for s in symbols]
        return texts, symbols, tuple(axis for _, axis in found), [self.outermost_input(side, v) for v, _ in found]

    def transfer(self, value: Value, home: int, rank: int) -> None:
        """Send a value from its home to another rank."""
        x, kind = self.at(home, value), value.type
        if not isinstance(kind, TensorType) or kind.dtype is DType.STRING or kind.shape is None:
            raise UsageError(
                f"groups= (--place): {value} cannot be sent from rank {home} to rank {rank}: it is not a tensor of "
                "numbers with a known number of axes; put its producer and its readers into one group"
            )
        self.side(rank).table[value] = self._send_receive(x, kind, self.graph.name_of(value), home, rank)

    def _send_receive(self, x: Value, kind: TensorType, name: str, home: int, rank: int) -> Value:
        """Send a value from one rank to another. Return the received value. kind: its type in the undivided graph."""
        source, target = self.side(home), self.side(rank)
        known: dict[str, Any] = {"key": f"{self.path}{name}", "number": next(self.transfers.numbers)}
        source.token = Node(Send(to=rank, **known), [x, source.token]).output
        texts, symbols, axes, likes = self._sized(target, kind.known_shape)
        op = Receive(source=home, dtype=kind.dtype, shape=texts, symbols=symbols, axes=axes, **known)
        received, target.token = Node(op, [target.token, *likes], output_names=[x.name]).outputs
        return received

    def value_of_length(self, rank: int, value: Value, axis: int) -> tuple[Value, int]:
        """Return a value on a rank, and one of its axes that is as long as `axis` of `value`.

        Only the length is transferred, if necessary.
        """
        if self.is_local(rank, value):
            return self.at(rank, value), axis
        side, size, name = self.side(rank), value.tensor.known_shape[axis], self.graph.name_of(value)
        if not isinstance(size, DimExpr) or size.symbols <= self.homes.symbols:
            texts, symbols, axes, likes = self._sized(side, [size])
            op = Elements(dtype=DType.INT64, shape=(1,), elements=texts, symbols=symbols, axes=axes)
            length = Node(op, likes).output
        else:
            home = self.homes.of[value]
            assert home is not None, "what is everywhere is near"
            length = F.shape(self.at(home, value), start=axis, end=axis + 1)
            length = self._send_receive(length, TensorType(DType.INT64, (1,)), f"{name}/length", home, rank)
        return F.constant_of_shape(length, value=np.zeros(1, np.uint8)), 0
