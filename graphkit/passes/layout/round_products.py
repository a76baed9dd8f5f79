"""Compute matrix products, convolutions, their gradients and attention in float16 or bfloat16, with sums in float32.

Everything else stays float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import ml_dtypes

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, F, Op, operator
from graphkit.ops.internal.fused_attention import AttentionOp
from graphkit.ops.tensor.cast import Cast
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.sweep import map_bodies, read_positions, rewrite

_PRODUCTS = {
    ("", "MatMul"),
    ("", "Gemm"),
    (DOMAIN, "FusedMatMul"),
    ("", "Conv"),
    ("", "ConvTranspose"),
    (DOMAIN, "FusedConv"),
    (DOMAIN, "ChannelsLastConv"),
    (DOMAIN, "ChannelsLastConvTranspose"),
    (DOMAIN, "ConvGradInput"),
    (DOMAIN, "ChannelsLastConvGradInput"),
    (DOMAIN, "ConvGradWeight"),
    (DOMAIN, "ChannelsLastConvGradWeight"),
}


@graph_pass(
    requires=[Property.MATMULS_FUSED, Property.CONVOLUTIONS_FUSED, Property.POINTWISE_APART],
    breaks=[Property.SIMPLIFIED],
)
def round_products(graph: Graph, *, kind: DType = DType.BFLOAT16, attention: bool = False) -> Graph:
    """Round the operands and the result of every float32 matrix product and convolution to `kind`. Takes linear time.

    Rounding to bfloat16 has a relative error of at most 2^-8. Rounding to float16 has at most 2^-11 for magnitudes
    between 2^-14 and 65504. `simplify` removes casts that cancel, so successive products pass 16-bit values to each
    other.

    Not rounded: the mask that is added to attention scores, and the gradient of a convolution's weights, which keeps
    the type of the weights.

    Some convolutions are kept, and so are their gradients: depthwise ones without a fused bias or activation, because
    memory bandwidth limits them, and transposed ones with an odd number of channels (including gradients for the
    input).
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if attention and isinstance(node.op, AttentionOp):
            return _attention(node, operands, kind)
        if (node.op.domain, node.op.name) not in _PRODUCTS:
            return map_bodies(node, operands, partial(round_products, kind=kind, attention=attention)).outputs
        if any(v is not None and v.dtype is not DType.FLOAT32 for v in operands) or _is_plain_depthwise(node):
            return None
        if _sums_odd_channels(node):
            return None
        return _rounded(node, operands, kind, read_positions(node), operator(node, Op))

    return rewrite(graph, rule)


def _attention(node: Node, operands: Sequence[Value | None], kind: DType) -> Sequence[Value] | None:
    q, *_ = operands
    assert q is not None
    if q.dtype is not DType.FLOAT32:
        return None
    op = operator(node, AttentionOp)
    if math.isfinite(op.mask_value):
        # Keep the mask value finite. A query whose keys are all masked then gets equal weights.
        least, most = (float(limit) for limit in (ml_dtypes.finfo(kind.numpy).min, ml_dtypes.finfo(kind.numpy).max))
        op = op.replace(mask_value=min(max(op.mask_value, least), most))
    # Statistics are always float32.
    exact = {"mask", "largest", "total"}
    positions = [i for i, formal in enumerate(op.formals[: len(operands)]) if formal.name not in exact]
    return _rounded(node, operands, kind, positions, op)


def _rounded(
    node: Node, operands: Sequence[Value | None], kind: DType, positions: Sequence[int], op: Op
) -> Sequence[Value]:
    """Return the results of the node with operator `op`, with the operands at `positions` cast to `kind`."""
    rounded = list(operands)
    for i in positions:
        operand = operands[i]
        assert operand is not None
        rounded[i] = F.cast(operand, to=kind)
    made = Node(op, rounded, node.name, node.meta)
    if all(y.dtype is DType.FLOAT32 for y in made.outputs):
        return node.rebuilt(rounded).outputs
    # Other nodes read float32 values, which keep the names.
    return tuple(
        Node(Cast(to=DType.FLOAT32), (new,), output_names=[old.name]).output if new.dtype is kind else new
        for old, new in zip(node.outputs, made.outputs, strict=True)
    )


def _sums_odd_channels(node: Node) -> bool:
    """Return whether this is a transposed convolution, or the input gradient of a convolution, with an odd number of
    channels.

    The library supports these not at all, or only for some kernel sizes.
    """
    if not node.op.name.endswith(("ConvTranspose", "GradInput")):
        return False
    shape = node.operands[1].shape  # [channels, filters / group, *kernel]; of a gradient, the filters are summed
    channels = shape[0] if shape else None
    return isinstance(channels, int) and channels // node.op.attributes()["group"] % 2 == 1


def _is_plain_depthwise(node: Node) -> bool:
    op = node.op
    group = getattr(op, "group", 1)
    w = node.operands[2 if op.name.endswith("GradWeight") else 1]
    each = -1 if getattr(op, "filters_last", False) else 1
    if group == 1 or w.shape is None or (w.shape[0], w.shape[each]) != (group, 1):
        return False
    return op.name.endswith(("GradInput", "GradWeight")) or (
        len(node.operands) == 2 and not getattr(op, "activation", "")
    )
