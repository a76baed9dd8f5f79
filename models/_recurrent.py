"""Shared by networks with their own recurrence: one step of a gated recurrent unit."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.ops import F


def uniform(hidden: int) -> dict[str, Any]:
    """PyTorch's initialiser of recurrent layers: uniform in +-1 / sqrt(hidden)."""
    return {"type": "fan_in_uniform", "fan_in": hidden}


def gru_input(x: Value, hidden: int, *, name: str) -> Value:
    """W x + b for the three gates, of a whole sequence at once. x: [..., in]; result: [..., 3 * hidden].

    Parameters `<name>_input_weight` [3 * hidden, in] and `_bias`, laid out as PyTorch's: reset, update, new.
    """
    start = uniform(hidden)
    return nn.linear(x, 3 * hidden, init=start, bias_init=start, name=f"{name}_input")


def gru_step(projected: Value, h: Value, *, name: str) -> Value:
    """torch.nn.GRUCell: r, z = sigmoid(x_rz + h_rz), n = tanh(x_n + r h_n), h' = n + z (h - n).

    projected: [N, 3 * hidden] of `gru_input`; h: [N, hidden]. Parameters `<name>_hidden_weight` [3 * hidden, hidden],
    `_bias`.
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
    """The size of the last axis."""
    size = x.tensor.known_shape[-1]
    assert isinstance(size, int)
    return size


def within(lengths: Value, rows: Value) -> Value:
    """lengths: int64 [N], at most T each. rows: [N, T]."""
    return F.min(lengths, _size(rows, 1))


def alive(lengths: Value, rows: Value) -> Value:
    """bool [N, T]: whether sequence n has a step t. lengths: int64 [N]; rows: [N, T]."""
    steps = F.range(np.int64(0), F.squeeze(_size(rows, 1), np.array([0])), np.int64(1))
    return F.less(steps, F.unsqueeze(lengths, np.array([1])))


def _size(x: Value, axis: int) -> Value:
    size: Value = F.slice(F.shape(x), np.array([axis]), np.array([axis + 1]))
    return size
