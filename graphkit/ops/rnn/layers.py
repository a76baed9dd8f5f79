"""Recurrent layers: RNN, GRU, LSTM."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from graphkit.ir.graph import Node
from graphkit.ops._base import F, Onnx, Sample, op
from graphkit.ops.rnn.gates import slope
from graphkit.ops.rnn.recurrence import PARAMETERS, CellGradient, Recurrence, Weights, gradients

_LENGTHS = np.array([3, 1, 4], np.int32)


def _case(*operands: Any, **attributes: Any) -> Sample:
    """Return a sample with five hidden units."""
    return Sample(*operands, hidden_size=5, **attributes)


def _plus(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


@op
class RNN(Recurrence):
    """Elman recurrent layer: h' = act(W x + Wb + R h + Rb) for each step of a sequence.

    There are H hidden units and D directions: 2 with direction="bidirectional", else 1. x: [T, N, I], T steps of N
    sequences ([N, T, I] with layout=1); w: [D, H, I]; r: [D, H, H]; b: [D, 2 * H], Wb then Rb. sequence_lens: int32
    [N], the steps of each sequence; after these steps, y is 0, and the state does not change. initial_h: [D, N, H] ([N,
    D, H] with layout=1), 0 by default. `activations` names act for each direction (Tanh by default); `clip` limits its
    argument to [-clip, clip].

    Returns y, h after every step: [T, D, N, H] ([N, T, D, H] with layout=1); and y_h, the last h, shaped like
    initial_h.
    """

    activations: tuple[str, ...] = ("Tanh", "Tanh")
    gates = 1
    functions = ("Tanh",)
    inputs = ("x", "w", "r", "b?", "sequence_lens?", "initial_h?")
    types = PARAMETERS
    outputs = ("y", "y_h")
    onnx = Onnx("RNN", since=22)
    samples: ClassVar[Any] = lambda: (
        _case((4, 3, 2), (1, 5, 2), (1, 5, 5)),
        _case((4, 3, 2), (1, 5, 2), (1, 5, 5), (1, 10), None, (1, 3, 5), direction="reverse"),
        _case((4, 3, 2), (2, 5, 2), (2, 5, 5), (2, 10), None, (2, 3, 5), direction="bidirectional"),
        _case((3, 4, 2), (1, 5, 2), (1, 5, 5), (1, 10), None, (3, 1, 5), layout=1),
        _case((4, 3, 2), (2, 5, 2), (2, 5, 5), (2, 10), _LENGTHS, (2, 3, 5), direction="bidirectional"),
        _case((4, 3, 2), (1, 5, 2), (1, 5, 5), (1, 10), clip=0.5, activations=("Relu",)),
        _case(
            (4, 3, 2), (1, 5, 2), (1, 5, 5),
            activations=("Affine",), activation_alpha=(0.5,), activation_beta=(0.25,),
        ),
        _case(
            (4, 3, 2), (2, 5, 2), (2, 5, 5), direction="bidirectional",
            activations=("LeakyRelu", "ScaledTanh"), activation_alpha=(0.25, 1.5), activation_beta=(0.5,),
        ),
        _case((4, 3, 2), (2, 5, 2), (2, 5, 5), direction="bidirectional", activations=("HardSigmoid", "Elu")),
        _case((4, 3, 2), (2, 5, 2), (2, 5, 5), direction="bidirectional", activations=("Softsign", "Softplus")),
        _case((4, 3, 2), (1, 5, 2), (1, 5, 5), activations=("ThresholdedRelu",), activation_alpha=(0.5,)),
    )  # fmt: skip

    def functions_named(self) -> tuple[str, ...]:
        # The default has functions for two directions; the layer may have only one.
        return self.activations[: self.directions] if self.activations == ("Tanh", "Tanh") else self.activations

    def cell(self, math: Any, weights: Weights, x: Any, state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        (h,) = state
        (f,) = weights.functions
        gate = _plus(x + math.product(h, weights.r), weights.bias)
        return (math.apply(f, self.clipped(math, gate)),), (gate,)

    def grad(self, node: Node, dy: Any, dy_h: Any) -> Any:
        return gradients(node, F.rnn_grad(dy, dy_h, **self.named_inputs(node.inputs), **self.attributes()))

    def cell_gradient(self, math: Any, weights: Weights, gates: Any, before: tuple[Any, ...], d: Any) -> CellGradient:
        (f,), (dh,) = weights.functions, d
        da = self.slope(math, f, gates, math.apply(f, self.clipped(math, gates)), dh)
        return CellGradient(da, (math.matmul(da, weights.r),))


@op
class GRU(Recurrence):
    """Gated recurrent unit (Cho et al. 2014): h' = (1 - z) n + z h for each step of a sequence.

    The gates are z = act1(Wz x + Wbz + Rz h + Rbz), and r likewise; n = act2(Wn x + Wbn + Rn (r h) + Rbn), or with
    linear_before_reset n = act2(Wn x + Wbn + r (Rn h + Rbn)). `activations` names act1 and act2 for each direction
    (Sigmoid, Tanh by default); `clip` limits their arguments to [-clip, clip]. w: [D, 3 * H, I] and r: [D, 3 * H, H]
    contain the gates in the order z, r, n; b: [D, 6 * H] the biases Wb, then Rb.

    There are H hidden units and D directions: 2 with direction="bidirectional", else 1. x: [T, N, I], T steps of N
    sequences ([N, T, I] with layout=1). sequence_lens: int32 [N], the steps of each sequence; after these steps, y is
    0, and the state does not change. initial_h: [D, N, H] ([N, D, H] with layout=1), 0 by default.

    Returns y, h after every step: [T, D, N, H] ([N, T, D, H] with layout=1); and y_h, the last h, shaped like
    initial_h.
    """

    linear_before_reset: bool = False
    gates = 3
    functions = ("Sigmoid", "Tanh")
    read_back = (0,)
    inputs = ("x", "w", "r", "b?", "sequence_lens?", "initial_h?")
    types = PARAMETERS
    outputs = ("y", "y_h")
    onnx = Onnx("GRU", since=22)
    samples: ClassVar[Any] = lambda: (
        _case((4, 3, 2), (1, 15, 2), (1, 15, 5)),
        _case((4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), None, (1, 3, 5), direction="reverse"),
        _case((4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), None, (1, 3, 5), linear_before_reset=True),
        _case((4, 3, 2), (2, 15, 2), (2, 15, 5), (2, 30), None, (2, 3, 5), direction="bidirectional"),
        _case((3, 4, 2), (1, 15, 2), (1, 15, 5), (1, 30), None, (3, 1, 5), layout=1, linear_before_reset=True),
        _case((4, 3, 2), (2, 15, 2), (2, 15, 5), (2, 30), _LENGTHS, (2, 3, 5), direction="bidirectional"),
        _case((4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), _LENGTHS, direction="reverse", linear_before_reset=True),
        _case((4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), clip=0.5),
        _case(
            (4, 3, 2), (2, 15, 2), (2, 15, 5), direction="bidirectional", activation_alpha=(0.25, 0.5),
            activation_beta=(0.25,), activations=("HardSigmoid", "Relu", "Sigmoid", "LeakyRelu"),
        ),
    )  # fmt: skip

    @property
    def saved_gates(self) -> int:
        return 4 if self.linear_before_reset else 3

    def cell(self, math: Any, weights: Weights, x: Any, state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        (h,) = state
        f, g = weights.functions
        of_update, of_reset, of_new = math.split(weights.r, 3, axis=0)
        bias = (None,) * 3 if weights.bias is None else math.split(weights.bias, 3)
        x_update, x_reset, x_new = math.split(x, 3)
        pre_update = _plus(x_update + math.product(h, of_update), bias[0])
        pre_reset = _plus(x_reset + math.product(h, of_reset), bias[1])
        update = math.apply(f, self.clipped(math, pre_update))
        reset = math.apply(f, self.clipped(math, pre_reset))
        if self.linear_before_reset:
            product = _plus(math.product(h, of_new), bias[2])
            pre_new = x_new + reset * product
            gates: tuple[Any, ...] = (pre_update, pre_reset, pre_new, product)
        else:
            pre_new = x_new + _plus(math.product(reset * h, of_new), bias[2])
            gates = (pre_update, pre_reset, pre_new)
        new = math.apply(g, self.clipped(math, pre_new))
        return ((1 - update) * new + update * h,), gates

    def grad(self, node: Node, dy: Any, dy_h: Any) -> Any:
        return gradients(node, F.gru_grad(dy, dy_h, **self.named_inputs(node.inputs), **self.attributes()))

    def cell_gradient(self, math: Any, weights: Weights, gates: Any, before: tuple[Any, ...], d: Any) -> CellGradient:
        (h,), (f, g), (dh,) = before, weights.functions, d
        of_update, of_reset, of_new = math.split(weights.r, 3, axis=0)
        pre_update, pre_reset, pre_new, *products = math.split(gates, self.saved_gates)
        update = math.apply(f, self.clipped(math, pre_update))
        reset = math.apply(f, self.clipped(math, pre_reset))
        new = math.apply(g, self.clipped(math, pre_new))
        d_new = self.slope(math, g, pre_new, new, dh * (1 - update))
        d_update = self.slope(math, f, pre_update, update, dh * (h - new))
        dh = dh * update
        if self.linear_before_reset:
            d_reset = self.slope(math, f, pre_reset, reset, d_new * products[0])
            other = d_new * reset
            dh = dh + math.matmul(math.join(d_update, d_reset, other), weights.r)
        else:
            d_left = math.matmul(d_new, of_new)
            d_reset = self.slope(math, f, pre_reset, reset, d_left * h)
            other = reset * h
            dh = dh + d_left * reset + math.matmul(d_update, of_update) + math.matmul(d_reset, of_reset)
        return CellGradient(math.join(d_update, d_reset, d_new), (dh,), other)

    def products(self, math: Any, d_gates: Any, other: Any, h: Any) -> tuple[tuple[Any, Any], ...]:
        d_update, d_reset, d_new = math.split(d_gates, 3)
        return (d_update, h), (d_reset, h), (other, h) if self.linear_before_reset else (d_new, other)


@op
class LSTM(Recurrence):
    """Long short-term memory (Hochreiter and Schmidhuber 1997): c' = f c + i g, h' = o act3(c') for each step.

    The gates are i = act1(Wi x + Wbi + Ri h + Rbi + Pi c); f likewise, or 1 - i with input_forget; o likewise, with c'
    instead of c; and g = act2(Wg x + Wbg + Rg h + Rbg). `activations` names act1, act2 and act3 for each direction
    (Sigmoid, Tanh, Tanh by default). `clip` limits the arguments of act1 and act2, not of act3, to [-clip, clip].

    w: [D, 4 * H, I] and r: [D, 4 * H, H] contain the gates in the order i, o, f, g; b: [D, 8 * H] the biases Wb, then
    Rb; p: [D, 3 * H] the peepholes Pi, Po, Pf (0 by default).

    There are H hidden units and D directions: 2 with direction="bidirectional", else 1. x: [T, N, I], T steps of N
    sequences ([N, T, I] with layout=1). sequence_lens: int32 [N], the steps of each sequence; after these steps, y is
    0, and the states do not change. initial_h and initial_c: [D, N, H] ([N, D, H] with layout=1), 0 by default.

    Returns y, h after every step: [T, D, N, H] ([N, T, D, H] with layout=1); y_h, the last h, and y_c, the last c,
    shaped like initial_h.
    """

    input_forget: bool = False
    gates = 4
    states = 2
    functions = ("Sigmoid", "Tanh", "Tanh")
    read_back = (1,)
    inputs = ("x", "w", "r", "b?", "sequence_lens?", "initial_h?", "initial_c?", "p?")
    types = {**PARAMETERS, "initial_c": "x", "p": "x"}
    outputs = ("y", "y_h", "y_c")
    onnx = Onnx("LSTM", since=22)
    samples: ClassVar[Any] = lambda: (
        _case((4, 3, 2), (1, 20, 2), (1, 20, 5)),
        _case((4, 3, 2), (1, 20, 2), (1, 20, 5), (1, 40), None, (1, 3, 5), (1, 3, 5), direction="reverse"),
        _case((4, 3, 2), (1, 20, 2), (1, 20, 5), (1, 40), None, None, None, (1, 15)),
        _case((4, 3, 2), (2, 20, 2), (2, 20, 5), (2, 40), None, (2, 3, 5), (2, 3, 5), direction="bidirectional"),
        _case((3, 4, 2), (1, 20, 2), (1, 20, 5), (1, 40), None, (3, 1, 5), (3, 1, 5), layout=1),
        _case(
            (4, 3, 2), (2, 20, 2), (2, 20, 5), (2, 40), _LENGTHS, (2, 3, 5), (2, 3, 5), (2, 15),
            direction="bidirectional",
        ),
        _case((4, 3, 2), (1, 20, 2), (1, 20, 5), (1, 40), input_forget=True),
        _case((4, 3, 2), (1, 20, 2), (1, 20, 5), (1, 40), clip=0.5),
        _case(
            (4, 3, 2), (2, 20, 2), (2, 20, 5), (2, 40), direction="bidirectional", activation_alpha=(0.25, 0.5),
            activation_beta=(0.25,), activations=("HardSigmoid", "Relu", "Elu", "Sigmoid", "Softsign", "Tanh"),
        ),
    )  # fmt: skip

    def cell(self, math: Any, weights: Weights, x: Any, state: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        h, c = state
        f, g, output = weights.functions
        gates = _plus(x + math.product(h, weights.r), weights.bias)
        i, o, forget, new = math.split(gates, 4)
        p_i, p_o, p_f = (None,) * 3 if weights.peepholes is None else math.split(weights.peepholes, 3)
        i = math.apply(f, self.clipped(math, i if p_i is None else i + p_i * c))
        if self.input_forget:
            kept = 1 - i
        else:
            kept = math.apply(f, self.clipped(math, forget if p_f is None else forget + p_f * c))
        c = kept * c + i * math.apply(g, self.clipped(math, new))
        o = math.apply(f, self.clipped(math, o if p_o is None else o + p_o * c))
        return (o * math.apply(output, c), c), (gates,)

    def grad(self, node: Node, dy: Any, dy_h: Any, dy_c: Any) -> Any:
        return gradients(node, F.lstm_grad(dy, dy_h, dy_c, **self.named_inputs(node.inputs), **self.attributes()))

    def cell_gradient(self, math: Any, weights: Weights, gates: Any, before: tuple[Any, ...], d: Any) -> CellGradient:
        (c,), (f, g, output), (dh, dc) = before, weights.functions, d
        pre_i, pre_o, pre_f, pre_g = math.split(gates, 4)
        p_i, p_o, p_f = (None,) * 3 if weights.peepholes is None else math.split(weights.peepholes, 3)
        if p_i is not None:
            pre_i, pre_f = pre_i + p_i * c, pre_f + p_f * c
        i, new = math.apply(f, self.clipped(math, pre_i)), math.apply(g, self.clipped(math, pre_g))
        kept = 1 - i if self.input_forget else math.apply(f, self.clipped(math, pre_f))
        after = kept * c + i * new
        if p_o is not None:
            pre_o = pre_o + p_o * after
        o, shown = math.apply(f, self.clipped(math, pre_o)), math.apply(output, after)

        d_o = self.slope(math, f, pre_o, o, dh * shown)
        dc = dc + slope(math, output, after, shown, dh * o)
        if p_o is not None:
            dc = dc + d_o * p_o
        d_g = self.slope(math, g, pre_g, new, dc * i)
        if self.input_forget:
            d_i = self.slope(math, f, pre_i, i, dc * (new - c))
            d_f = math.zeros(d_i)
        else:
            d_i = self.slope(math, f, pre_i, i, dc * new)
            d_f = self.slope(math, f, pre_f, kept, dc * c)
        dc = dc * kept
        d_p = None
        if p_i is not None:
            dc = dc + d_i * p_i + d_f * p_f
            d_p = math.join(d_i * c, d_o * after, d_f * c)
        da = math.join(d_i, d_o, d_f, d_g)
        return CellGradient(da, (math.matmul(da, weights.r), dc), peepholes=d_p)
