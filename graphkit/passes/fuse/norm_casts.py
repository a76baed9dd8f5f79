"""Normalisations that read and write half floats, where casts stand around those in float32.

What they compute stays float32, and so do the bits of what they write: memory has half of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops import DOMAIN, Op, operator
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import elements_read, map_bodies, readers_of, rewrite

# The operands that may be half floats, of the operators whose first result may be.
_OPERANDS = {"ChannelsLastBatchNorm": (0, 5), "ChannelsLastBatchNormGrad": (0, 1, 6, 7)}


@graph_pass(requires=[Property.POINTWISE_APART])
def fuse_norm_casts(graph: Graph) -> Graph:
    """Let ChannelsLastBatchNorm and its gradient widen what they read, and round a result that is read rounded alone.

    Linear.
    """
    readers = readers_of(graph)
    results = {*graph.outputs, *(new for _, new in graph.updates)}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_op(node, "Cast"):
            (x,) = operands
            is_rounded = x is not None and x.dtype is operator(node, Cast).to and x.dtype in HALVES
            return (x,) if is_rounded and x is not None else None
        if node.op.domain != DOMAIN or node.op.name not in _OPERANDS:
            return map_bodies(node, operands, fuse_norm_casts).outputs if node.op.subgraphs() else None
        read = [_before(v) if i in _OPERANDS[node.op.name] and v is not None else v for i, v in enumerate(operands)]
        first = node.outputs[0]
        made = None if first in results else _rounded(first, readers.get(first, ()))
        if made is None and read == [*operands]:
            return None
        op = operator(node, Op)
        op = op if made is None else op.replace(made=made)
        return Node(op, read, node.name, node.meta, output_names=[v.name for v in node.outputs]).outputs

    return rewrite(graph, rule)


def _before(value: Value) -> Value:
    """What was widened to float32 to become a value; else the value."""
    if value.node is None or not is_op(value.node, "Cast") or value.dtype is not DType.FLOAT32:
        return value
    x = value.node.operands[0]
    return x if x.dtype in HALVES else value


def _rounded(value: Value, readers: Sequence[Node]) -> DType | None:
    """The half floats that all who read elements of a float32 round them to; others want its shape, not its type."""
    casts = [node for node in readers if is_op(node, "Cast")]
    kinds = {operator(node, Cast).to for node in casts}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in HALVES or value.dtype is not DType.FLOAT32:
        return None
    instead = Value(TensorType(kind, value.shape))
    others = (node for node in readers if not is_op(node, "Cast"))
    return kind if all(_takes(node, value, instead) for node in others) else None


def _takes(node: Node, value: Value, instead: Value) -> bool:
    """Whether a node reads no elements of a value, and is the same with another in its place."""
    if value in elements_read(node) or node.op.subgraphs():
        return False
    try:
        made = Node(node.op, [instead if v is value else v for v in node.inputs])
    except TypeMismatch:
        return False
    return [v.type for v in made.outputs] == [v.type for v in node.outputs]
