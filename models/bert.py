"""BERT (Devlin et al. 2018) with a classifier on the first token."""

from __future__ import annotations

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.frontend.scopes import name_scope
from graphkit.ir.types import DType
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._transformer import attention, drop, feed_forward, head_width, steps
from graphkit.ops import F

_SEGMENTS = 2
_EPSILON = 1e-12
_INIT = {"type": "truncated_normal", "std": 0.02}


@network
def bert(
    vocab: int = 30522,
    width: int = 768,
    heads: int = 12,
    layers: int = 12,
    length: int = 512,
    classes: int = 2,
    dropout: float = 0.1,
) -> Model:
    """Encoder of bidirectional attention and feed-forward layers (4 * width), each followed by layer normalisation.

    Inputs: x is int64 [N, T], T <= length, the tokens. segments is int64 [N, T], 0 or 1. mask is int64 [N, T], 1 at
    tokens and 0 at padding.

    Outputs: logits is float32 [N, classes]. The classifier reads the first token, after a linear layer with tanh (the
    pooler).

    Options: `dropout` is the dropout ratio after embedding, attention, feed-forward layer and pooling, in training.

    Parameters: token_weight, position_weight, segment_weight, norm_*, block0/qkv_weight, ..., pool_*, fc_*. With the
    default options, 109,482,240 as in BERT-base, and 1,538 of the classifier.
    """
    positive("bert", vocab=vocab, width=width, heads=heads, layers=layers, length=length, classes=classes)
    head_width("bert", width, heads)
    x = nn.input("x", ["N", "T"], "int64")
    segments = nn.input("segments", ["N", "T"], "int64")
    mask = nn.input("mask", ["N", "T"], "int64")
    h = F.add(
        nn.embedding(x, vocab, width, init=_INIT, name="token"),
        nn.embedding(segments, _SEGMENTS, width, init=_INIT, name="segment"),
    )
    h = F.add(h, nn.embedding(steps(x), length, width, init=_INIT, name="position"))
    h = drop(nn.layer_norm(h, epsilon=_EPSILON, name="norm"), dropout)
    visible = F.unsqueeze(F.cast(mask, to=DType.BOOL), np.array([1, 2]), name="visible")
    for layer in range(layers):
        with name_scope(f"block{layer}"):
            mixed = attention(h, heads, visible, init=_INIT, project_init=_INIT)
            h = nn.layer_norm(F.add(h, drop(mixed, dropout), name="sum1"), epsilon=_EPSILON, name="norm1")
            expanded = feed_forward(h, 4 * width, approximate="none", init=_INIT, project_init=_INIT)
            h = nn.layer_norm(F.add(h, drop(expanded, dropout), name="sum2"), epsilon=_EPSILON, name="norm2")
    first = F.gather(h, np.int64(0), axis=1, name="first")
    pooled = F.tanh(nn.linear(first, width, init=_INIT, bias_init="zeros", name="pool"), name="tanh")
    logits = nn.linear(drop(pooled, dropout), classes, init=_INIT, bias_init="zeros", name="fc")
    return Model({"logits": logits}, name="bert")
