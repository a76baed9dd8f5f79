"""A convolutional sentence classifier (Kim 2014)."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._recurrent import alive, within
from graphkit.models._registry import network
from graphkit.models._tables import hidden_widths
from graphkit.models._transformer import drop
from graphkit.ops import F


@network
def text_cnn(
    vocab: int = 10000, width: int = 300, windows: tuple[int, ...] = (3, 4, 5), maps: int = 100, classes: int = 2,
    static: bool = False, dropout: float = 0.5,
) -> Model:  # fmt: skip
    """An embedding, convolutions over windows of words, the maximum of each map over the sentence, a linear layer.

    Inputs: x is int64 [N, T], below `vocab`. lengths is int64 [N]; the rest of a row is padding.

    Outputs: logits is float32 [N, classes].

    Options: `maps` is the number of filters for each size in `windows`. A sentence is padded with `window` - 1 zero
    vectors at both ends, as in the author's program. So it may be shorter than a window. Windows after its end do not
    count. With `static`, the embedding is not trained: assign word vectors to `params["token_weight"]`. This is
    CNN-static. Otherwise the network is CNN-rand, or CNN-non-static with such vectors. `dropout` is the dropout ratio
    before the last layer, in training. Use weight decay instead of the paper's bound on the norm of the rows of
    fc_weight.

    Parameters: token_weight [vocab, width], conv<window>_weight [maps, width, window], conv<window>_bias, fc_weight,
    fc_bias.
    """
    positive("text_cnn", vocab=vocab, width=width, maps=maps, classes=classes)
    sizes = hidden_widths("text_cnn", "windows", windows)
    if not sizes or len(set(sizes)) < len(sizes):
        raise UsageError(f"text_cnn: windows must be different positive integers, not {windows!r}")
    x = nn.input("x", ["N", "T"], "int64")
    lengths = within(nn.input("lengths", ["N"], "int64"), x)
    start = {"type": "uniform", "low": -0.25, "high": 0.25}
    table = nn.parameter("token_weight", (vocab, width), start, trainable=not static)
    there = F.unsqueeze(alive(lengths, x), np.array([2]))
    words = F.where(there, nn.embedding(x, vocab, width, weight=table, name="token"), np.float32(0))
    signal = F.transpose(words, perm=(0, 2, 1), name="words")
    pooled = [_pooled(signal, lengths, maps, window) for window in sizes]
    features = drop(F.concat(*pooled, axis=1, name="pooled"), dropout)
    return Model({"logits": nn.linear(features, classes, name="fc")}, name="text_cnn")


def _pooled(words: Value, lengths: Value, maps: int, window: int) -> Value:
    """Return the maximum over the windows that overlap the sentence, [N, maps]. words: [N, width, T], padded with 0."""
    y = F.relu(nn.conv1d(words, maps, window, pad=window - 1, name=f"conv{window}"))
    # There are T + window - 1 windows. Those of a sentence are its first length + window - 1.
    places = F.range(np.int64(0), F.squeeze(F.shape(y, start=2), np.array([0])), np.int64(1))
    touching = F.less(places, F.unsqueeze(F.add(lengths, np.int64(window - 1)), np.array([1, 2])))
    pooled: Value = F.reduce_max(F.where(touching, y, np.float32(0)), np.array([2]), keepdims=False)
    return pooled
