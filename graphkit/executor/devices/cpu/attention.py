"""Scaled dot-product attention, fused."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.attention_cache import CachedAttention
from graphkit.ops.internal.attention_gradient import FusedAttentionGrad, FusedAttentionWithStatistics
from graphkit.ops.internal.fused import AttentionOp, FusedAttention


@kernel("FusedAttention", DOMAIN)
def _attention(node: Node, context: KernelContext) -> Kernel | None:
    return _native(node, operator(node, FusedAttention), 3, None, context)


@kernel("CachedAttention", DOMAIN)
def _cached(node: Node, context: KernelContext) -> Kernel | None:
    return _native(node, operator(node, CachedAttention), 5, shape(node.inputs[3])[2], context)


@kernel("FusedAttentionWithStatistics", DOMAIN)
def _with_statistics(node: Node, context: KernelContext) -> Kernel | None:
    return _native(node, operator(node, FusedAttentionWithStatistics), 3, None, context, statistics=True)


@kernel("FusedAttentionGrad", DOMAIN)
def _gradient(node: Node, context: KernelContext) -> Kernel | None:
    if node.outputs[0].dtype is not DType.FLOAT32:
        return None
    options = _options(operator(node, FusedAttentionGrad), operand(node, 3))
    q, k, v = (shape(x) for x in node.inputs[:3])
    return native.AttentionGradient(q, k, v, **options, threads=context.threads)


def _options(op: AttentionOp, mask: Value | None) -> dict[str, Any]:
    """Return what the operator and its mask tell every kernel of attention."""
    return {
        "mask": None if mask is None else shape(mask),
        "boolean_mask": mask is not None and mask.dtype is DType.BOOL,
        "scale": op.scale,
        "hidden_score": op.mask_value,
        "causal": op.causal,
        "heads_last": op.layout == "NLHD",
        "output_heads_last": op.output_layout == "NLHD",
    }


def _native(
    node: Node, op: AttentionOp, mask_at: int, past: int | None, context: KernelContext, *, statistics: bool = False
) -> Kernel | None:
    """Return the kernel. past: the number of cached keys and values, which come before the new ones; None: no cache."""
    if node.outputs[0].dtype is not DType.FLOAT32:
        return None
    returned = (*context.used_outputs, True, True, True)
    q, k, v = (shape(x) for x in node.inputs[:3])
    return native.Attention(
        q,
        k,
        v,
        **_options(op, operand(node, mask_at)),
        statistics=statistics,
        past=past,
        keys_returned=returned[1],
        values_returned=returned[2],
        threads=context.threads,
    )
