"""A sentence classifier: gated recurrent units as a Scan over masked sequences of any length."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import control
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._recurrent import alive, gru_input, gru_step, within
from graphkit.models._registry import network
from graphkit.models._transformer import drop
from graphkit.ops import F

_POOLINGS = ("mean", "last")


@network
def text_classifier(
    vocab: int = 10000, width: int = 128, hidden: int = 128, classes: int = 2, bidirectional: bool = True,
    pooling: str = "mean", dropout: float = 0.5,
) -> Model:  # fmt: skip
    """An embedding, a Scan of a GRU in one or both directions, pooling over time, and a linear layer.

    Inputs: x is int64 [N, T], below `vocab`. lengths is int64 [N], 0 to T; the rest of a row is padding.

    Outputs: logits is float32 [N, classes].

    Options: `pooling` is "mean", over the states of a sentence, or "last", the last state. `dropout` is the dropout
    ratio after the embedding and before the last layer, in training.

    Parameters: token_weight, forward_input_*, forward_hidden_*, reverse_*, fc_*, in the layout of torch.nn.Embedding,
    GRU and Linear.
    """
    positive("text_classifier", vocab=vocab, width=width, hidden=hidden, classes=classes)
    if pooling not in _POOLINGS:
        raise UsageError(f"text_classifier: pooling must be {' or '.join(_POOLINGS)}, not {pooling!r}")
    x = nn.input("x", ["N", "T"], "int64")
    lengths = nn.input("lengths", ["N"], "int64")
    small = {"type": "normal", "std": 0.1}
    words = drop(nn.embedding(F.transpose(x, perm=(1, 0)), vocab, width, init=small, name="token"), dropout)
    sizes = within(lengths, x)
    there = F.unsqueeze(F.transpose(alive(sizes, x), perm=(1, 0)), np.array([2]), name="there")
    start = F.expand(np.float32(0), F.concat(F.shape(lengths), np.array([hidden]), axis=0))

    def recurrence(direction: str) -> Value:
        def step(h: Value, slices: tuple[Value, Value]) -> tuple[Value, Value | None]:
            projected, goes_on = slices
            after = F.where(goes_on, gru_step(projected, h, name=direction), h)
            return after, None if pooling == "last" else F.where(goes_on, after, np.float32(0))

        projected = gru_input(words, hidden, name=direction)
        last, states = control.scan(
            step, start, (projected, there), reverse=direction == "reverse", name=f"{direction}_scan"
        )
        return last if pooling == "last" else F.reduce_sum(states, np.array([0]), keepdims=False)

    directions = ("forward", "reverse") if bidirectional else ("forward",)
    pooled = F.concat(*(recurrence(d) for d in directions), axis=1, name="pooled")
    if pooling == "mean":
        count = F.cast(F.max(sizes, np.int64(1)), to="float32")
        pooled = F.div(pooled, F.unsqueeze(count, np.array([1])), name="mean")
    logits = nn.linear(drop(pooled, dropout), classes, name="fc")
    return Model({"logits": logits}, name="text_classifier")
