"""A causal language model: the decoder of GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

import math

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._transformer import attention, drop, feed_forward, head_width, steps
from graphkit.ops import F


@network
def transformer_lm(
    vocab: int = 8192, width: int = 256, heads: int = 4, layers: int = 4, length: int = 128, dropout: float = 0.1
) -> Model:
    """Blocks of causal attention and a feed-forward layer (4 * width), with layer normalisation before each (pre-norm).

    Inputs: x is int64 [N, T], tokens below `vocab`, T <= length.

    Outputs: logits is float32 [N, T, vocab], for the next token. The token table is also the output layer.

    Options: `dropout` is the dropout ratio after embedding, attention and feed-forward layer, in training.

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
    places = steps(x)
    h = drop(F.add(h, nn.embedding(places, length, width, init=init, name="position")), dropout)
    causal = F.greater_or_equal(F.unsqueeze(places, np.array([1])), F.unsqueeze(places, np.array([0])), name="causal")
    for layer in range(layers):
        with name_scope(f"block{layer}"):
            mixed = attention(nn.layer_norm(h, name="norm1"), heads, causal, init=init, project_init=project_init)
            h = F.add(h, drop(mixed, dropout), name="sum1")
            expanded = feed_forward(
                nn.layer_norm(h, name="norm2"), 4 * width, approximate="tanh", init=init, project_init=project_init
            )
            h = F.add(h, drop(expanded, dropout), name="sum2")
    h = nn.layer_norm(h, name="norm")
    logits = F.mat_mul(h, F.transpose(table, perm=(1, 0)), name="logits")
    return Model({"logits": logits}, name="transformer_lm")
