"""Writers of recurrent layers: the inverse of `operators/recurrent.py`, one RNN for each layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.mxnet_io.writing import Entry, Writer, writes

# Operator -> ONNX's gates in MXNet's order.
_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}


@writes("LSTM", "GRU", "RNN")
def recurrent(writer: Writer) -> list[Entry]:
    kind = writer.node.op.name
    mode = _mode(writer, kind)
    hidden = writer["hidden_size"] or writer.value(2).tensor.static_shape[2]
    directions = 2 if writer["direction"] == "bidirectional" else 1
    if writer["direction"] == "reverse" or writer["layout"] or writer["clip"] is not None:
        raise UnsupportedError("MXNet has no reverse direction, no clip, and time as the first axis")
    if writer.given(4) is not None or (kind == "LSTM" and writer.given(7) is not None):
        raise UnsupportedError("sequence lengths and peepholes are not written")
    writing = writer.writing
    packed = writing.constant(_packed(writer, kind, hidden, directions), f"{writer.name}_parameters")
    states = [_state(writer, 5 + i, directions, hidden) for i in range(2 if kind == "LSTM" else 1)]
    index, _ = writer.add(
        "RNN", [writer.entry(0), packed, *states], mode=mode, state_size=hidden, num_layers=1,
        bidirectional=directions == 2, state_outputs=True,
    )  # fmt: skip
    # MXNet: [time, batch, directions * hidden]; ONNX: [time, directions, batch, hidden].
    split = writing.add("Reshape", writing.names.take(f"{writer.name}_split"), [(index, 0)], {
        "shape": (0, 0, directions, hidden)
    })  # fmt: skip
    y = writing.add("transpose", writing.names.take(f"{writer.name}_y"), [split], {"axes": (0, 2, 1, 3)})
    return [y, *((index, 1 + i) for i in range(len(states)))]


def _mode(writer: Writer, kind: str) -> str:
    activations = writer["activations"]
    if kind == "LSTM" and not writer["input_forget"] and activations is None:
        return "lstm"
    if kind == "GRU" and writer["linear_before_reset"] and activations is None:
        return "gru"
    if kind == "RNN" and len(set(activations)) == 1 and activations[0] in ("Tanh", "Relu"):
        return f"rnn_{activations[0].lower()}"
    raise UnsupportedError("MXNet has LSTM and GRU (linear_before_reset) with their usual activations, tanh and relu")


def _packed(writer: Writer, kind: str, hidden: int, directions: int) -> np.ndarray:
    """Return all weights, then all biases, as one vector in MXNet's order of gates."""
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in _GATES[kind]])
    w, r, b = (writer.array(i) for i in (1, 2, 3))
    assert w is not None
    assert r is not None
    biases = np.zeros((directions, 2 * len(rows)), w.dtype) if b is None else b
    parts: list[Any] = []
    for d in range(directions):
        parts += [w[d][rows], r[d][rows]]
    for d in range(directions):
        parts += [biases[d][: len(rows)][rows], biases[d][len(rows) :][rows]]
    return np.concatenate([part.ravel() for part in parts])


def _state(writer: Writer, position: int, directions: int, hidden: int) -> Entry:
    if writer.given(position) is not None:
        return writer.entry(position)
    name = writer.writing.names.take(f"{writer.name}_begin_state")
    # A size 0 is the batch, which MXNet infers.
    return writer.writing.add("_zeros", name, [], {"shape": (directions, 0, hidden), "dtype": "float32"})
