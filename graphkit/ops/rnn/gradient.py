"""Gradients of recurrent layers: the layer's recurrence, one backward in time, and products over all steps at once."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import TensorType
from graphkit.ops._base import F, Sample, apply, op
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.rnn.backward import (
    GRURecurrence,
    GRURecurrenceGrad,
    LSTMRecurrence,
    LSTMRecurrenceGrad,
    OfLayer,
    RecurrenceGrad,
    RNNRecurrence,
    RNNRecurrenceGrad,
    SavingRecurrence,
)
from graphkit.ops.rnn.gates import ArrayMath, GraphMath
from graphkit.ops.rnn.layers import GRU, LSTM, RNN
from graphkit.ops.rnn.recurrence import PARAMETERS, joined, of_direction, size, stacked, swapped

_LENGTHS = np.array([3, 1, 4], np.int32)


class LayerGrad(OfLayer):
    """Gradient of a recurrent layer with respect to x, w, r, b, the initial states and peepholes, also absent ones.

    Operands: dy, dy_h, ... are the gradients of the layer's results (None: 0). The layer's own operands follow.
    """

    recurrence: ClassVar[type[SavingRecurrence]]
    recurrence_grad: ClassVar[type[RecurrenceGrad]]

    def infer(self, *operands: TensorType | None) -> Any:
        layer = self.forward
        given = operands[1 + layer.states :]
        results: Any = layer.infer_types(given)
        y, *states = results
        for what, gradient, result in zip(self.inputs, operands, results, strict=False):
            if gradient is not None and not fits(gradient.shape, result.shape):
                raise TypeMismatch(f"{what} is {gradient}; expected {result}")
        vectors = [TensorType(y.dtype, (layer.directions, y.shape[3] * k)) for k in (2 * layer.gates, 3)]
        shapes = [TensorType(y.dtype, None if v is None else v.shape) for v in given[:3]]
        return (*shapes, vectors[0], *states, *(vectors[1:] if layer.states == 2 else ()))

    def _recurrences(self, call: Any, operands: Any) -> tuple[dict[str, Any], Any, list[Any], list[Any]]:
        """Return the layer's operands by name, h before each step, gradients of initial states, and other gradients.

        call: `call(operator, *operands)` computes an operator, on arrays or in the graph.
        """
        layer = self.forward
        count = 1 + layer.states
        given: Any = operands[count:]
        named = layer.named_inputs(given)
        gates, *before = call(self.recurrence(**self.attributes()), *given)[count:]
        read = [before[i] for i in layer.read_back]
        last = [named["p"]] if "p" in named else []
        operator = self.recurrence_grad(**self.attributes())
        found = call(operator, *operands[:count], gates, *read, named["r"], named["sequence_lens"], *last)
        return named, before[0], list(found[1:count]), [found[0], *found[count:]]

    def reference(self, xp: Any, *operands: Any) -> Any:
        layer, math = self.forward, ArrayMath(xp)
        named, h, d_states, (d_gates, *rest) = self._recurrences(lambda op, *given: op.reference(xp, *given), operands)
        x, w = named["x"], named["w"]
        x = xp.swapaxes(x, 0, 1) if self.layout else x
        features = x.reshape(-1, x.shape[2])
        parts = []
        for d in range(layer.directions):
            rows, left, *others = (a[d].reshape(-1, a.shape[3]) for a in (d_gates, h, *rest))
            products = layer.products(math, rows, others[0] if others else None, left)
            totals = [xp.sum(g, axis=0) for g in (rows, *(g for g, _ in products))]
            parts.append((
                xp.matmul(rows.T, features),
                xp.concatenate([xp.matmul(g.T, by) for g, by in products]),
                xp.concatenate(totals),
            ))  # fmt: skip
        dx = sum(xp.matmul(d_gates[d], w[d]) for d in range(layer.directions))
        gradients = [xp.stack(each) for each in zip(*parts, strict=True)]
        if layer.states == 2:
            d_states.append(xp.sum(rest[0], axis=(1, 2)))
        results = (xp.swapaxes(dx, 0, 1) if self.layout else dx, *gradients, *d_states)
        return tuple(xp.ascontiguousarray(a) for a in results)

    def expand(self, *operands: Any) -> Any:
        layer = self.forward
        named, h, d_states, (d_gates, *rest) = self._recurrences(apply, operands)
        x, p = swapped(layer, named["x"]), named.get("p")
        features = _rows(x)
        parts, of_x = [], []
        for d in range(layer.directions):
            steps, left, *others = (of_direction(v, d) for v in (d_gates, h, *rest))
            rows = _rows(steps)
            other = _rows(others[0]) if others else None
            products = layer.products(GraphMath, rows, other, _rows(left))
            axis = np.array([0])
            totals = [F.reduce_sum(g, axis, keepdims=False) for g in (rows, *(g for g, _ in products))]
            of_x.append(F.mat_mul(steps, of_direction(named["w"], d)))
            parts.append((
                F.gemm(rows, features, transA=True),
                F.concat(*(F.gemm(g, by, transA=True) for g, by in products), axis=0),
                joined(totals),
            ))  # fmt: skip
        dx = of_x[0] if len(of_x) == 1 else F.sum(*of_x)
        if p is not None:
            d_states.append(F.reduce_sum(rest[0], np.array([1, 2]), keepdims=False))
        elif layer.states == 2:
            columns = F.mul(size(named["r"], 2), np.array([3]))
            d_states.append(F.expand(scalar_like(0.0, x), F.concat(size(d_gates, 0), columns, axis=0)))
        return swapped(layer, dx), *stacked(parts), *d_states


def _rows(x: Any) -> Any:
    """Reshape [T, N, k] to [T * N, k]."""
    return F.flatten(x, axis=2)


def _case(*operands: Any, **attributes: Any) -> Sample:
    """Return a sample with five hidden units."""
    return Sample(*operands, hidden_size=5, **attributes)


@op
class RNNGrad(LayerGrad):
    """Gradient of RNN with respect to its operands. Operands and attributes: those of RNN.

    dy, dy_h: the gradients with respect to its results, with their shapes; absent: 0. Outputs: dx, dw, dr, db and
    dinitial_h, shaped like x, w, r, b and initial_h.
    """

    layer = RNN
    recurrence = RNNRecurrence
    recurrence_grad = RNNRecurrenceGrad
    activations: tuple[str, ...] = ("Tanh", "Tanh")
    inputs = ("dy?", "dy_h?", *RNN.inputs)
    outputs = ("dx", "dw", "dr", "db", "dinitial_h")
    types = PARAMETERS | {"dy": PARAMETERS["x"], "dy_h": PARAMETERS["x"]}
    samples = lambda: (
        _case((4, 1, 3, 5), (1, 3, 5), (4, 3, 2), (1, 5, 2), (1, 5, 5), (1, 10), _LENGTHS, (1, 3, 5)),
        _case((3, 4, 2, 5), None, (3, 4, 2), (2, 5, 2), (2, 5, 5), direction="bidirectional", layout=1),
        _case(None, (1, 3, 5), (4, 3, 2), (1, 5, 2), (1, 5, 5), direction="reverse", clip=0.5, activations=("Relu",)),
    )


@op
class GRUGrad(LayerGrad):
    """Gradient of GRU with respect to its operands. Operands and attributes: those of GRU.

    dy, dy_h: the gradients with respect to its results, with their shapes; absent: 0. Outputs: dx, dw, dr, db and
    dinitial_h, shaped like x, w, r, b and initial_h.
    """

    layer = GRU
    recurrence = GRURecurrence
    recurrence_grad = GRURecurrenceGrad
    linear_before_reset: bool = False
    inputs = ("dy?", "dy_h?", *GRU.inputs)
    outputs = ("dx", "dw", "dr", "db", "dinitial_h")
    types = PARAMETERS | {"dy": PARAMETERS["x"], "dy_h": PARAMETERS["x"]}
    samples = lambda: (
        _case((4, 1, 3, 5), (1, 3, 5), (4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), _LENGTHS, (1, 3, 5)),
        _case((3, 4, 2, 5), None, (3, 4, 2), (2, 15, 2), (2, 15, 5), direction="bidirectional", layout=1),
        _case(None, (1, 3, 5), (4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), linear_before_reset=True, clip=0.5),
    )


@op
class LSTMGrad(LayerGrad):
    """Gradient of LSTM with respect to its operands. Operands and attributes: those of LSTM.

    dy, dy_h, dy_c: the gradients with respect to its results, with their shapes; absent: 0. Outputs: dx, dw, dr, db,
    dinitial_h, dinitial_c and dp, shaped like x, w, r, b, initial_h, initial_c and p.
    """

    layer = LSTM
    recurrence = LSTMRecurrence
    recurrence_grad = LSTMRecurrenceGrad
    input_forget: bool = False
    inputs = ("dy?", "dy_h?", "dy_c?", *LSTM.inputs)
    outputs = ("dx", "dw", "dr", "db", "dinitial_h", "dinitial_c", "dp")
    types = PARAMETERS | dict.fromkeys(("dy", "dy_h", "dy_c"), PARAMETERS["x"]) | {"initial_c": "x", "p": "x"}
    samples = lambda: (
        _case(
            (4, 2, 3, 5), (2, 3, 5), (2, 3, 5), (4, 3, 2), (2, 20, 2), (2, 20, 5), (2, 40), _LENGTHS, (2, 3, 5),
            (2, 3, 5), (2, 15), direction="bidirectional",
        ),
        _case((3, 4, 1, 5), None, None, (3, 4, 2), (1, 20, 2), (1, 20, 5), layout=1, input_forget=True),
        _case(None, None, (1, 3, 5), (4, 3, 2), (1, 20, 2), (1, 20, 5), (1, 40), direction="reverse", clip=0.5),
    )  # fmt: skip
