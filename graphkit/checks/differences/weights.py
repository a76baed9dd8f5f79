"""Corresponding parameters, states and large constants of two graphs, and how they differ."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from graphkit.checks.differences.arrays import array_difference, part, same_bits
from graphkit.checks.differences.result import WeightDifference
from graphkit.checks.differences.structure import constant_of, is_weight, type_text
from graphkit.ir.graph import Graph, Value
from graphkit.ir.stored import StoredArray
from graphkit.model import Model

_Array: TypeAlias = np.ndarray | StoredArray

# Number of first and of last elements of a weight that its fingerprint contains.
_ENDS = 64


class Weights:
    """The weights of one graph, by name.

    model: the model of the graph; None for a subgraph, which only has constants.
    """

    def __init__(self, graph: Graph, model: Model | None):
        self._params = None if model is None else model.params
        self.names = {v: graph.name_of(v) for v in graph.values if is_weight(v)}
        self.by_name = {name: v for v, name in self.names.items()}

    def array(self, value: Value) -> _Array:
        tensor = constant_of(value)
        if tensor is not None:
            return tensor.array
        assert self._params is not None, "a subgraph has no parameters"
        return self._params.entry(self.names[value])

    def fingerprint(self, value: Value) -> Hashable:
        """Return a key of the type, the first and the last elements. Weights with other keys differ."""
        array = self.array(value)
        count = math.prod(array.shape)
        ends = (0, min(count, _ENDS)), (max(count - _ENDS, 0), count)
        return type_text(value.type), *(part(array, *end).tobytes() for end in ends)


@dataclass(frozen=True)
class WeightsFound:
    """How the weights of two graphs differ.

    differing: weights that differ. renamed: names of equal weights. compared: number of weights whose elements were
    compared.
    """

    differing: list[WeightDifference]
    renamed: list[tuple[str, str]]
    compared: int


def paired_weights(a: Weights, b: Weights, operands: Iterable[tuple[Value | None, Value | None]]) -> dict[Value, Value]:
    """Return the weight of the second graph for each weight of the first that has a counterpart.

    Weights that corresponding nodes read in the same place correspond. A weight of the same name is preferred if it has
    the same bits, and the other one has not. Weights without corresponding readers are matched by name.

    operands: pairs of operands of corresponding nodes.
    """
    read: dict[Value, Value] = {}
    for before, after in operands:
        if before is not None and after is not None and before in a.names and after in b.names:
            read.setdefault(before, after)
    pairs = {v: w for v, w in read.items() if a.names[v] == b.names[w]}
    taken = set(pairs.values())
    for value, other in read.items():
        if value in pairs or other in taken:
            continue
        same = b.by_name.get(a.names[value])
        if same is not None and same not in taken and _is_copy(a, value, b, same) and not _is_copy(a, value, b, other):
            other = same
        pairs[value] = other
        taken.add(other)
    for value, name in a.names.items():
        same = b.by_name.get(name)
        if value not in pairs and same is not None and same not in taken:
            pairs[value] = same
            taken.add(same)
    return pairs


def _is_copy(a: Weights, value: Value, b: Weights, other: Value) -> bool:
    return value.type == other.type and same_bits(a.array(value), b.array(other))


def compared_weights(a: Weights, b: Weights, pairs: Mapping[Value, Value], place: str) -> WeightsFound:
    """Compare corresponding weights. place: of the graph, such as `loop.body/`; names begin with it."""
    found = WeightsFound([], [], 0)
    compared = 0
    for value, name in a.names.items():
        other = pairs.get(value)
        if other is None:
            found.differing.append(WeightDifference(place + name, None, _kind(value), None))
            continue
        kinds = _kind(value), _kind(other)
        names = place + name, place + b.names[other]
        if value.type != other.type:
            found.differing.append(WeightDifference(*names, *kinds))
            continue
        elements = array_difference(a.array(value), b.array(other))
        compared += 1
        if not elements.same_bits or kinds[0] != kinds[1]:
            found.differing.append(WeightDifference(*names, *kinds, elements))
        elif names[0] != names[1]:
            found.renamed.append(names)
    taken = set(pairs.values())
    for value, name in b.names.items():
        if value not in taken:
            found.differing.append(WeightDifference(None, place + name, None, _kind(value)))
    return WeightsFound(found.differing, found.renamed, compared)


def _kind(value: Value) -> str:
    return f"{value.role if value.node is None else 'constant'} {type_text(value.type)}"
