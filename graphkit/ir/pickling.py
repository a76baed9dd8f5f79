"""Conversion of graphs to flat data for `pickle` and `copy`, which would otherwise recurse once per node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphkit.collector import without_gc
from graphkit.ir.codec import Decoder, Encoder, WeightsOut
from graphkit.ir.graph import Graph
from graphkit.named_tuples import NamedTuple


class Packed(NamedTuple):
    """A packed graph with arrays of its inputs: record of the codec, larger tensors as bytes, and operator classes."""

    record: dict[str, Any]
    tensors: dict[str, np.ndarray]
    operators: tuple[Any, ...]


@without_gc
def pack(graph: Graph, params: Mapping[str, np.ndarray]) -> Packed:
    """Pack a graph and arrays by input name. Does not copy the arrays."""
    tensors = WeightsOut()
    record = Encoder(tensors, params).graph(graph)
    arrays = {name: np.frombuffer(tensor.read(), np.uint8) for name, tensor in tensors.stored.items()}
    return Packed(record, arrays, tuple(_operators(graph)))


@without_gc
def unpack(packed: Packed) -> tuple[Graph, Mapping[str, Any]]:
    """Return a new graph, and the arrays that were passed to `pack`, read-only."""
    classes = {(cls.domain, cls.name): cls for cls in packed.operators}

    decoder = Decoder(lambda domain, name: classes[domain, name], packed.tensors)
    decoder.check_operators(packed.record)
    return decoder.graph(packed.record), decoder.params


def unpack_graph(*fields: Any) -> Graph:
    """Build a graph from the fields of a Packed. `pickle` calls it."""
    return unpack(Packed(*fields))[0]


def reduced(graph: Graph) -> tuple[Any, ...]:
    """Return `unpack_graph` and its arguments, as `__reduce__` would."""
    return unpack_graph, tuple(pack(graph, {}))


def _operators(graph: Graph) -> dict[Any, None]:
    found: dict[Any, None] = {}
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            found[type(node.op)] = None
            waiting += node.op.subgraphs().values()
    return found
