"""Products of attention whose operands hold queries, keys and values of all heads side by side.

The last axis of self-attention's operand has the blocks [head][query, key, value][features]; of the operand of keys and
values in encoder-decoder attention, [head][key, value][features]. Tensors are [time, batch, ...], scores
[batch * heads, queries, keys]. Source: src/operator/contrib/transformer.cc of MXNet 1.9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.call import Call, converter, scalar, static_sizes
from graphkit.mxnet_io.operators.quantised import Range, calibrated, quantised, real
from graphkit.mxnet_io.operators.shape import joined_sizes
from graphkit.ops import F


def _heads(x: Value, heads: int, parts: int) -> list[Value]:
    """Split [time, batch, heads * parts * features] into `parts` tensors [batch * heads, time, features]."""
    (width,) = static_sizes(x, [2])
    features = width // heads // parts
    split = joined_sizes(x, [(0,), (1,), heads, parts, features])
    ordered = F.transpose(split, perm=(3, 1, 2, 0, 4))
    found = F.split(ordered, axis=0, num_outputs=parts)
    found = list(found) if isinstance(found, tuple) else [found]
    return [joined_sizes(F.squeeze(part, [0]), [(0, 1), (2,), (3,)]) for part in found]


def _scores(call: Call, query: Value, key: Value) -> Value:
    (features,) = static_sizes(query, [2])
    scaled = F.mul(query, scalar(features**-0.5, query))
    result: Value = F.mat_mul(scaled, F.transpose(key, perm=(0, 2, 1)), name=call.name)
    return result


def _mixed(call: Call, value: Value, attention: Value, heads: int) -> Value:
    """Return the weighted values of all heads side by side, [time, batch, heads * features]."""
    mixed = F.mat_mul(attention, value, name=call.name)
    (features,) = static_sizes(value, [2])
    split = joined_sizes(mixed, [-1, heads, (1,), features])
    return joined_sizes(F.transpose(split, perm=(2, 0, 1, 3)), [(0,), (1,), heads * features])


@converter("_contrib_interleaved_matmul_selfatt_qk")
def self_attention_scores(call: Call) -> Value:
    return _self_scores(call, call[0])


def _self_scores(call: Call, packed: Value) -> Value:
    query, key, _ = _heads(packed, call.attributes.integer("heads", 1), 3)
    return _scores(call, query, key)


@converter("_contrib_interleaved_matmul_selfatt_valatt")
def self_attention_values(call: Call) -> Value:
    return _self_values(call, call[0], call[1])


def _self_values(call: Call, packed: Value, attention: Value) -> Value:
    heads = call.attributes.integer("heads", 1)
    return _mixed(call, _heads(packed, heads, 3)[2], attention, heads)


def _fused(build: Callable[..., Value], count: int, call: Call) -> Value | list[Value]:
    """The form that MXNet's oneDNN backend writes. Quantised, `count` operands of integers precede their ranges."""
    attributes = call.attributes
    real_output, range_ = attributes.flag("enable_float_output", False), calibrated(call)
    operands = [call[i] for i in range(count)]
    if not attributes.flag("quantized", False):
        return build(call, *operands)
    ranges = [Range(call[count + 2 * i], call[count + 2 * i + 1]) for i in range(count)]
    y = build(call, *(real(q, range_) for q, range_ in zip(operands, ranges, strict=True)))
    if real_output:
        return y
    if range_ is None:
        raise UnsupportedError("a quantised result without a calibrated range")
    return quantised(y, range_, DType.INT8)


for _name, _build, _count in (("qk", _self_scores, 1), ("valatt", _self_values, 2)):
    converter(*(f"_sg_{backend}_selfatt_{_name}" for backend in ("mkldnn", "onednn")))(partial(_fused, _build, _count))


@converter("_contrib_interleaved_matmul_encdec_qk")
def cross_attention_scores(call: Call) -> Value:
    heads = call.attributes.integer("heads", 1)
    return _scores(call, _heads(call[0], heads, 1)[0], _heads(call[1], heads, 2)[0])


@converter("_contrib_interleaved_matmul_encdec_valatt")
def cross_attention_values(call: Call) -> Value:
    heads = call.attributes.integer("heads", 1)
    value = _heads(call[0], heads, 2)[1]
    return _mixed(call, value, call[1], heads)
