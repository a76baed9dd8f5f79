"""The fused recurrent operator RNN: layers of LSTM, GRU or Elman cells over [time, batch, features].

Its second operand holds all parameters in one vector: for each layer and direction the weights of the input
[gates * hidden, features] and of the state [gates * hidden, hidden], then for each layer and direction the two biases
[gates * hidden]. With a projection (LSTMP), the output and the weight of the state have `projection_size` features
instead of hidden ones, and the matrix [projection_size, hidden] follows the weight of the state. Gates are in the order
input, forget, cell, output (LSTM) and reset, update, new (GRU); ONNX has input, output, forget, cell, and update,
reset, hidden. Source: src/operator/rnn-inl.h of MXNet 1.9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import InvalidModel
from graphkit.ir.dims import is_static
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, as_indices, converter, reshape, shape_of, sizes_of, static_sizes
from graphkit.mxnet_io.operators import projected
from graphkit.mxnet_io.operators.projected import Cell, Clip
from graphkit.mxnet_io.operators.quantised import Replaced
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.passes.core.match import array_of

_MOST_LAYERS = 10_000
# Mode -> MXNet's gates in ONNX's order.
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


class _Sizes(NamedTuple):
    """Attributes of the operator.

    Attributes:
        mode: "lstm", "gru", "rnn_tanh" or "rnn_relu".
        hidden: Size of the state.
        projection: Size of the projected output, None without a projection.
        layers: Number of layers.
        directions: 1 or 2.
        clip: Bounds of the cell state of an LSTM, or None.
    """

    mode: str
    hidden: int
    projection: int | None
    layers: int
    directions: int
    clip: Clip | None

    @property
    def width(self) -> int:
        """Features of the output of one direction."""
        return self.hidden if self.projection is None else self.projection

    @property
    def rows(self) -> int:
        """Rows of a weight."""
        return len(_GATES[self.mode]) * self.hidden

    def shapes(self, features: int) -> list[tuple[int, ...]]:
        """Shapes of all parameters, in the order of the vector."""
        found: list[tuple[int, ...]] = []
        for layer in range(self.layers):
            inputs = features if layer == 0 else self.width * self.directions
            projection = [] if self.projection is None else [(self.projection, self.hidden)]
            found += [(self.rows, inputs), (self.rows, self.width), *projection] * self.directions
        return found + [(self.rows,), (self.rows,)] * self.layers * self.directions


def _sizes(call: Call) -> _Sizes:
    attributes = call.attributes
    mode = attributes.choice("mode", "lstm", "gru", "rnn_tanh", "rnn_relu")
    hidden, layers = attributes.integer("state_size", 0), attributes.integer("num_layers", 1)
    if not (0 < layers <= _MOST_LAYERS and hidden > 0):
        raise InvalidModel(f"num_layers {layers} and state_size {hidden}")
    attributes.ignore("p", "lstm_state_clip_nan", "num_args")
    clip = projection = None
    if "projection_size" in attributes:
        projection = attributes.integer("projection_size", 0)
        if mode != "lstm":
            raise InvalidModel(f"projection_size {projection} with mode {mode}: only an LSTM has a projection")
        if projection < 1:
            raise InvalidModel(f"projection_size is {projection}; it must be at least 1")
    bounds = [name for name in ("lstm_state_clip_min", "lstm_state_clip_max") if name in attributes]
    if bounds and mode == "lstm":  # MXNet ignores them in other modes
        if len(bounds) == 1:
            raise InvalidModel(f"{bounds[0]} is given without the other bound; give both, or none")
        clip = Clip(*(attributes.number(name, 0.0) for name in bounds))
    return _Sizes(mode, hidden, projection, layers, 2 if attributes.flag("bidirectional", False) else 1, clip)


@converter("RNN", "_npx_rnn")
def rnn(call: Call) -> Value | list[Value]:
    sizes, attributes = _sizes(call), call.attributes
    layers, directions = sizes.layers, sizes.directions
    x = call[0]
    cells = _cells(call[1], sizes.shapes(_features(x, call[1], sizes)), sizes)
    states = [_state(call[i]) for i in ((2, 3) if sizes.mode == "lstm" else (2,))]
    lengths = None
    if attributes.flag("use_sequence_length", False):
        lengths = F.cast(as_indices(call[len(states) + 2]), to=np.int32)
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        part = cells[layer * directions : (layer + 1) * directions]
        initial = [_rows(state, layer * directions, directions, layers) for state in states]
        if sizes.projection is None and sizes.clip is None:
            x, *ends = _layer(x, sizes, part, initial, lengths)
        else:
            x, *ends = _looped(call, x, sizes, part, initial, lengths)
        for list_, end in zip(last, ends, strict=True):
            list_.append(end)
    if not attributes.flag("state_outputs", False):
        return x
    return [x, *(ends[0] if layers == 1 else F.concat(*ends, axis=0) for ends in last)]


@converter("_contrib_quantized_rnn")
def quantized_rnn(call: Call) -> Value | list[Value]:
    """RNN on data that _contrib_quantize_asym made. Scale and shift follow the states.

    MXNet rounds the weights to 8 bits. Here they stay as they are in the file.
    """
    call.attributes.ignore("quantized")
    if len(call) < 5:
        raise InvalidModel(f"it has {len(call)} inputs; data, parameters, states, scale and shift are expected")
    scale, shift = call[len(call) - 2], call[len(call) - 1]
    data = F.div(F.sub(F.cast(call[0], to=scale.dtype), shift), scale)
    result: Value | list[Value] = rnn(Replaced(call, data))
    return result


def _features(x: Value, packed: Value, sizes: _Sizes) -> int:
    """Return the number of features of x. If it is not known, the size of the vector of parameters determines it."""
    (total,) = shape_of(packed)
    if is_static(shape_of(x)[2]) or not is_static(total):
        return static_sizes(x, [2])[0]
    rows = sizes.directions * sizes.rows
    features, rest = divmod(int(total) - sum(map(math.prod, sizes.shapes(0))), rows)
    if rest or features < 1:
        raise InvalidModel(f"the vector of parameters has {total} elements, which fits no number of features")
    return features


def _cells(packed: Value, shapes: Sequence[tuple[int, ...]], sizes: _Sizes) -> list[Cell]:
    """Split the vector of parameters. Where it is a concatenation of exactly these parts, they are used directly."""
    counts = list(map(math.prod, shapes))
    (total,) = shape_of(packed)
    if is_static(total) and total != sum(counts):
        raise InvalidModel(f"the vector of parameters has {total} elements; this RNN needs {sum(counts)}")
    parts = [
        part if part.tensor.shape == shape else reshape(part, shape)
        for part, shape in zip(_pieces(packed, counts), shapes, strict=True)
    ]
    count = sizes.layers * sizes.directions
    each = 2 if sizes.projection is None else 3
    weights, biases = parts[: count * each], parts[count * each :]
    found = []
    for i in range(count):
        inputs, states, *projection = weights[i * each : (i + 1) * each]
        found.append(Cell(inputs, states, projection[0] if projection else None, biases[2 * i], biases[2 * i + 1]))
    return found


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


def _state(state: Value) -> Value | None:
    """Return an initial state; None if it is a constant of zeros, whose batch size may be unknown."""
    array = array_of(state)
    return None if array is not None and not np.any(array) else state


def _rows(state: Value | None, begin: int, count: int, layers: int) -> Value | None:
    if state is None or layers == 1:
        return state
    result: Value = F.slice(state, i64(begin), i64(begin + count), i64(0))
    return result


def _looped(
    call: Call, x: Value, sizes: _Sizes, cells: Sequence[Cell], initial: Sequence[Value | None], lengths: Value | None
) -> list[Value]:
    """Apply one layer of LSTM as a loop. Returns what `_layer` returns."""
    found = [
        projected.lstm(
            x, cell, sizes.hidden, sizes.width, [_rows(state, number, 1, len(cells)) for state in initial],
            clip=sizes.clip, lengths=lengths, reverse=number == 1, name=call.name,
        )
        for number, cell in enumerate(cells)
    ]  # fmt: skip
    if len(found) == 1:
        return found[0]
    return [F.concat(*parts, axis=axis) for parts, axis in zip(zip(*found, strict=True), (2, 0, 0), strict=True)]


def _layer(
    x: Value, sizes: _Sizes, cells: Sequence[Cell], initial: Sequence[Value | None], lengths: Value | None
) -> list[Value]:
    """Apply one layer. Returns the outputs of all directions side by side, [time, batch, ...], and the last states."""
    mode, hidden = sizes.mode, sizes.hidden
    order = _GATES[mode]
    w, r = (_stacked(parts, hidden, order) for parts in ([c.inputs for c in cells], [c.states for c in cells]))
    biases = [c.input_bias for c in cells], [c.state_bias for c in cells]
    bias = F.concat(*(_stacked(parts, hidden, order) for parts in biases), axis=1)
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
