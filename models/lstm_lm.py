"""A recurrent language model with LSTM layers (Zaremba, Sutskever and Vinyals 2014)."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.models._images import positive
from graphkit.models._registry import network
from graphkit.models._transformer import drop
from graphkit.ops import F


@network
def lstm_lm(
    vocab: int = 10000, hidden: int = 200, layers: int = 2, embedding: int | None = None, dropout: float = 0.0,
    tied: bool = False, stateful: bool = False,
) -> Model:  # fmt: skip
    """An embedding, LSTM layers of `hidden` units, and a linear layer. The defaults are the paper's small network.

    Inputs: x is int64 [T, N], below `vocab`.

    Outputs: logits is float32 [T, N, vocab], for the next token.

    Options: `embedding` is the width of the token table; the default is `hidden`. With `tied`, the table is also the
    output layer. `dropout` is the dropout ratio before, between and after the LSTM layers, in training. With
    `stateful`, a text can be processed in pieces. The first state is an input (h, c: float32 [layers, N, hidden]), and
    the last one is an output (last_h, last_c). In training, `carry` passes the state from batch to batch. At inference,
    feed the last state back yourself.

    Parameters: token_weight, lstm0_weight, lstm0_recurrent, lstm0_bias, ..., fc_weight, fc_bias. 4,653,200 with the
    default options, as in torch.nn.Embedding, LSTM and Linear together.
    """
    positive("lstm_lm", vocab=vocab, hidden=hidden, layers=layers)
    width = hidden if embedding is None else embedding
    positive("lstm_lm", embedding=width)
    if tied and width != hidden:
        raise UsageError(f"lstm_lm: tied=true needs embedding equal to hidden, not {width} and {hidden}")
    small = {"type": "uniform", "low": -0.1, "high": 0.1}
    x = nn.input("x", ["T", "N"], "int64")
    before = [nn.input(name, [layers, "N", hidden]) for name in ("h", "c")] if stateful else []
    table = nn.parameter("token_weight", (vocab, width), small)
    y = drop(nn.embedding(x, vocab, width, weight=table, name="token"), dropout)
    last: list[tuple[Value, Value]] = []
    for layer in range(layers):
        rows = [F.slice(s, np.array([layer]), np.array([layer + 1]), np.array([0])) for s in before]
        y, state = nn.lstm(y, hidden, initial=(rows[0], rows[1]) if stateful else None, name=f"lstm{layer}")
        y = drop(y, dropout)
        last.append(state)
    logits = nn.linear(y, vocab, weight=table if tied else None, init=small, bias_init="zeros", name="fc")
    outputs = {"logits": logits}
    if stateful:
        outputs |= {f"last_{n}": F.concat(*s, axis=0) for n, s in zip("hc", zip(*last, strict=True), strict=True)}
    return Model(outputs, name="lstm_lm")
