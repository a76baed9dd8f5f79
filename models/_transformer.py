"""Parts of transformers: multi-head attention and the feed-forward layers of one block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.ops import F

# Used instead of minus infinity: a row whose positions are all masked then has equal weights instead of NaN.
_MASKED = float(np.finfo(np.float32).min)


def head_width(network: str, width: int, heads: int) -> int:
    """Return the channels of one head. Raises UsageError if `width` is not divisible by `heads`."""
    if width % heads:
        raise UsageError(f"{network}: width {width} does not divide into {heads} heads")
    return width // heads


def attention(x: Value, heads: int, visible: Value | None = None, *, init: Any, project_init: Any) -> Value:
    """Self-attention (Vaswani et al. 2017): softmax(Q K^T / sqrt(d)) V, by head, then a projection.

    x: [N, T, width]; visible: bool that broadcasts to [N, heads, T, T], False where a query must not look;
    by default every query looks everywhere.
    """
    width = x.tensor.known_shape[-1]
    assert isinstance(width, int)
    joint = nn.linear(x, 3 * width, init=init, bias_init="zeros", name="qkv")
    q, k, v = F.split(joint, np.array([width] * 3), axis=-1)
    keys = F.transpose(_split_heads(k, heads), perm=(0, 2, 3, 1))
    queries, values = (F.transpose(_split_heads(part, heads), perm=(0, 2, 1, 3)) for part in (q, v))
    scores = F.mul(F.mat_mul(queries, keys), 1.0 / math.sqrt(width // heads))
    if visible is not None:
        scores = F.where(visible, scores, np.float32(_MASKED))
    weights = F.softmax(scores, axis=-1)
    mixed = F.transpose(F.mat_mul(weights, values), perm=(0, 2, 1, 3))
    joined = F.reshape(mixed, np.array([0, 0, width]))
    return nn.linear(joined, width, init=project_init, bias_init="zeros", name="project")


def cached_attention(
    x: Value, heads: int, visible: Value, past: tuple[Value, Value], *, init: Any, project_init: Any
) -> tuple[Value, tuple[Value, Value]]:
    """Self-attention with the keys and values of earlier tokens. The parameters are those of `attention`.

    Args:
        x: [N, T, width].
        heads: Number of heads.
        visible: bool [T, P + T], False where a query must not look.
        past: Keys and values of P earlier tokens, [N, heads, P, d].
        init: Initialiser of the first layer.
        project_init: Initialiser of the last layer.

    Returns:
        The result [N, T, width], and the keys and values of all tokens, [N, heads, P + T, d].
    """
    width = x.tensor.known_shape[-1]
    assert isinstance(width, int)
    joint = nn.linear(x, 3 * width, init=init, bias_init="zeros", name="qkv")
    parts = F.split(joint, np.array([width] * 3), axis=-1)
    queries, k, v = (F.transpose(_split_heads(part, heads), perm=(0, 2, 1, 3)) for part in parts)
    keys, values = (F.concat(before, new, axis=2) for before, new in zip(past, (k, v), strict=True))
    scores = F.mul(F.mat_mul(queries, F.transpose(keys, perm=(0, 1, 3, 2))), 1.0 / math.sqrt(width // heads))
    weights = F.softmax(F.where(visible, scores, np.float32(_MASKED)), axis=-1)
    mixed = F.transpose(F.mat_mul(weights, values), perm=(0, 2, 1, 3))
    joined = F.reshape(mixed, np.array([0, 0, width]))
    return nn.linear(joined, width, init=project_init, bias_init="zeros", name="project"), (keys, values)


def _split_heads(x: Value, heads: int) -> Value:
    return F.reshape(x, np.array([0, 0, heads, -1]))


def feed_forward(x: Value, hidden: int, *, approximate: str, init: Any, project_init: Any) -> Value:
    """Apply a linear layer, GELU and a linear layer. `approximate`: "none" or "tanh", as in ONNX's Gelu."""
    width = x.tensor.known_shape[-1]
    assert isinstance(width, int)
    h = F.gelu(nn.linear(x, hidden, init=init, bias_init="zeros", name="fc1"), approximate=approximate, name="gelu")
    return nn.linear(h, width, init=project_init, bias_init="zeros", name="fc2")


def steps(x: Value) -> Value:
    """Return int64 [T], 0 to T - 1, for x: [N, T]."""
    size = F.squeeze(F.slice(F.shape(x), np.array([1]), np.array([2])), np.array([0]))
    return F.range(np.int64(0), size, np.int64(1), name="steps")


def drop(x: Value, ratio: float) -> Value:
    """Apply dropout in training. With a ratio of 0, no node is added."""
    return nn.dropout(x, ratio) if ratio else x
