"""Let normalisations and losses read and write float16 or bfloat16 where casts surround them in float32.

They still compute in float32, and their results have the same bits, but use half of the memory.
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
from graphkit.passes.core.match import RESHAPES, is_op
from graphkit.passes.core.sweep import elements_read, map_bodies, readers_of, rewrite

# The operands that may be half floats, and the result that may be, of operators that say so by `made`.
_HALVES = {
    "ChannelsLastBatchNorm": ((0, 5), 0),
    "ChannelsLastBatchNormGrad": ((0, 1, 6, 7), 0),
    "MixedPrecisionLayerNorm": ((0,), 0),
    "LayerNormGrad": ((0, 1), 0),
    "SoftmaxCrossEntropyWithGrad": ((0,), 1),
}

# How many reshapes are looked through; longer chains have been merged.
_CHAIN = 8


@graph_pass(requires=[Property.POINTWISE_APART], at=["Cast"])
def fuse_norm_casts(graph: Graph) -> Graph:
    """Let normalisations of batches and layers, their gradients and those of losses widen what they read, in whatever
    shape it is, and round a result that is read rounded alone.

    A LayerNormalization becomes MixedPrecisionLayerNorm: the standard's has one type. Linear.
    """
    readers = readers_of(graph)
    results = {*graph.outputs, *(new for _, new in graph.updates)}

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_op(node, "Cast"):
            (x,) = operands
            is_rounded = x is not None and x.dtype is operator(node, Cast).to and x.dtype in HALVES
            return (x,) if is_rounded and x is not None else None
        op = _of_halves(operator(node, Op))
        if op.domain != DOMAIN or op.name not in _HALVES:
            return map_bodies(node, operands, fuse_norm_casts).outputs if node.op.subgraphs() else None
        positions, written = _HALVES[op.name]
        read = [_before(v) if i in positions and v is not None else v for i, v in enumerate(operands)]
        result = node.outputs[written]
        made = None if result in results else _rounded(result, readers.get(result, ()))
        if made is None and read == [*operands]:
            return None
        op = op if made is None else op.replace(made=made)
        return Node(op, read, node.name, node.meta, output_names=[v.name for v in node.outputs]).outputs

    return rewrite(graph, rule)


def _of_halves(op: Op) -> Op:
    """The operator that may read and write half floats beside float32; else the operator."""
    if not isinstance(op, LayerNormalization) or op.stash is not DType.FLOAT32:
        return op
    return MixedPrecisionLayerNorm(axis=op.axis, epsilon=op.epsilon, stash_type=op.stash_type)


def _before(value: Value) -> Value:
    """What was widened to float32 to become a value, in the same shape; else the value."""
    reshapes: list[Node] = []
    x = value
    while x.node is not None and is_op(x.node, *RESHAPES) and len(reshapes) < _CHAIN:
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
