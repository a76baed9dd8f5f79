"""Scaled dot-product attention, fused."""

from __future__ import annotations

from typing import Any

from graphkit.executor.devices.cpu._base import native, present, sized_kernel
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand
from graphkit.executor.devices.registry import Shapes
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.attention_cache import CachedAttention
from graphkit.ops.internal.attention_gradient import FusedAttentionGrad, FusedAttentionWithStatistics
from graphkit.ops.internal.fused import AttentionOp, FusedAttention


@sized_kernel("FusedAttention", DOMAIN)
def _attention(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    return _native(node, operator(node, FusedAttention), 3, None, context, inputs)


@sized_kernel("CachedAttention", DOMAIN)
def _cached(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    return _native(node, operator(node, CachedAttention), 5, present(inputs[3])[2], context, inputs)


@sized_kernel("FusedAttentionWithStatistics", DOMAIN)
def _with_statistics(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    op = operator(node, FusedAttentionWithStatistics)
    return _native(node, op, 3, None, context, inputs, statistics=True)


@sized_kernel("FusedAttentionGrad", DOMAIN)
def _gradient(node: Node, context: KernelContext, inputs: Shapes, outputs: Shapes) -> Kernel | None:
    if node.outputs[0].dtype is not DType.FLOAT32:
        return None
    options = _options(operator(node, FusedAttentionGrad), operand(node, 3), inputs[3])
    q, k, v = (present(s) for s in inputs[:3])
    return native.AttentionGradient(q, k, v, **options, threads=context.threads)


def _options(op: AttentionOp, mask: Value | None, mask_shape: tuple[int, ...] | None) -> dict[str, Any]:
    """Return what the operator and its mask tell every kernel of attention."""
    return {
        "mask": mask_shape,
        "boolean_mask": mask is not None and mask.dtype is DType.BOOL,
        "scale": op.scale,
        "hidden_score": op.mask_value,
        "causal": op.causal,
        "heads_last": op.layout == "NLHD",
        "output_heads_last": op.output_layout == "NLHD",
    }


def _native(
    node: Node,
    op: AttentionOp,
    mask_at: int,
    past: int | None,
    context: KernelContext,
    inputs: Shapes,
    *,
    statistics: bool = False,
) -> Kernel | None:
    """Return the kernel. past: the number of cached keys and values, which come before the new ones; None: no cache."""
    if node.outputs[0].dtype is not DType.FLOAT32:
        return None
    returned = (*context.used_outputs, True, True, True)
    q, k, v = (present(s) for s in inputs[:3])
    return native.Attention(
        q,
        k,
        v,
        **_options(op, operand(node, mask_at), inputs[mask_at] if mask_at < len(inputs) else None),
        statistics=statistics,
        past=past,
        keys_returned=returned[1],
        values_returned=returned[2],
        threads=context.threads,
    )
