"""Attention and MultiHeadAttention, with masks, biases and a past."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir import dims
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.scores import (
    MASK_FILTER,
    causal,
    heads_of,
    joined_heads,
    lengths,
    needs_rank,
    padding,
    scale_of,
    scores,
    summed,
)
from graphkit.ops import F, constant
from graphkit.ops.axes import i64


def _mask_filter(node: NodeView) -> float:
    # Zero means the default, like an absent attribute.
    return float(node.take("mask_filter_value", 0.0)) or MASK_FILTER


def _third(node: NodeView, x: Any, axis: int) -> int:
    size = x.tensor.known_shape[axis]
    if not dims.is_static(size) or size % 3:
        raise UnsupportedError(f"{node.label}: {x} has no three equal parts along axis {axis}; give qkv_hidden_sizes")
    return int(size) // 3


def _element(x: Any, index: int, axis: int) -> Any:
    return F.gather(x, constant(np.asarray(index, np.int64)), axis=axis)


def _refuse_shared_buffer(node: NodeView, *inputs: int) -> None:
    """Raise UnsupportedError if past and present share a buffer of fixed size, which ONNX Runtime updates in place."""
    if node.take("past_present_share_buffer", 0) or any(node.input(i) is not None for i in inputs):
        raise UnsupportedError(f"{node.label}: past and present in one buffer are not supported")


@contrib("Attention")
def _attention(node: NodeView) -> Results:
    """Self-attention with its projections; past and present hold keys and values: [2, B, heads, length, size]."""
    x, weights, bias, mask, past, more = (node.operand(0), node.operand(1), *(node.input(i) for i in (2, 3, 4, 5)))
    _refuse_shared_buffer(node, 6)
    heads, sizes = int(node.require("num_heads")), node.take("qkv_hidden_sizes")
    if node.take("do_rotary", 0):
        raise UnsupportedError(f"{node.label}: do_rotary is not supported")
    node.take("rotary_embedding_dim")
    needs_rank(node, 3, input=x)
    needs_rank(node, 2, weights=weights)
    if not sizes:
        sizes = [_third(node, weights, 1)] * 3
    projected = F.mat_mul(x, weights)
    projected = projected if bias is None else F.add(projected, bias)
    q, k, v = (heads_of(part, heads) for part in F.split(projected, i64(*sizes), axis=-1))
    before = None
    if past is not None:
        before = _element(past, 0, 0)
        k, v = F.concat(before, k, axis=2), F.concat(_element(past, 1, 0), v, axis=2)
    y, _ = attended(node, (q, k, v), mask, more, before)
    present = F.concat(F.unsqueeze(k, i64(0)), F.unsqueeze(v, i64(0)), axis=0) if node.wants(1) else None
    return y, present


def attended(
    node: NodeView, qkv: tuple[Any, Any, Any], mask: Any, more: Any, past: Any, unidirectional: bool | None = None
) -> tuple[Any, Any]:
    """softmax(scores) V as [B, L, heads * D], and the scores. Attributes give scale, mask filter and direction."""
    q, k, v = qkv
    sizes = lengths(q, k, past)
    fill, scale = _mask_filter(node), scale_of(node, q.tensor.known_shape[3])
    one_way = bool(node.take("unidirectional", 0)) if unidirectional is None else unidirectional
    added = summed(None if mask is None else padding(node, mask, q, sizes, fill, q), more)
    found = scores(q, k, scale, added, causal(sizes) if one_way else None)
    return joined_heads(F.mat_mul(F.softmax(found, axis=-1), v)), found


def _parts(node: NodeView) -> tuple[Any, Any, Any]:
    """query, key and value [B, L, hidden]. Key and value may also be in the layout of a cache, [B, heads, T, D]."""
    query, key, value = node.operand(0), node.input(1), node.input(2)
    needs_rank(node, 3, 5, query=query)
    needs_rank(node, 3, 4, 5, key=key)
    needs_rank(node, 3, 4, value=value)
    if query.rank == 5:
        query, key, value = (_joint(_element(query, i, 3)) for i in range(3))
        return query, key, value
    if key is None:
        raise UnsupportedError(f"{node.label}: the key is missing")
    if key.rank == 5:
        key, value = (_joint(_element(key, i, 3)) for i in range(2))
        return query, key, value
    if value is None:
        raise UnsupportedError(f"{node.label}: the value is missing")
    return query, key, value


def _joint(x: Any) -> Any:
    """[B, L, heads, D] -> [B, L, heads * D]."""
    _, _, heads, size = x.tensor.known_shape
    joint = heads * size if dims.is_static(heads) and dims.is_static(size) else -1
    return F.reshape(x, i64(0, 0, joint))


def biased(node: NodeView, parts: tuple[Any, Any, Any], bias: Any) -> tuple[Any, Any, Any]:
    """Add its part of the bias to each of `parts`. Keys and values from a cache already contain it."""
    hidden = parts[0].tensor.known_shape[2]
    if not dims.is_static(hidden):
        raise UnsupportedError(f"{node.label}: a bias needs a query of known size")
    ends = (0, hidden, 2 * hidden, np.iinfo(np.int64).max)
    pieces = [F.slice(bias, i64(start), i64(end), i64(0)) for start, end in itertools.pairwise(ends)]
    query, key, value = (x if x.rank == 4 else F.add(x, piece) for x, piece in zip(parts, pieces, strict=True))
    return query, key, value


@contrib("MultiHeadAttention")
def _multi_head(node: NodeView) -> Results:
    """Attention of projected operands, packed or not. Keys and values of the past precede those of the node."""
    bias, mask, more, past_key, past_value = (node.input(i) for i in (3, 4, 5, 6, 7))
    _refuse_shared_buffer(node, 8, 9)
    heads = int(node.require("num_heads"))
    parts = _parts(node)
    parts = parts if bias is None else biased(node, parts, bias)
    q, k, v = (x if x.rank == 4 else heads_of(x, heads) for x in parts)
    if past_key is not None and past_value is not None:
        k, v = F.concat(past_key, k, axis=2), F.concat(past_value, v, axis=2)
    y, found = attended(node, (q, k, v), mask, more, past_key)
    return y, k, v, found
