"""Recurrent layers: functions that make the parameters of RNN, GRU and LSTM and apply the operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend._shared import checked_rank, float_operand, known_size, layer, positive
from graphkit.frontend.initializers import FanInUniform
from graphkit.frontend.parameters import parameter
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.ops import F

_DIRECTIONS = ("forward", "reverse", "bidirectional")


@layer
def rnn(
    x: Value, units: int, *, lengths: Value | None = None, initial: Value | None = None, direction: str = "forward",
    activation: str = "Tanh", bias: bool = True, init: Any = None, in_features: int | None = None, name: str = "rnn",
) -> tuple[Value, Value]:  # fmt: skip
    """Elman recurrent layer: h' = activation(W x + Wb + R h + Rb) for each step of a sequence.

    The number of directions D is 2 for "bidirectional", else 1. Parameters: `<name>_weight` [D, units, in_features],
    `<name>_recurrent` [D, units, units], `<name>_bias` [D, 2 * units] (Wb, then Rb).

    Args:
        x: float [T, N, in_features]: T steps of N sequences.
        units: Number of hidden units.
        lengths: Integers [N], the number of steps of each sequence (default: T). After these steps, y is 0, and the
            state does not change.
        initial: [D, N, units], the state before the first step (default: 0).
        direction: "forward", "reverse" (from the last step to the first) or "bidirectional" (both).
        activation: "Tanh", "Relu" or another activation of ONNX's RNN.
        bias: False leaves out the bias.
        init: Initialiser of all parameters (default: uniform in +-1 / sqrt(units), as in PyTorch).
        in_features: Size of the last axis of x; only needed if this size is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        y, [T, N, D * units]: h after every step, the directions side by side; and the last h, [D, N, units].

    Raises:
        UsageError: An argument is wrong, or `in_features` is needed and not given.
    """
    functions = [activation] * (2 if direction == "bidirectional" else 1)
    y, h = _layer(
        "rnn", 1, x, units, lengths, [initial], direction, bias, init, in_features, name, activations=functions
    )
    return y, h


@layer
def gru(
    x: Value, units: int, *, lengths: Value | None = None, initial: Value | None = None, direction: str = "forward",
    bias: bool = True, init: Any = None, in_features: int | None = None, name: str = "gru",
) -> tuple[Value, Value]:  # fmt: skip
    """Gated recurrent unit (Cho et al., 2014), with PyTorch's formula: linear_before_reset=1 of ONNX's GRU.

    The number of directions D is 2 for "bidirectional", else 1. The parameters `<name>_weight` [D, 3 * units,
    in_features], `<name>_recurrent` [D, 3 * units, units] and `<name>_bias` [D, 6 * units] contain the gates in ONNX's
    order: update, reset, new.

    Args:
        x: float [T, N, in_features]: T steps of N sequences.
        units: Number of hidden units.
        lengths: Integers [N], the number of steps of each sequence (default: T). After these steps, y is 0, and the
            state does not change.
        initial: [D, N, units], the state before the first step (default: 0).
        direction: "forward", "reverse" (from the last step to the first) or "bidirectional" (both).
        bias: False leaves out the bias.
        init: Initialiser of all parameters (default: uniform in +-1 / sqrt(units), as in PyTorch).
        in_features: Size of the last axis of x; only needed if this size is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        y, [T, N, D * units]: h after every step, the directions side by side; and the last h, [D, N, units].

    Raises:
        UsageError: An argument is wrong, or `in_features` is needed and not given.
    """
    y, h = _layer("gru", 3, x, units, lengths, [initial], direction, bias, init, in_features, name,
                  linear_before_reset=True)  # fmt: skip
    return y, h


@layer
def lstm(
    x: Value, units: int, *, lengths: Value | None = None, initial: tuple[Value, Value] | None = None,
    direction: str = "forward", bias: bool = True, init: Any = None, in_features: int | None = None,
    name: str = "lstm",
) -> tuple[Value, tuple[Value, Value]]:  # fmt: skip
    """Long short-term memory (Hochreiter and Schmidhuber, 1997), without peepholes.

    The number of directions D is 2 for "bidirectional", else 1. The parameters `<name>_weight` [D, 4 * units,
    in_features], `<name>_recurrent` [D, 4 * units, units] and `<name>_bias` [D, 8 * units] contain the gates in ONNX's
    order: input, output, forget, cell.

    Args:
        x: float [T, N, in_features]: T steps of N sequences.
        units: Number of hidden units.
        lengths: Integers [N], the number of steps of each sequence (default: T). After these steps, y is 0, and the
            state does not change.
        initial: A pair (h, c), each [D, N, units]: the states before the first step (default: 0).
        direction: "forward", "reverse" (from the last step to the first) or "bidirectional" (both).
        bias: False leaves out the bias.
        init: Initialiser of all parameters (default: uniform in +-1 / sqrt(units), as in PyTorch).
        in_features: Size of the last axis of x; only needed if this size is not a fixed integer.
        name: Name of the layer and prefix of its parameters.

    Returns:
        y, [T, N, D * units]: h after every step, the directions side by side; and the last (h, c), each [D, N, units].

    Raises:
        UsageError: An argument is wrong, or `in_features` is needed and not given.
    """
    states: list[Value | None] = [None, None] if initial is None else [*initial]
    y, h, c = _layer("lstm", 4, x, units, lengths, states, direction, bias, init, in_features, name)
    return y, (h, c)


def _layer(
    kind: str, gates: int, x: Value, units: int, lengths: Value | None, states: list[Value | None], direction: str,
    bias: bool, init: Any, in_features: int | None, name: str, **attributes: Any,
) -> tuple[Value, ...]:  # fmt: skip
    float_operand(kind, name, x)
    checked_rank(kind, name, x, 3, "[T, N, C]")
    positive(kind, name, "units", units)
    if direction not in _DIRECTIONS:
        raise UsageError(
            f"layer {name!r} ({kind}): direction must be forward, reverse or bidirectional, not {direction!r}"
        )
    features = known_size(kind, name, x, 2, in_features, "in_features")
    directions, columns = (2 if direction == "bidirectional" else 1), gates * units
    start = FanInUniform(units) if init is None else init
    shapes = {"weight": (columns, features), "recurrent": (columns, units), "bias": (2 * columns,)}
    weight, recurrent, offset = (
        None
        if part == "bias" and not bias
        else parameter(f"{name}_{part}", (directions, *shape), start, x.tensor.dtype)
        for part, shape in shapes.items()
    )
    if lengths is not None and lengths.tensor.dtype is not DType.INT32:
        lengths = F.cast(lengths, to=DType.INT32)
    y, *last = getattr(F, kind)(
        x, weight, recurrent, offset, lengths, *states, hidden_size=units, direction=direction, name=name, **attributes
    )
    # [T, D, N, H]
    if directions == 1:
        joined = F.squeeze(y, np.array([1]))
    else:
        joined = F.reshape(F.transpose(y, perm=(0, 2, 1, 3)), np.array([0, 0, directions * units]))
    return joined, *last
