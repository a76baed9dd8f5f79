"""Matrix work in half floats: products, convolutions and their gradients read and write these, and sum in float32.

All else stays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, F
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
def round_products(graph: Graph, *, kind: DType = DType.BFLOAT16) -> Graph:
    """Round the operands and the result of every float32 product to `kind`.

    A value rounded to bfloat16 has a relative error of at most 2^-8, to float16 of at most 2^-11 unless it is below
    2^-14 or above 65504. Casts that meet each other vanish in `simplify`, so that products which follow each other hand
    half floats on. The gradient of a convolution's weights is not rounded: it has
    the type of the weights, of which it reads the shape alone. Convolutions with one filter for each channel that have
    nothing fused behind them, and their gradients, are bound by memory and stay as they are, and so do transposed
    convolutions over an odd number of channels, gradients in the input among them. Linear.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if (node.op.domain, node.op.name) not in _PRODUCTS:
            return map_bodies(node, operands, partial(round_products, kind=kind)).outputs
        if any(v is not None and v.dtype is not DType.FLOAT32 for v in operands) or _is_bare_depthwise(node):
            return None
        if _sums_odd_channels(node):
            return None
        rounded = list(operands)
        for i in read_positions(node):
            operand = operands[i]
            assert operand is not None
            rounded[i] = F.cast(operand, to=kind)
        y = Node(node.op, rounded, node.name, node.meta).output
        if y.dtype is DType.FLOAT32:
            return node.rebuilt(rounded).outputs
        # The value that others know is the one in float32.
        return Node(Cast(to=DType.FLOAT32), (y,), output_names=[node.output.name]).outputs

    return rewrite(graph, rule)


def _sums_odd_channels(node: Node) -> bool:
    """Whether this is a transposed convolution, or a gradient that is one, over an odd number of channels.

    The library has no implementation of these, or only for some windows.
    """
    if not node.op.name.endswith(("ConvTranspose", "GradInput")):
        return False
    shape = node.operands[1].shape  # [channels, filters / group, *kernel]; of a gradient, the filters are summed
    channels = shape[0] if shape else None
    return isinstance(channels, int) and channels // node.op.attributes()["group"] % 2 == 1


def _is_bare_depthwise(node: Node) -> bool:
    op = node.op
    group = getattr(op, "group", 1)
    w = node.operands[2 if op.name.endswith("GradWeight") else 1]
    if group == 1 or w.shape is None or w.shape[:2] != (group, 1):
        return False
    return op.name.endswith(("GradInput", "GradWeight")) or (
        len(node.operands) == 2 and not getattr(op, "activation", "")
    )
