"""Compute float16 and bfloat16 in float32, and round only at outputs, states, and explicit casts.

Without it every operator rounds its result, and a sum of many layers loses digits that ONNX Runtime keeps, which runs
float16 on a CPU in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from graphkit.errors import GraphkitError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import HALVES, DType, TensorType
from graphkit.ops import F, Op
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import is_control, map_bodies, rewrite
from graphkit.passes.simplify.fold import fold

# What the file rounds, it rounds.
_CONVERSIONS = frozenset({"Cast", "CastLike", "BitCast"})
# Operators that hand elements on: they stay in half precision unless an operand is there in float32 already.
_MOVEMENT = frozenset(
    {
        "Identity", "StopGradient", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile",
        "Slice", "Concat", "Split", "Gather", "GatherElements", "GatherND", "Pad", "Where", "DepthToSpace",
        "SpaceToDepth", "ReverseSequence", "Trilu", "Compress", "Unique", "NonZero", "EyeLike", "Shape", "Size",
    }
)  # fmt: skip


@graph_pass(ensures=[Property.HALVES_WIDENED])
def widen_halves(graph: Graph, halves: Collection[DType] = HALVES) -> Graph:
    """Replace operators on types of `halves` by the same ones on float32, with casts where halves come in and leave.

    A result is rounded where it is an output, a new state, a value that a loop carries, or the operand of a cast or of
    an operator that reads bits; what is between stays float32, and constants are float32 too. A graph without half
    floats is returned as it is. Linear.
    """

    def is_half(value: Value | None) -> bool:
        return value is not None and isinstance(value.type, TensorType) and value.type.dtype in halves

    found = any(is_half(v) for v in graph.values)
    if not found and not any(is_control(n) for n in graph.nodes):
        return graph
    # The same elements before they were rounded, or after they were read.
    wide: dict[Value, Value] = {}

    def widened(value: Value | None) -> Value | None:
        if value is None or not is_half(value):
            return value
        if value not in wide:
            wide[value] = F.cast(value, to=DType.FLOAT32)
        return wide[value]

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            return map_bodies(node, operands, lambda inner: widen_halves(inner, halves)).outputs
        if not any(is_half(v) for v in operands) or not _computes(node, operands, wide):
            return None
        try:
            results = node.rebuilt([widened(v) for v in operands]).outputs
        except GraphkitError:  # an operator that float32 does not fit, beside an operand or an attribute of half type
            return None
        if any(is_half(v) or not isinstance(v.type, TensorType) for v in results):
            return None
        return [rounded(new, old) for new, old in zip(results, node.outputs, strict=True)]

    def rounded(result: Value, old: Value) -> Value:
        # In the type that the graph declares; readers that compute take the result itself.
        if not is_half(old):
            return result
        half: Value = F.cast(result, to=old.dtype)
        wide[half] = result
        return half

    result = rewrite(graph, rule)
    return fold(result) if found else result


def _computes(node: Node, operands: Sequence[Value | None], wide: Collection[Value]) -> bool:
    """Whether the node rounds what it makes, or hands on what is there in float32."""
    op = node.op
    if (
        not isinstance(op, Op)
        or not op.reference_in_float32
        or op.subgraphs()
        or (not op.domain and op.name in _CONVERSIONS)
    ):
        return False
    return op.name not in _MOVEMENT or any(v in wide for v in operands if v is not None)
