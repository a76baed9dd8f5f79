"""Corresponding inputs and outputs of two graphs."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

from graphkit.checks.differences.structure import type_text
from graphkit.ir.dims import DimExpr
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, Type
from graphkit.model import Model

# A place in one graph and the corresponding one in the other; None if there is none.
Places: TypeAlias = list[tuple[int | None, int | None]]


class Ports:
    """Corresponding inputs and outputs of two graphs, as positions.

    inputs: positions in `values`, the data inputs of both graphs. outputs: positions in `Graph.outputs`.
    """

    def __init__(self, a: Graph, b: Graph, values: Sequence[Sequence[Value]], inputs: Places, outputs: Places):
        self.inputs, self.outputs = inputs, outputs
        self.values, self._graphs = values, (a, b)

    @staticmethod
    def of_models(a: Model, b: Model) -> Ports:
        """Match data inputs, and outputs: by name, then in order if the types are equal or may be."""
        values = a.data_inputs, b.data_inputs
        inputs = _matched(*(_named(zip(m.inputs, m.data_inputs, strict=True)) for m in (a, b)))
        outputs = _matched(*(_named(zip(m.outputs, m.graph.outputs, strict=True)) for m in (a, b)))
        return Ports(a.graph, b.graph, values, inputs, outputs)

    @staticmethod
    def of_subgraphs(a: Graph, b: Graph) -> Ports:
        """Match inputs and outputs by position."""
        inputs = list(itertools.zip_longest(range(len(a.inputs)), range(len(b.inputs))))
        outputs = list(itertools.zip_longest(range(len(a.outputs)), range(len(b.outputs))))
        return Ports(a, b, (a.inputs, b.inputs), inputs, outputs)

    @property
    def value_pairs(self) -> list[tuple[Value, Value]]:
        """The corresponding inputs."""
        one, other = self.values
        return [(one[i], other[j]) for i, j in self.inputs if i is not None and j is not None]

    @property
    def output_pairs(self) -> list[tuple[Value, Value]]:
        """The corresponding outputs."""
        a, b = self._graphs
        return [(a.outputs[i], b.outputs[j]) for i, j in self.outputs if i is not None and j is not None]

    def keys(self, side: int) -> tuple[dict[Value, Hashable], dict[Value, list[Hashable]]]:
        """Return the structural keys of the inputs and outputs of one graph (side 0 or 1)."""
        inputs: dict[Value, Hashable] = {}
        outputs: dict[Value, list[Hashable]] = {}
        for number, places in enumerate(self.inputs):
            if (place := places[side]) is not None:
                inputs[self.values[side][place]] = number
        for number, places in enumerate(self.outputs):
            if (place := places[side]) is not None:
                outputs.setdefault(self._graphs[side].outputs[place], []).append(number)
        return inputs, outputs


def _named(found: Iterable[tuple[str, Value]]) -> list[tuple[str, Type]]:
    return [(name, value.type) for name, value in found]


def _matched(a: Sequence[tuple[str, Type]], b: Sequence[tuple[str, Type]]) -> Places:
    """Match names with types: by name, then in order by type, then in order if the types may be equal."""
    names = {name: j for j, (name, _) in enumerate(b)}
    pairs = {i: names[name] for i, (name, _) in enumerate(a) if name in names}
    taken = set(pairs.values())
    left: dict[str, deque[int]] = {}
    for j, (_, kind) in enumerate(b):
        if j not in taken:
            left.setdefault(type_text(kind), deque()).append(j)
    for i, (_, kind) in enumerate(a):
        if i not in pairs and (same := left.get(type_text(kind))):
            pairs[i] = same.popleft()
    rest_a = [i for i in range(len(a)) if i not in pairs]
    rest_b = sorted(itertools.chain.from_iterable(left.values()))
    more = {i: j for i, j in zip(rest_a, rest_b, strict=False) if _may_be_equal(a[i][1], b[j][1])}
    pairs.update(more)
    matched = set(more.values())
    return [*((i, pairs.get(i)) for i in range(len(a))), *((None, j) for j in rest_b if j not in matched)]


def _may_be_equal(a: Type, b: Type) -> bool:
    """Whether two types can be equal, if symbolic dimensions have any size."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return type_text(a) == type_text(b)
    if a.dtype is not b.dtype or a.rank != b.rank:
        return False
    sizes = zip(a.shape or (), b.shape or (), strict=True)
    return all(isinstance(x, DimExpr) or isinstance(y, DimExpr) or x == y for x, y in sizes)
