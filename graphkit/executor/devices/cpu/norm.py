"""Gradients of normalisations, and batch normalisation in channels-last layout."""

from __future__ import annotations

import numpy as np

from graphkit.executor.devices.cpu._base import kernel, native
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.operands import operand, shape
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import DType
from graphkit.ops._base import DOMAIN, operator
from graphkit.ops.internal.channels_last_norm import ChannelsLastBatchNorm, ChannelsLastBatchNormGrad
from graphkit.ops.nn.norm import BatchNormGrad, LayerNormGrad, RMSNormGrad
from graphkit.ops.nn.norm_image import GroupNormGrad


def _dtype(node: Node, position: int = 0) -> str:
    return str(_present(node, position).dtype)


def _present(node: Node, position: int) -> Value:
    value = operand(node, position)
    assert value is not None
    return value


# --- gradients ------------------------------------------------------------------------------------


@kernel("LayerNormGrad", DOMAIN)
def _layer_norm_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, LayerNormGrad)
    mean = operand(node, 3)
    if len({v.dtype for v in (*node.operands[:3], node.outputs[0])}) > 1:
        return None
    return native.LayerNormGrad(
        shape(node.inputs[1]),
        op.axis,
        shape(node.inputs[2]),
        _dtype(node),
        op.epsilon,
        statistics="float32" if mean is None else str(mean.dtype),
        threads=context.threads,
    )


@kernel("RMSNormGrad", DOMAIN)
def _rms_norm_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, RMSNormGrad)
    if _dtype(node, 0) != _dtype(node, 1):
        return None
    x, scale = shape(node.inputs[1]), shape(node.inputs[2])
    return native.LayerNormGrad(x, op.axis, scale, _dtype(node), op.epsilon, about_mean=False, threads=context.threads)


@kernel("BatchNormGrad", DOMAIN)
def _batch_norm_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, BatchNormGrad)
    return native.BatchNormGrad(shape(node.inputs[1]), _dtype(node), _dtype(node, 2), op.epsilon, context.threads)


@kernel("GroupNormGrad", DOMAIN, covers=lambda node: True)
def _group_norm_grad(node: Node, context: KernelContext) -> Kernel | None:
    op = operator(node, GroupNormGrad)
    x = shape(node.inputs[1])
    groups = x[1] if op.num_groups is None else op.num_groups
    return native.GroupNormGrad(x, groups, _dtype(node), op.epsilon, context.threads) if groups else None


# --- channels last --------------------------------------------------------------------------------


def _is_single(node: Node) -> bool:
    return all(v is None or v.dtype is DType.FLOAT32 for v in (*node.inputs, *node.outputs))


@kernel("ChannelsLastBatchNorm", DOMAIN)
def _channels_last_batch_norm(node: Node, context: KernelContext) -> Kernel | None:
    if not _is_single(node):
        return None
    op = operator(node, ChannelsLastBatchNorm)
    low, high = op.limits
    residual = operand(node, 5) is not None
    return native.ChannelsLastBatchNorm(
        shape(node.inputs[0]), op.epsilon, op.momentum, low=low, high=high, residual=residual, threads=context.threads
    )


@kernel("ChannelsLastBatchNormGrad", DOMAIN)
def _channels_last_batch_norm_grad(node: Node, context: KernelContext) -> Kernel | None:
    if not _is_single(node):
        return None
    op = operator(node, ChannelsLastBatchNormGrad)
    low, high = op.limits
    if op.activation == "Clip":
        # An element that equals the lower limit also passes its gradient.
        low = float(np.nextafter(np.float32(low), np.float32(-np.inf)))
    return native.ChannelsLastBatchNormGrad(
        shape(node.inputs[1]),
        passed=(low, high) if op.activation else None,
        from_y=operand(node, 6) is not None,
        addend=operand(node, 7) is not None,
        threads=context.threads,
    )
