"""Scaled dot-product attention, fused."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.fused import FusedAttention


@kernel("FusedAttention", DOMAIN)
def _attention(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, FusedAttention)
    if node.output.dtype is not DType.FLOAT32:
        return None
    mask = operand(node, 3)
    q, k, v = (shape(x) for x in node.inputs[:3])
    return native.Attention(
        q,
        k,
        v,
        None if mask is None else shape(mask),
        mask is not None and mask.dtype is DType.BOOL,
        scale=op.scale,
        hidden_score=op.mask_value,
        causal=op.causal,
        heads_last=op.layout == "NLHD",
        output_heads_last=op.output_layout == "NLHD",
        threads=context.threads,
    )
