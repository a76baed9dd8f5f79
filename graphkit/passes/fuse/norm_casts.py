"""Let float32 normalisations and losses between casts read and write float16 or bfloat16 directly.

They still compute in float32. Their results are bit-identical, but need half of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops import DOMAIN, Op, operator
from graphkit.ops.internal.half_norm import MixedPrecisionLayerNorm
from graphkit.ops.nn.norm import LayerNormalization
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import is_op
from graphkit.passes.core.relevance import RESHAPES
from graphkit.passes.core.sweep import elements_read, map_bodies, readers_of, rewrite

# By operator: positions of the operands that may have 16 bits, and of the result whose type the attribute `made` sets.
_HALVES = {
    "ChannelsLastBatchNorm": ((0, 5), 0),
    "ChannelsLastBatchNormGrad": ((0, 1, 6, 7), 0),
    "MixedPrecisionLayerNorm": ((0,), 0),
    "LayerNormGrad": ((0, 1), 0),
    "SoftmaxCrossEntropyWithGrad": ((0,), 1),
}

# The largest number of reshapes that the pass follows. Longer chains have been merged.
_MAX_CHAIN = 8


@graph_pass(requires=[Property.POINTWISE_APART], at=["Cast"])
def fuse_norm_casts(graph: Graph) -> Graph:
    """Remove casts before and after normalisations and losses, which can read and write 16-bit types.

    This applies to batch and layer normalisation and their gradients, and to the gradients of losses. Casts of operands
    are removed also if reshapes are between. A cast of the result is removed if all readers cast it to the same type.

    A LayerNormalization becomes MixedPrecisionLayerNorm, because the standard operator has one type for operand and
    result. Takes linear time.
    """
    readers = readers_of(graph)
    results = {*graph.outputs, *(new for _, new in graph.updates)}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_op(node, "Cast"):
            (x,) = operands
            is_rounded = x is not None and x.dtype is operator(node, Cast).to and x.dtype in HALVES
            return (x,) if is_rounded and x is not None else None
        op = _mixed_precision(operator(node, Op))
        if op.domain != DOMAIN or op.name not in _HALVES:
            return map_bodies(node, operands, fuse_norm_casts).outputs if node.op.subgraphs() else None
        positions, written = _HALVES[op.name]
        read = [_before_cast(v) if i in positions and v is not None else v for i, v in enumerate(operands)]
        result = node.outputs[written]
        made = None if result in results else _rounded(result, readers.get(result, ()))
        if made is None and read == [*operands]:
            return None
        op = op if made is None else op.replace(made=made)
        return Node(op, read, node.name, node.meta, output_names=[v.name for v in node.outputs]).outputs

    return rewrite(graph, rule)


def _mixed_precision(op: Op) -> Op:
    """Return the corresponding operator that supports 16-bit types together with float32; the same operator if there is
    none.
    """
    if not isinstance(op, LayerNormalization) or op.stash is not DType.FLOAT32:
        return op
    return MixedPrecisionLayerNorm(axis=op.axis, epsilon=op.epsilon, stash_type=op.stash_type)


def _before_cast(value: Value) -> Value:
    """Return the 16-bit value that was cast to float32, with the shape of `value`; `value` itself if there was no such
    cast.
    """
    reshapes: list[Node] = []
    x = value
    while x.node is not None and is_op(x.node, *RESHAPES) and len(reshapes) < _MAX_CHAIN:
        reshapes.append(x.node)
        x = x.node.operands[0]
    if x.node is None or not is_op(x.node, "Cast") or x.dtype is not DType.FLOAT32:
        return value
    x = x.node.operands[0]
    if x.dtype not in HALVES:
        return value
    for node in reversed(reshapes):
        x = Node(node.op, [x, *node.inputs[1:]], node.name, node.meta).output
    return x


def _rounded(value: Value, readers: Sequence[Node]) -> DType | None:
    """Return the 16-bit type to which all readers cast the value; None if there is none.

    Readers of the shape do not count.
    """
    casts = [node for node in readers if is_op(node, "Cast")]
    kinds = {operator(node, Cast).to for node in casts}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in HALVES or value.dtype is not DType.FLOAT32:
        return None
    instead = Value(TensorType(kind, value.shape))
    others = (node for node in readers if not is_op(node, "Cast"))
    return kind if all(_accepts(node, value, instead) for node in others) else None


def _accepts(node: Node, value: Value, instead: Value) -> bool:
    """Return whether a node reads no elements of a value, and has the same result types with `instead`."""
    if value in elements_read(node) or node.op.subgraphs():
        return False
    try:
        made = Node(node.op, [instead if v is value else v for v in node.inputs])
    except TypeMismatch:
        return False
    return [v.type for v in made.outputs] == [v.type for v in node.outputs]
