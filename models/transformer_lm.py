"""A causal language model: the decoder of GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

import math

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._transformer import attention, cached_attention, drop, feed_forward, head_width, steps
from graphkit.ops import F

_KINDS = ("key", "value")


@network
def transformer_lm(
    vocab: int = 8192, width: int = 256, heads: int = 4, layers: int = 4, length: int = 128, dropout: float = 0.1,
    cache: bool = False,
) -> Model:  # fmt: skip
    """Blocks of causal attention and a feed-forward layer (4 * width), with layer normalisation before each (pre-norm).

    Inputs: x is int64 [N, T], tokens below `vocab`, T <= length. With `cache`, there are also past_key_values.0.key,
    past_key_values.0.value, ...: float32 [N, heads, P, width / heads], of P earlier tokens, P + T <= length.

    Outputs: logits is float32 [N, T, vocab], for the next token. The token table is also the output layer. With
    `cache`, present.0.key, present.0.value, ... are the next values of the caches, of P + T tokens.

    Options: `dropout` is the dropout ratio after embedding, attention and feed-forward layer, in training. `cache` is
    for generating text: build the network again with it, and copy the trained parameters (--weights).

    Parameters: token_weight, position_weight, block0/norm1_weight, block0/qkv_weight, ..., norm_bias. 124,439,808 for
    (50257, 768, 12, 12, 1024), which is GPT-2 small.
    """
    positive("transformer_lm", vocab=vocab, width=width, heads=heads, layers=layers, length=length)
    head_width("transformer_lm", width, heads)
    init = {"type": "normal", "std": 0.02}
    project_init = {"type": "normal", "std": 0.02 / math.sqrt(2 * layers)}
    x = nn.input("x", ["N", "T"], "int64")
    table = nn.parameter("token_weight", (vocab, width), init)
    h = nn.embedding(x, vocab, width, weight=table, name="token")
    past = [_past(layer, heads, width // heads) for layer in range(layers)] if cache else []
    places = seen = steps(x)
    if cache:
        places, seen = _places(x, past[0][0])
    h = drop(F.add(h, nn.embedding(places, length, width, init=init, name="position")), dropout)
    causal = F.greater_or_equal(F.unsqueeze(places, np.array([1])), F.unsqueeze(seen, np.array([0])), name="causal")
    present: dict[str, Value] = {}
    for layer in range(layers):
        with name_scope(f"block{layer}"):
            normed = nn.layer_norm(h, name="norm1")
            if cache:
                mixed, kept = cached_attention(normed, heads, causal, past[layer], init=init, project_init=project_init)
                present |= {f"present.{layer}.{kind}": v for kind, v in zip(_KINDS, kept, strict=True)}
            else:
                mixed = attention(normed, heads, causal, init=init, project_init=project_init)
            h = F.add(h, drop(mixed, dropout), name="sum1")
            expanded = feed_forward(
                nn.layer_norm(h, name="norm2"), 4 * width, approximate="tanh", init=init, project_init=project_init
            )
            h = F.add(h, drop(expanded, dropout), name="sum2")
    h = nn.layer_norm(h, name="norm")
    logits = F.mat_mul(h, F.transpose(table, perm=(1, 0)), name="logits")
    return Model({"logits": logits, **present}, name="transformer_lm")


def _places(x: Value, past: Value) -> tuple[Value, Value]:
    """Return the positions of the tokens x [N, T], and of all tokens with those of `past` [N, heads, P, d]."""
    before = F.squeeze(F.slice(F.shape(past), np.array([2]), np.array([3])), np.array([0]))
    size = F.squeeze(F.slice(F.shape(x), np.array([1]), np.array([2])), np.array([0]))
    total = F.add(before, size)
    return F.range(before, total, np.int64(1)), F.range(np.int64(0), total, np.int64(1))


def _past(layer: int, heads: int, size: int) -> tuple[Value, Value]:
    """Return the inputs for keys and values of earlier tokens, float32 [N, heads, P, size]."""
    key, value = (nn.input(f"past_key_values.{layer}.{kind}", ["N", heads, "P", size]) for kind in _KINDS)
    return key, value
