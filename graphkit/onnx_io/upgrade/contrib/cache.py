"""Attention of a decoder that writes into a cache: GroupQueryAttention, DecoderMaskedMultiHeadAttention."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir import dims
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.attention import attended, biased
from graphkit.onnx_io.upgrade.contrib.position import rotated
from graphkit.onnx_io.upgrade.contrib.scores import (
    columns,
    heads_of,
    int64,
    joined_heads,
    lengths,
    needs_rank,
    scale_of,
)
from graphkit.ops import F
from graphkit.ops.axes import i64
from graphkit.ops.nn.heads import shared_product
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like

# --- keys and values in a buffer of a fixed size ----------------------------------------------------


def written(past: Any, new: Any, length: Any) -> tuple[Any, Any]:
    """Write `new` into a buffer [B, heads, M, D] at `length` (int64 [1]). Return the buffer, and its used part."""
    batch = F.shape(past)[:1]
    present = F.tensor_scatter(past, new, F.expand(length, batch))
    return present, F.slice(present, i64(0), F.add(length, F.shape(new)[2:3]), i64(2))


@contrib("DecoderMaskedMultiHeadAttention")
def _decoder(node: NodeView) -> Results:
    """Attention of one query. Keys and values are those of the past, which may be in a buffer, or of an encoder."""
    query, key, value = node.operand(0), node.input(1), node.input(2)
    mask, more, past_key, past_value, length = (node.input(i) for i in (3, 4, 5, 6, 7))
    bias = node.input(10)
    heads = int(node.require("num_heads"))
    node.take("past_present_share_buffer")
    node.take("output_qk")
    if node.input(9) is not None:
        raise UnsupportedError(f"{node.label}: cache_indirection is not supported")
    needs_rank(node, 3, query=query)
    if key is None or value is None:
        query, key, value = F.split(query, axis=-1, num_outputs=3)
    parts = (query, key, value) if bias is None else biased(node, (query, key, value), bias)
    q, k, v = (x if x.rank == 4 else heads_of(x, heads) for x in parts)
    if past_key is None or past_value is None:
        y, found = attended(node, (q, k, v), mask, more, None, unidirectional=False)
        return y, k, v, found
    if length is None:
        k, v = (F.concat(past, x, axis=2) for past, x in ((past_key, k), (past_value, v)))
        y, found = attended(node, (q, k, v), mask, more, None, unidirectional=False)
        return y, k, v, found
    count = F.reshape(F.cast(length, to=DType.INT64), i64(1))
    (present_key, k), (present_value, v) = written(past_key, k, count), written(past_value, v, count)
    y, found = attended(node, (q, k, v), mask, more, None, unidirectional=False)
    return y, present_key, present_value, found


# --- grouped queries --------------------------------------------------------------------------------


class _Site(NamedTuple):
    """Attributes of a GroupQueryAttention."""

    heads: int
    groups: int
    window: int
    softcap: float
    causal: bool
    output: int


def _site(node: NodeView) -> _Site:
    for name, default in (("sliding_window_cache", 0), ("k_quant_type", "NONE"), ("v_quant_type", "NONE")):
        if node.take(name, default) != default:
            raise UnsupportedError(f"{node.label}: {name} is not supported")
    for name in ("kv_cache_bit_width", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon"):
        node.take(name)
    for index, name in ((12, "k_scale"), (13, "v_scale"), (14, "q_norm_weight"), (16, "query_seqlens")):
        if node.input(index) is not None:
            raise UnsupportedError(f"{node.label}: {name} is not supported")
    return _Site(
        heads=int(node.require("num_heads")),
        groups=int(node.require("kv_num_heads")),
        window=int(node.take("local_window_size", -1)),
        softcap=float(node.take("softcap", 0.0)),
        causal=bool(node.take("causal", 1)),
        output=int(node.take("qk_output", 0)),
    )


@contrib("GroupQueryAttention")
def _group_query(node: NodeView) -> Results:
    """Attention in which several queries share keys and values. The past has a length of its own for each example.

    seqlens_k: final number of keys of each example, minus one. If the node's length is the total length, it is a
    prompt, and each example begins at position 0. Later tokens begin after the example's keys.
    """
    site = _site(node)
    q, k, v = _grouped_heads(node, site)
    past_key, past_value, ends, whole = node.input(3), node.input(4), node.operand(5), node.operand(6)
    total = F.add(F.reshape(F.cast(ends, to=DType.INT64), i64(-1)), i64(1))
    whole = F.reshape(F.cast(whole, to=DType.INT64), i64(1))
    length = F.shape(q)[2:3]
    start = F.where(F.equal(length, whole), i64(0), F.sub(total, length))
    interleaved = bool(node.take("rotary_interleaved", 0))
    if node.take("do_rotary", 0):
        cos, sin, place = node.operand(7), node.operand(8), node.input(9)
        steps = F.range(int64(0), F.squeeze(length), int64(1))
        if place is None:
            place = F.add(F.unsqueeze(start, i64(1)), steps)
            # Positions after the end of a shorter prompt become 1.
            place = F.where(F.less(place, F.unsqueeze(total, i64(1))), place, int64(1))
        else:
            # In a prompt, all examples begin at the position of the first one.
            place = F.where(F.equal(length, whole), F.add(place[:1, :1], steps), place)
        q, k = (rotated(x, cos, sin, place, interleaved) for x in (q, k))
    if past_key is not None and past_value is not None:
        k, v = (_appended(past, x, start, whole) for past, x in ((past_key, k), (past_value, v)))
    y, found = _grouped(node, site, (q, k, v), None if past_key is None else start)
    return y, k, v, found


def _grouped_heads(node: NodeView, site: _Site) -> tuple[Any, Any, Any]:
    """query [B, heads, L, D], key and value [B, groups, L, D]. Key and value may be packed into the operand `query`."""
    query, key, value = node.operand(0), node.input(1), node.input(2)
    needs_rank(node, 3, query=query)
    needs_rank(node, 3, 4, key=key)
    needs_rank(node, 3, 4, value=value)
    if key is None or value is None:
        joint, parts = query.tensor.known_shape[2], site.heads + 2 * site.groups
        if not dims.is_static(joint) or joint % parts:
            raise UnsupportedError(f"{node.label}: the packed query has size {joint}, which does not fit {parts} heads")
        size = int(joint) // parts
        query, key, value = F.split(query, i64(*(n * size for n in (site.heads, site.groups, site.groups))), axis=-1)
    counts = (site.heads, site.groups, site.groups)
    q, k, v = (x if x.rank == 4 else heads_of(x, n) for x, n in zip((query, key, value), counts, strict=True))
    return q, k, v


def _appended(past: Any, new: Any, start: Any, whole: Any) -> Any:
    """Return the cache with `new` written at `start` (int64 [B]), extended with zeros to `whole` (int64 [1]) keys."""
    size = F.shape(past)[2:3]
    missing = F.sub(F.max(size, whole), size)
    cache = F.pad(past, F.concat(i64(0), missing, axis=0), None, i64(2))
    place = F.range(int64(0), F.squeeze(F.shape(cache)[2:3]), int64(1))
    there = F.less(F.unsqueeze(place, i64(1)), F.reshape(start, i64(-1, 1, 1, 1)))
    return F.tensor_scatter(F.where(there, cache, scalar_like(0.0, cache)), new, start)


def _grouped(node: NodeView, site: _Site, qkv: tuple[Any, Any, Any], start: Any) -> tuple[Any, Any]:
    """softmax(scores) V as [B, L, heads * D]; scores or weights for output 3. `start`: int64 [B]; None means 0."""
    q, k, v = qkv
    more, sink = node.input(10), node.input(11)
    smooth = int(node.take("smooth_softmax", -1)) == 1
    wide = wide_type(q.dtype)
    q, k, v_wide = (converted(x, wide) for x in (q, k, v))
    scale = scale_of(node, q.tensor.known_shape[3])
    product = F.mat_mul if site.heads == site.groups else shared_product
    found = product(q, F.transpose(k, perm=(0, 1, 3, 2)))
    found = F.mul(found, scalar_like(scale, found))
    if site.softcap > 0:
        cap = scalar_like(site.softcap, found)
        found = F.mul(F.tanh(F.div(found, cap)), cap)
    if more is not None:
        found = F.add(found, converted(more, wide))
    visible = _visible(site, q, k, start)
    if visible is not None:
        found = F.where(visible, found, scalar_like(-np.inf, found))
    weights = _softmax(found, sink, smooth, wide)
    y = converted(joined_heads(product(weights, v_wide)), v.dtype)
    return y, None if not node.wants(3) else converted(found if site.output == 1 else weights, v.dtype)


def _visible(site: _Site, q: Any, k: Any, start: Any) -> Any:
    """Mask of the keys that each query sees: up to its own position, at most `window` keys. None: all keys."""
    if not site.causal:
        return None
    sizes = lengths(q, k)
    place = F.unsqueeze(F.range(int64(0), F.squeeze(sizes.queries), int64(1)), i64(1))
    if start is not None:
        place = F.add(place, F.reshape(start, i64(-1, 1, 1, 1)))
    keys = columns(sizes)
    seen = F.less_or_equal(keys, place)
    if site.window > 0:
        seen = F.and_(seen, F.greater(keys, F.sub(place, int64(site.window))))
    return seen


def _softmax(scores: Any, sink: Any, smooth: bool, dtype: DType) -> Any:
    """Attention weights. A sink adds a term to the sum, but has no key. Xiao et al. 2023, arXiv:2309.17453."""
    if sink is None and not smooth:
        return F.softmax(scores, axis=-1)
    one = scalar_like(0.0, scores) if sink is None else F.reshape(converted(sink, dtype), i64(1, -1, 1, 1))
    column = F.expand(one, F.concat(F.shape(scores)[:3], i64(1), axis=0))
    weights = F.softmax(F.concat(scores, column, axis=-1), axis=-1)
    return F.slice(weights, i64(0), i64(-1), i64(-1))
