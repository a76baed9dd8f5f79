"""One step of a gated recurrent unit, for networks with their own recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.ops import F


def uniform(hidden: int) -> dict[str, Any]:
    """Return PyTorch's initialiser of recurrent layers: uniform in +-1 / sqrt(hidden)."""
    return {"type": "fan_in_uniform", "fan_in": hidden}


def gru_input(x: Value, hidden: int, *, name: str) -> Value:
    """Return W x + b for the three gates, of a whole sequence at once. x: [..., in]; result: [..., 3 * hidden].

    Parameters: `<name>_input_weight` [3 * hidden, in] and `<name>_input_bias`, in PyTorch's order: reset, update, new.
    """
    start = uniform(hidden)
    return nn.linear(x, 3 * hidden, init=start, bias_init=start, name=f"{name}_input")


def gru_step(projected: Value, h: Value, *, name: str) -> Value:
    """Return the next state, as torch.nn.GRUCell: h' = n + z (h - n).

    The gates are r, z = sigmoid(x_rz + h_rz) and n = tanh(x_n + r h_n).

    projected: result of `gru_input`, [N, 3 * hidden]. h: [N, hidden]. Parameters: `<name>_hidden_weight` [3 * hidden,
    hidden], and `<name>_hidden_bias`.
    """
    hidden = units(h)
    start = uniform(hidden)
    recurrent = nn.linear(h, 3 * hidden, init=start, bias_init=start, name=f"{name}_hidden")
    x_reset, x_update, x_new = F.split(projected, num_outputs=3, axis=-1)
    h_reset, h_update, h_new = F.split(recurrent, num_outputs=3, axis=-1)
    reset = F.sigmoid(F.add(x_reset, h_reset))
    update = F.sigmoid(F.add(x_update, h_update))
    new = F.tanh(F.add(x_new, F.mul(reset, h_new)))
    return F.add(new, F.mul(update, F.sub(h, new)))


def units(x: Value) -> int:
    """Return the size of the last axis."""
    size = x.tensor.known_shape[-1]
    assert isinstance(size, int)
    return size


def within(lengths: Value, rows: Value) -> Value:
    """Limit lengths, int64 [N], to T, the second size of rows [N, T]."""
    return F.min(lengths, _size(rows, 1))


def alive(lengths: Value, rows: Value) -> Value:
    """Return bool [N, T]: whether sequence n has a step t. lengths: int64 [N]; rows: [N, T]."""
    steps = F.range(np.int64(0), F.squeeze(_size(rows, 1), np.array([0])), np.int64(1))
    return F.less(steps, F.unsqueeze(lengths, np.array([1])))


def _size(x: Value, axis: int) -> Value:
    size: Value = F.slice(F.shape(x), np.array([axis]), np.array([axis + 1]))
    return size
