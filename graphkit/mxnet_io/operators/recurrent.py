"""The fused recurrent operator RNN: layers of LSTM, GRU or Elman cells over [time, batch, features].

Its second operand holds all parameters in one vector: for each layer and direction the weights of the input
[gates * hidden, features] and of the state [gates * hidden, hidden], then for each layer and direction the two biases
[gates * hidden]. Gates are in the order input, forget, cell, output (LSTM) and reset, update, new (GRU); ONNX has
input, output, forget, cell, and update, reset, hidden. Source: src/operator/rnn-inl.h of MXNet 1.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, UnsupportedError
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, as_indices, converter, reshape, shape_of, sizes_of, static_sizes
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.passes.core.match import array_of

_MOST_LAYERS = 10_000
# Mode -> MXNet's gates in ONNX's order.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


class _Cell(NamedTuple):
    """Parameters of one layer in one direction, in MXNet's order of gates."""

    inputs: Value
    states: Value
    input_bias: Value
    state_bias: Value


@converter("RNN", "_npx_rnn")
def rnn(call: Call) -> Value | list[Value]:
    attributes = call.attributes
    mode = attributes.choice("mode", "lstm", "gru", "rnn_tanh", "rnn_relu")
    hidden, layers = attributes.integer("state_size", 0), attributes.integer("num_layers", 1)
    if not (0 < layers <= _MOST_LAYERS and hidden > 0):
        raise InvalidModel(f"num_layers {layers} and state_size {hidden}")
    directions = 2 if attributes.flag("bidirectional", False) else 1
    attributes.ignore("p", "lstm_state_clip_nan", "num_args")
    for name in ("projection_size", "lstm_state_clip_min", "lstm_state_clip_max"):
        if name in attributes:
            raise UnsupportedError(f"{name} {attributes.text(name, '')}")
        attributes.ignore(name)
    x = call[0]
    features = _features(x, call[1], hidden, layers, directions, len(_GATES[mode]))
    cells = _cells(call[1], features, hidden, layers, directions, len(_GATES[mode]))
    states = [_state(call[i], hidden) for i in ((2, 3) if mode == "lstm" else (2,))]
    lengths = None
    if attributes.flag("use_sequence_length", False):
        lengths = F.cast(as_indices(call[len(states) + 2]), to=np.int32)
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        part = cells[layer * directions : (layer + 1) * directions]
        initial = [_rows(state, layer * directions, directions, layers) for state in states]
        x, *ends = _layer(call, x, mode, hidden, part, initial, lengths)
        for list_, end in zip(last, ends, strict=True):
            list_.append(end)
    if not attributes.flag("state_outputs", False):
        return x
    return [x, *(ends[0] if layers == 1 else F.concat(*ends, axis=0) for ends in last)]


def _features(x: Value, packed: Value, hidden: int, layers: int, directions: int, gates: int) -> int:
    """Return the number of features of x. If it is not known, the size of the vector of parameters determines it."""
    (total,) = shape_of(packed)
    if is_static(shape_of(x)[2]) or not is_static(total):
        return static_sizes(x, [2])[0]
    rows = directions * gates * hidden
    others = layers * (hidden + 2) + (layers - 1) * hidden * directions
    features, rest = divmod(int(total) - rows * others, rows)
    if rest or features < 1:
        raise InvalidModel(f"the vector of parameters has {total} elements, which fits no number of features")
    return features


def _cells(packed: Value, features: int, hidden: int, layers: int, directions: int, gates: int) -> list[_Cell]:
    """Split the vector of parameters. Where it is a concatenation of exactly these parts, they are used directly."""
    rows = gates * hidden
    shapes: list[tuple[int, ...]] = []
    for layer in range(layers):
        width = features if layer == 0 else hidden * directions
        shapes += [(rows, width), (rows, hidden)] * directions
    shapes += [(rows,), (rows,)] * layers * directions
    sizes = [int(np.prod(shape)) for shape in shapes]
    (total,) = shape_of(packed)
    if is_static(total) and total != sum(sizes):
        raise InvalidModel(f"the vector of parameters has {total} elements; this RNN needs {sum(sizes)}")
    parts = [
        part if part.tensor.shape == shape else reshape(part, shape)
        for part, shape in zip(_pieces(packed, sizes), shapes, strict=True)
    ]
    biases = len(parts) // 2
    return [_Cell(*parts[i : i + 2], *parts[biases + i : biases + i + 2]) for i in range(0, biases, 2)]


def _pieces(packed: Value, sizes: Sequence[int]) -> list[Value]:
    node = packed.node
    if node is not None and node.op.name == "Concat":
        operands = node.operands
        if [v.tensor.shape for v in operands] == [(size,) for size in sizes]:
            return [_unflattened(v) for v in operands]
    ends = np.cumsum(sizes).tolist()
    return [F.slice(packed, i64(end - size), i64(end), i64(0)) for end, size in zip(ends, sizes, strict=True)]


def _unflattened(vector: Value) -> Value:
    """Return the matrix that a vector was flattened from."""
    source = vector.node.operands[0] if vector.node is not None and vector.node.op.name == "Reshape" else vector
    return source


def _state(state: Value, hidden: int) -> Value | None:
    """Return an initial state; None if it is a constant of zeros, whose batch size may be unknown."""
    array = array_of(state)
    return None if array is not None and not np.any(array) else state


def _rows(state: Value | None, begin: int, count: int, layers: int) -> Value | None:
    if state is None or layers == 1:
        return state
    result: Value = F.slice(state, i64(begin), i64(begin + count), i64(0))
    return result


def _layer(
    call: Call, x: Value, mode: str, hidden: int, cells: Sequence[_Cell], initial: Sequence[Value | None],
    lengths: Value | None,
) -> list[Value]:  # fmt: skip
    """Apply one layer. Returns the outputs of all directions side by side, [time, batch, ...], and the last states."""
    order = _GATES[mode]
    w, r = (_stacked([cell[i] for cell in cells], hidden, order) for i in (0, 1))
    bias = F.concat(*(_stacked([cell[i] for cell in cells], hidden, order) for i in (2, 3)), axis=1)
    settings: dict[str, Any] = {"hidden_size": hidden, "direction": "bidirectional" if len(cells) == 2 else "forward"}
    if mode == "lstm":
        y, *ends = F.lstm(x, w, r, bias, lengths, *initial, **settings)
    elif mode == "gru":
        y, *ends = F.gru(x, w, r, bias, lengths, *initial, **settings, linear_before_reset=True)
    else:
        activation = "Tanh" if mode == "rnn_tanh" else "Relu"
        y, *ends = F.rnn(x, w, r, bias, lengths, *initial, **settings, activations=[activation] * len(cells))
    if len(cells) == 1:
        return [F.squeeze(y, i64(1)), *ends]
    joined = F.concat(sizes_of(x, 0, 1), constant(i64(2 * hidden)), axis=0)
    return [F.reshape(F.transpose(y, perm=(0, 2, 1, 3)), joined), *ends]


def _stacked(parts: Sequence[Value], hidden: int, order: Sequence[int]) -> Value:
    """Bring the rows of each part into ONNX's order of gates, and stack the directions."""
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in order])
    ordered = [part if len(order) == 1 else F.gather(part, i64(*rows.tolist()), axis=0) for part in parts]
    lifted = [F.unsqueeze(part, i64(0)) for part in ordered]
    result: Value = lifted[0] if len(lifted) == 1 else F.concat(*lifted, axis=0)
    return result
