"""Positions: rotary embeddings, and biases that depend on the distance of a key."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir import dims
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.scores import heads_of, int64, needs_rank
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like


def _heads(node: NodeView, x: Any, cache: Any, heads: int) -> int | None:
    """The number of heads in x [B, L, heads * D]. By default, the size of the cache gives the size of a head."""
    if x.rank != 3 or heads:
        return heads or None
    hidden, half = x.tensor.known_shape[2], cache.tensor.known_shape[1]
    if not dims.is_static(hidden) or not dims.is_static(half) or not half:
        raise UnsupportedError(f"{node.label}: the number of heads is unknown; give num_heads")
    return int(hidden // (2 * half))


@contrib("RotaryEmbedding")
def _rotary(node: NodeView) -> Results:
    """Rotary embedding. Positions are given for each element of the sequence, or only for the first one."""
    x, place, cos, sin = (node.operand(i) for i in range(4))
    needs_rank(node, 3, 4, input=x)
    needs_rank(node, 1, 2, position_ids=place)
    needs_rank(node, 2, cos_cache=cos)
    if node.take("is_packed_batching", 0):
        raise UnsupportedError(f"{node.label}: is_packed_batching is not supported")
    node.take("scale")  # no kernel reads it
    if place.rank == 1:
        batch, length = F.shape(x)[:1], F.shape(x)[1:2] if x.rank == 3 else F.shape(x)[2:3]
        steps = F.range(int64(0), F.squeeze(length), int64(1))
        place = F.expand(F.add(steps, place), F.concat(batch, length, axis=0))
    attrs = {
        "interleaved": node.take("interleaved", 0),
        "num_heads": _heads(node, x, cos, int(node.take("num_heads", 0))),
        "rotary_embedding_dim": node.take("rotary_embedding_dim", 0),
    }
    return (F.rotary_embedding(x, cos, sin, place, **attrs),)


@contrib("GemmaRotaryEmbedding")
def _gemma_rotary(node: NodeView) -> Results:
    """q * cos + rotated q * sin, and the same of k, for angles [B, L, D]."""
    angle, q, q_turned, k, k_turned = (node.operand(i) for i in range(5))
    sin, cos = (F.unsqueeze(converted(f(angle), q.dtype), i64(1)) for f in (F.sin, F.cos))
    return tuple(F.add(F.mul(x, cos), F.mul(y, sin)) for x, y in ((q, q_turned), (k, k_turned)))


@contrib("RelativePositionBias")
def _relative_bias(node: NodeView) -> Results:
    """The bias of each distance's bucket, as in T5: [1, heads, L, L]. Raffel et al. 2020, arXiv:1910.10683."""
    table, queries, keys = (node.operand(i) for i in range(3))
    both, furthest = bool(node.take("is_bidirectional", 0)), int(node.require("max_distance"))
    buckets = table.tensor.known_shape[0]
    if not dims.is_static(buckets):
        raise UnsupportedError(f"{node.label}: a table of unknown size is not supported")
    if furthest <= buckets // (4 if both else 2) or buckets < (4 if both else 2):
        raise InvalidModel(f"{node.label}: max_distance={furthest} does not fit {buckets} buckets")
    place = [F.range(int64(0), F.squeeze(n) if n.rank else n, int64(1)) for n in (queries, keys)]
    distance = F.sub(place[1], F.unsqueeze(place[0], i64(1)))
    found = _buckets(distance, int(buckets), furthest, both)
    return (F.unsqueeze(F.transpose(F.gather(table, found, axis=0), perm=(2, 0, 1)), i64(0)),)


def _buckets(distance: Any, count: int, furthest: int, both: bool) -> Any:
    """T5's buckets: the first half has one per distance, the second logarithmic ranges up to `furthest`."""
    zero = int64(0)
    base = zero
    if both:
        count //= 2
        base = F.where(F.greater(distance, zero), int64(count), zero)
        distance = F.abs(distance)
    else:
        distance = F.max(F.neg(distance), zero)
    exact = count // 2
    ratio = F.div(F.cast(F.max(distance, int64(1)), to=DType.FLOAT32), constant(np.float32(exact)))
    steps = F.mul(F.log(ratio), constant(np.float32((count - exact) / np.log(furthest / exact))))
    far = F.min(F.add(F.cast(steps, to=DType.INT64), int64(exact)), int64(count - 1))
    return F.add(base, F.where(F.less(distance, int64(exact)), distance, far))


@contrib("GatedRelativePositionBias")
def _gated_bias(node: NodeView) -> Results:
    """rel_pos * (u * (r * eco_a - 1) + 2), with gates u and r of each query. Chi et al. 2022, arXiv:2106.16138."""
    query, query_bias, places, weight, bias, eco = (node.operand(i) for i in range(6))
    if node.input(6) is not None:
        raise UnsupportedError(f"{node.label}: token_offset is not supported")
    needs_rank(node, 3, query_layer=query)
    q = heads_of(F.add(query, query_bias), int(node.require("num_heads")))
    gates = F.add(F.mat_mul(q, weight), bias)
    halves = F.reshape(gates, F.concat(F.shape(gates)[:3], i64(2, -1), axis=0))
    u, r = F.split(F.sigmoid(F.reduce_sum(halves, i64(-1), keepdims=False)), axis=-1, num_outputs=2)
    one, two = (scalar_like(v, q) for v in (1.0, 2.0))
    return (F.mul(F.add(F.mul(u, F.sub(F.mul(r, eco), one)), two), places),)


def rotated(x: Any, cos: Any, sin: Any, place: Any, interleaved: bool) -> Any:
    """Rotate heads [B, heads, L, D] by the angles of positions [B, L], as many elements as the caches cover."""
    half, size = cos.tensor.known_shape[1], x.tensor.known_shape[3]
    part = 2 * half if dims.is_static(half) and dims.is_static(size) and 2 * half != size else 0
    wide = wide_type(x.dtype)
    heads, cosines, sines = (converted(v, wide) for v in (x, cos, sin))
    turned = F.rotary_embedding(heads, cosines, sines, place, interleaved=interleaved, rotary_embedding_dim=part)
    return converted(turned, x.dtype)
