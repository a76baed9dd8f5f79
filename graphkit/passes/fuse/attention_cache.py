"""Fuse a decoder's attention with its cache of keys and values: read the cache once, and append the new rows meanwhile.

Besides the weights, the cache is most of the data that a decoder reads. A separate concatenation would read it, write
it, and read it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, operator
from graphkit.ops.internal.attention_cache import CachedAttention
from graphkit.ops.internal.fused_attention import FusedAttention
from graphkit.ops.tensor.concat import Concat
from graphkit.ops.tensor.shape import Shape
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.match import is_op, producer
from graphkit.passes.core.sweep import is_control, map_bodies, rewrite, use_counts

_ROWS = 2


@graph_pass(
    requires=[Property.HEADS_SHARED],
    ensures=[Property.CACHES_ATTENDED],
    at=["FusedAttention"],
    beside=[["Concat"]],
)
def fuse_attention_cache(graph: Graph) -> Graph:
    """Fuse float32 attention and the concatenations of its keys and values into CachedAttention. Takes linear time.

    Apart from attention, only the caller of the graph may read the concatenated keys and values. Shape nodes that read
    them compute the shape from the parts.
    """
    if graph.operators.isdisjoint(("FusedAttention", *CONTROL)):
        return graph
    found = _with_caches(graph)
    concatenated = {v for node in found for v in node.inputs[1:3]}
    new_caches: dict[Value, Value] = {}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            return map_bodies(node, operands, fuse_attention_cache).outputs
        if node in found:
            attention = node.rebuilt(operands)
            y, keys, values = _cached(attention).outputs
            new_caches.update(zip(attention.operands[1:3], (keys, values), strict=True))
            return (y,)
        if is_op(node, "Shape") and node.inputs[0] in concatenated:
            return (_shape_of_parts(node.rebuilt(operands)),)
        return None

    fused = rewrite(graph, rule, at=("FusedAttention", "Shape", *CONTROL))
    if not new_caches:
        return fused
    return fused.replace(outputs=[new_caches.get(v, v) for v in fused.outputs], output_names=fused.output_names)


def _with_caches(graph: Graph) -> set[Node]:
    """Return the attention nodes whose keys and values are concatenated, and read only by them and the caller."""
    counts, returned = use_counts(graph), Counter(graph.outputs)
    counts.subtract(node.operands[0] for node in graph.nodes if is_op(node, "Shape"))

    def is_kept(value: Value, reader: Node) -> bool:
        return 0 < returned[value] == counts[value] - reader.inputs.count(value)

    return {
        node
        for node in graph.nodes
        if isinstance(node.op, FusedAttention)
        and all(_is_concatenated(v, node) and is_kept(v, node) for v in node.operands[1:3])
    }


def _is_concatenated(value: Value, reader: Node) -> bool:
    """Return whether an operand of attention is the concatenation of two tensors along the axis of the rows."""
    join = producer(value, "Concat")
    if join is None or len(join.inputs) != 2 or join.output.dtype is not DType.FLOAT32:
        return False
    return operator(reader, FusedAttention).layout == "NHLD" and operator(join, Concat).axis in (_ROWS, _ROWS - 4)


def _parts(value: Value) -> Sequence[Value]:
    join = producer(value, "Concat")
    assert join is not None, "it is concatenated"
    return join.operands


def _cached(node: Node) -> Node:
    q, keys, values, *mask = node.operands
    (past_k, k), (past_v, v) = _parts(keys), _parts(values)
    names = [value.name for value in (node.output, keys, values)]
    op = CachedAttention(**node.op.attributes())
    return Node(op, [q, k, v, past_k, past_v, *mask], node.name, node.meta, output_names=names)


def _shape_of_parts(node: Node) -> Value:
    """Return the shape of a concatenation, computed from its parts."""
    past, new = (node.rebuilt([part]).output for part in _parts(node.operands[0]))
    op = operator(node, Shape)
    rows = np.eye(1, 4, _ROWS, dtype=np.int64)[0, op.start : op.end]
    shape: Value = F.add(past, F.mul(new, rows))
    return shape
