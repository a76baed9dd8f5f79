"""Graphs as data that `pickle` and `copy` take: flat, because both recurse along references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from graphkit.ir.codec import Decoder, Encoder, WeightsOut
from graphkit.ir.collector import uncollected
from graphkit.ir.graph import Graph


class Packed(NamedTuple):
    """A graph and arrays by input name: the codec's record, larger tensors as bytes, classes of operators."""

    record: dict[str, Any]
    tensors: dict[str, np.ndarray]
    operators: tuple[Any, ...]


@uncollected
def pack(graph: Graph, params: Mapping[str, np.ndarray]) -> Packed:
    """The inverse of `unpack`. Shares the memory of arrays."""
    tensors = WeightsOut()
    record = Encoder(tensors, params).graph(graph)
    arrays = {name: np.frombuffer(tensor.read(), np.uint8) for name, tensor in tensors.stored.items()}
    return Packed(record, arrays, tuple(_operators(graph)))


@uncollected
def unpack(packed: Packed) -> tuple[Graph, Mapping[str, Any]]:
    """New values and nodes, and the arrays that `pack` was given, read-only."""
    classes = {(cls.domain, cls.name): cls for cls in packed.operators}

    decoder = Decoder(lambda domain, name: classes[domain, name], packed.tensors)
    decoder.check_operators(packed.record)
    return decoder.graph(packed.record), decoder.params


def unpack_graph(*fields: Any) -> Graph:
    """What `pickle` calls for a Graph."""
    return unpack(Packed(*fields))[0]


def reduced(graph: Graph) -> tuple[Any, ...]:
    """What `pickle` and `copy` store of a Graph."""
    return unpack_graph, tuple(pack(graph, {}))


def _operators(graph: Graph) -> dict[Any, None]:
    found: dict[Any, None] = {}
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            found[type(node.op)] = None
            waiting += node.op.subgraphs().values()
    return found
