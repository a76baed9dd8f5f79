"""LSTM layers that ONNX's LSTM cannot express: with a projection of the output (LSTMP), or with a clipped cell state.

They are written as a loop over time. Gates are in MXNet's order: input, forget, cell, output.
"""

from __future__ import annotations

import numpy as np

from graphkit.frontend.control import foreach
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import scalar, sizes_of
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.ops.axes import i64


class Cell(NamedTuple):
    """Parameters of one layer in one direction, in MXNet's order of gates. projection: None without LSTMP."""

    inputs: Value
    states: Value
    projection: Value | None
    input_bias: Value
    state_bias: Value


class Clip(NamedTuple):
    """Bounds of the cell state."""

    least: float
    most: float


def _transposed(matrix: Value) -> Value:
    result: Value = F.transpose(matrix, perm=(1, 0))
    return result


def _zeros(x: Value, width: int) -> Value:
    """Return the initial state [1, batch, width]."""
    sizes = F.concat(i64(1), sizes_of(x, 1), i64(width), axis=0)
    result: Value = F.constant_of_shape(sizes, value=np.zeros(1, x.dtype.numpy))
    return result


def lstm(
    x: Value, cell: Cell, hidden: int, width: int, initial: list[Value | None], *, clip: Clip | None,
    lengths: Value | None, reverse: bool, name: str,
) -> list[Value]:  # fmt: skip
    """Apply one direction of a layer. Returns the outputs [time, batch, width] and the last states, [1, batch, ...].

    width: features of the output. initial: output and cell state, [1, batch, ...], None for zeros.
    """
    gates = F.add(F.mat_mul(x, _transposed(cell.inputs)), F.add(cell.input_bias, cell.state_bias))
    recurrent = _transposed(cell.states)
    projection = None if cell.projection is None else _transposed(cell.projection)
    times = F.range(np.int64(0), F.squeeze(sizes_of(x, 0), i64(0)), np.int64(1))
    ends = None if lengths is None else F.unsqueeze(F.cast(lengths, to="int64"), i64(1))

    def step(element: list[Value], state: list[Value]) -> tuple[Value, list[Value]]:
        now, time = element
        h, c = state
        parts = F.split(F.add(now, F.mat_mul(h, recurrent)), axis=1, num_outputs=4)
        i, f, o = (F.sigmoid(parts[k]) for k in (0, 1, 3))
        after = F.add(F.mul(f, c), F.mul(i, F.tanh(parts[2])))
        if clip is not None:
            after = F.clip(after, scalar(clip.least, after), scalar(clip.most, after))
        y = F.mul(o, F.tanh(after))
        y = y if projection is None else F.mat_mul(y, projection)
        if ends is None:
            return y, [y, after]
        runs = F.less(time, ends)
        return F.where(runs, y, scalar(0.0, y)), [F.where(runs, y, h), F.where(runs, after, c)]

    start = [
        F.squeeze(_zeros(x, size) if state is None else state, i64(0))
        for state, size in zip(initial, (width, hidden), strict=True)
    ]
    y, last = foreach(step, [gates, times], start, reverse=reverse, name=name)
    return [y, *(F.unsqueeze(state, i64(0)) for state in last)]
