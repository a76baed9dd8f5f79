"""Matrix work in bfloat16: products and convolutions read and write it, and sum in float32; all else stays float32."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, F
from graphkit.passes._base import map_bodies, rewrite

_PRODUCTS = {
    ("", "MatMul"),
    ("", "Gemm"),
    ("", "Conv"),
    ("", "ConvTranspose"),
    (DOMAIN, "FusedMatMul"),
    (DOMAIN, "FusedConv"),
    (DOMAIN, "ChannelsLastConv"),
    (DOMAIN, "ChannelsLastConvTranspose"),
}


def to_bfloat16(graph: Graph) -> Graph:
    """Round the operands and the result of every float32 product to bfloat16.

    A value rounded so has a relative error of at most 2^-8. Casts that meet each other vanish in `simplify`, so that
    products which follow each other hand bfloat16 on. Linear.
    """

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        if (node.op.domain, node.op.name) not in _PRODUCTS:
            return map_bodies(node, operands, to_bfloat16).outputs
        if any(v is not None and v.dtype is not DType.FLOAT32 for v in operands):
            return None
        rounded = [None if v is None else F.cast(v, to="bfloat16") for v in operands]
        y = node.rebuilt(rounded).output
        wide: Value = F.cast(y, to="float32")
        y.name, wide.name = "", y.name
        return (wide,)

    return rewrite(graph, rule)
