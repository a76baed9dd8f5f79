"""Layer, RMS and group normalisations with what is added before them, and the embeddings of BERT."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.layout import channels_first, channels_last, rank_of
from graphkit.onnx_io.upgrade.contrib.scores import summed
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like


@contrib("SkipLayerNormalization")
def _skip_layer_norm(node: NodeView) -> Results:
    """Layer normalisation of x + skip + bias; the sum is the fourth output."""
    x, skip, gamma = (node.operand(i) for i in range(3))
    total = summed(x, skip, node.input(4))
    y, mean, scale = F.layer_normalization(total, gamma, node.input(3), epsilon=node.take("epsilon", 1e-12))
    return y, mean, scale, total


@contrib("LayerNormalization")
def _layer_norm(node: NodeView) -> Results:
    attrs = node.taken("axis", "epsilon", "stash_type")
    results: Results = F.layer_normalization(node.operand(0), node.operand(1), node.input(2), **attrs)
    return results


def rms_norm(node: NodeView, x: Any, gamma: Any, axis: int, epsilon: float, index: int) -> tuple[Any, Any]:
    """RMS normalisation from `axis` on; and 1 / RMS for the node's output `index`, or None if that output is unused."""
    y = F.rms_normalization(x, converted(gamma, x.dtype), axis=axis, epsilon=epsilon)
    y = converted(y, gamma.dtype)
    if not node.wants(index):
        return y, None
    if x.rank is None:
        raise UnsupportedError(f"{node.label}: inv_std_var needs a tensor of known rank")
    wide = converted(x, wide_type(x.dtype))
    square = F.reduce_mean(F.mul(wide, wide), i64(*range(axis % x.rank, x.rank)))
    inverse = F.reciprocal(F.sqrt(F.add(square, scalar_like(epsilon, wide))))
    return y, converted(inverse, DType.FLOAT32)


@contrib("SimplifiedLayerNormalization")
@contrib("SimplifiedLayerNormalization", domain="")
def _simplified(node: NodeView) -> Results:
    node.take("stash_type")
    axis, epsilon = int(node.take("axis", -1)), node.take("epsilon", 1e-5)
    return rms_norm(node, node.operand(0), node.operand(1), axis, epsilon, 1)


@contrib("SkipSimplifiedLayerNormalization")
def _skip_simplified(node: NodeView) -> Results:
    """RMS normalisation of x + skip + bias; the sum is the fourth output."""
    total = summed(node.operand(0), node.operand(1), node.input(3))
    y, inverse = rms_norm(node, total, node.operand(2), -1, node.take("epsilon", 1e-12), 2)
    return y, None, inverse, total


@contrib("GatedRMSNorm")
def _gated_rms_norm(node: NodeView) -> Results:
    """RMS normalisation in groups of the scale's size along the last axis, times an activation of the gate."""
    x, scale, gate = (node.operand(i) for i in range(3))
    activation, epsilon = node.take("activation", "silu"), node.take("epsilon", 1e-5)
    if activation not in ("silu", "swish", "sigmoid"):
        raise UnsupportedError(f"{node.label}: activation {activation!r} is not supported")
    wide = wide_type(x.dtype)
    rows = F.reshape(converted(x, wide), F.concat(i64(-1), F.shape(scale), axis=0))
    normed = F.rms_normalization(rows, converted(scale, wide), axis=-1, epsilon=epsilon)
    gate = converted(gate, wide)
    factor = F.sigmoid(gate) if activation == "sigmoid" else F.swish(gate)
    return (converted(F.mul(F.reshape(normed, F.shape(x), allowzero=True), factor), x.dtype),)


def _group_norm(node: NodeView, x: Any, last: bool) -> Any:
    """Group normalisation of x, whose channels are the last axis or the second, and its activation."""
    groups, epsilon, activation = int(node.require("groups")), node.take("epsilon", 1e-5), node.take("activation", 0)
    gamma, beta = (converted(node.operand(i), x.dtype) for i in (1, 2))
    first = channels_first(x, rank_of(node, x)) if last else x
    y = F.group_normalization(first, gamma, beta, num_groups=groups, epsilon=epsilon)
    y = F.swish(y) if activation else y
    return channels_last(y, rank_of(node, x)) if last else y


@contrib("GroupNorm")
def _group_norm_of(node: NodeView) -> Results:
    return (_group_norm(node, node.operand(0), bool(node.take("channels_last", 1))),)


@contrib("SkipGroupNorm")
def _skip_group_norm(node: NodeView) -> Results:
    """Group normalisation of x + skip + bias, and that sum. A skip with two axes has one value per channel."""
    x, skip, bias = node.operand(0), node.operand(3), node.input(4)
    last = bool(node.take("channels_last", 1))
    if x.rank is None or skip.rank is None:
        raise UnsupportedError(f"{node.label}: operands of unknown rank are not supported")
    spatial = tuple(range(1, x.rank - 1)) if last else tuple(range(2, x.rank))
    if skip.rank == 2:
        skip = F.unsqueeze(skip, i64(*spatial))
    if bias is not None and not last:
        bias = F.unsqueeze(bias, i64(*range(1, x.rank - 1)))
    total = summed(x, skip, bias)
    return _group_norm(node, total, last), total


@contrib("EmbedLayerNormalization")
def _embed_layer_norm(node: NodeView) -> Results:
    """Layer normalisation of the sum of word, position and segment embeddings; number of words in the mask; the sum."""
    ids, segments = node.operand(0), node.input(1)
    words, positions, kinds = node.operand(2), node.operand(3), node.input(4)
    gamma, beta, mask, places = node.operand(5), node.operand(6), node.input(7), node.input(8)
    node.take("mask_index_type")
    if places is None:
        zero, one = (constant(np.asarray(v, np.int64)) for v in (0, 1))
        places = F.range(zero, F.squeeze(F.shape(ids)[1:2]), one)
    total = F.add(F.gather(words, ids, axis=0), F.gather(positions, places, axis=0))
    if segments is not None and kinds is not None:
        total = F.add(total, F.gather(kinds, segments, axis=0))
    y, _, _ = F.layer_normalization(total, gamma, beta, epsilon=node.take("epsilon", 1e-12))
    if mask is None:
        count = F.mul(ids[:, 0], constant(np.zeros((), np.int32)))
    else:
        ones = F.equal(mask, constant(np.ones((), np.int32)))
        count = F.reduce_sum(F.cast(ones, to=DType.INT32), i64(1), keepdims=False)
    return y, count, total
