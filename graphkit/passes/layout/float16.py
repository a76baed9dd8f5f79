"""Compute float16 and bfloat16 in float32, and round only at outputs, states, and explicit casts.

Without this pass, every operator rounds its result. Values that pass through many layers then lose accuracy. ONNX
Runtime also computes float16 in float32 on CPUs.
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

# Casts in the file keep their rounding.
_CONVERSIONS = frozenset({"Cast", "CastLike", "BitCast"})
# Data movement. These operators stay in 16 bits, unless an operand is already available in float32.
_MOVEMENT = frozenset(
    {
        "Identity", "StopGradient", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile",
        "Slice", "Concat", "Split", "Gather", "GatherElements", "GatherND", "Pad", "Where", "DepthToSpace",
        "SpaceToDepth", "ReverseSequence", "Trilu", "Compress", "Unique", "NonZero", "EyeLike", "Shape", "Size",
    }
)  # fmt: skip
# Data movement if they do not combine elements.
_SCATTER = frozenset({"ScatterElements", "ScatterND"})


@graph_pass(ensures=[Property.HALVES_WIDENED])
def widen_halves(graph: Graph, halves: Collection[DType] = HALVES) -> Graph:
    """Run operators on the types `halves` in float32, with casts where such values enter and leave. Takes linear time.

    A result is rounded only if it is an output, a new state, a value that a loop carries, or the operand of a cast or
    of an operator that reads bits. All values between are float32, including constants. A graph without such types is
    returned unchanged.
    """

    def is_half(value: Value | None) -> bool:
        return value is not None and isinstance(value.type, TensorType) and value.type.dtype in halves

    found = any(is_half(v) for v in graph.values)
    if not found and not any(is_control(n) for n in graph.nodes):
        return graph
    # For each 16-bit value, the float32 value with the same elements.
    float32_values: dict[Value, Value] = {}

    def as_float32(value: Value | None) -> Value | None:
        if value is None or not is_half(value):
            return value
        if value not in float32_values:
            float32_values[value] = F.cast(value, to=DType.FLOAT32)
        return float32_values[value]

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            return map_bodies(node, operands, lambda inner: widen_halves(inner, halves)).outputs
        if not any(is_half(v) for v in operands) or not _computes(node, operands, float32_values):
            return None
        try:
            results = node.rebuilt([as_float32(v) for v in operands]).outputs
        except GraphkitError:  # another operand or an attribute has a 16-bit type
            return None
        if any(is_half(v) or not isinstance(v.type, TensorType) for v in results):
            return None
        return [rounded(new, old) for new, old in zip(results, node.outputs, strict=True)]

    def rounded(result: Value, old: Value) -> Value:
        # Return the declared type. Readers that compute in float32 use `result` itself.
        if not is_half(old):
            return result
        half: Value = F.cast(result, to=old.dtype)
        float32_values[half] = result
        return half

    result = rewrite(graph, rule)
    return fold(result) if found else result


def _computes(node: Node, operands: Sequence[Value | None], float32_values: Collection[Value]) -> bool:
    """Return whether the node must run in float32: it computes, or it moves data that are available in float32."""
    op = node.op
    if (
        not isinstance(op, Op)
        or not op.reference_in_float32
        or op.subgraphs()
        or (not op.domain and op.name in _CONVERSIONS)
    ):
        return False
    moves = op.name in _MOVEMENT or (op.name in _SCATTER and getattr(op, "reduction", "none") == "none")
    return not moves or any(v in float32_values for v in operands if v is not None)
