"""Scaled dot-product attention, fused."""

from __future__ import annotations

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.attention_cache import CachedAttention
from graphkit.ops.internal.fused import AttentionOp, FusedAttention


@kernel("FusedAttention", DOMAIN)
def _attention(node: Node, context: KernelContext) -> Kernel | None:
    return _native(node, operator(node, FusedAttention), 3, None, context)


@kernel("CachedAttention", DOMAIN)
def _cached(node: Node, context: KernelContext) -> Kernel | None:
    return _native(node, operator(node, CachedAttention), 5, shape(node.inputs[3])[2], context)


def _native(node: Node, op: AttentionOp, mask_at: int, past: int | None, context: KernelContext) -> Kernel | None:
    """Return the kernel. past: the number of cached keys and values, which come before the new ones; None: no cache."""
    if node.outputs[0].dtype is not DType.FLOAT32:
        return None
    mask = operand(node, mask_at)
    q, k, v = (shape(x) for x in node.inputs[:3])
    returned = (*context.used_outputs, True, True, True)
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
        past=past,
        keys_returned=returned[1],
        values_returned=returned[2],
        threads=context.threads,
    )
