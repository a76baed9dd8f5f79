"""Operators for gradients of recurrent layers: a recurrence that saves its gates, and one backward in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import FLOATS, TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.nn.activation import keep_where
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.rnn.gates import ArrayMath, GraphMath
from graphkit.ops.rnn.layers import GRU, LSTM, RNN
from graphkit.ops.rnn.recurrence import (
    PARAMETERS,
    Recurrence,
    Weights,
    going_of,
    of_direction,
    operand_ranks,
    scan,
    size,
    stacked,
    swapped,
)

_LENGTHS = np.array([3, 1, 4], np.int32)


class OfLayer(Op):
    """Base of the operators for gradients of a recurrent layer, with the attributes of the layer."""

    layer: ClassVar[type[Recurrence]]
    # A Scan with native kernels is an order of magnitude faster than `reference`.
    composite: ClassVar[bool] = True
    symbolic_inference = True
    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0
    domain = DOMAIN

    @property
    def forward(self) -> Recurrence:
        return self.layer(**self.attributes())

    def operand_ranks(self, *inputs: Any) -> Sequence[int | None]:
        return operand_ranks(self, len(inputs))


class SavingRecurrence(OfLayer):
    """A recurrent layer that also returns what its gradient reads: the gates of every step, and the states before it.

    Gates: the inputs of the activations, without peepholes and before clipping, [D, T, N, gates * H] (a GRU with
    linear_before_reset has a fourth part, R h + Rb of the last gate). States: [D, T, N, H].
    """

    def infer(self, *operands: TensorType | None) -> Any:
        layer = self.forward
        y, *ends = layer.infer_types(operands)
        assert isinstance(y, TensorType)
        assert y.shape is not None
        time, count, batch, hidden = (y.shape[i] for i in ((1, 2, 0, 3) if self.layout else range(4)))
        before = TensorType(y.dtype, (count, time, batch, hidden))
        gates = TensorType(y.dtype, (count, time, batch, hidden * layer.saved_gates))
        return (y, *ends, gates, *[before] * layer.states)

    def reference(self, xp: Any, *operands: Any) -> Any:
        return self.forward.recurrence(xp, *operands)

    def expand(self, *operands: Any) -> Any:
        return self.forward.expand_recurrence(operands, saves=True)


class RecurrenceGrad(OfLayer):
    """Base: gradients of a layer's gates and initial states from the gradients of its results (None: 0).

    Operands are those gradients, then what SavingRecurrence saved, r, sequence_lens, (p). Results: d_gates [D, T, N,
    gates * H], the gradients of the initial states, and for each step the third part of CellGradient: `other`, or the
    terms of dp.
    """

    # Number of columns of the last result, in units of H.
    rest: ClassVar[int] = 0

    def _given(self, operands: Any) -> tuple[Any, list[Any], Any, list[Any], dict[str, Any]]:
        """Return dy, gradients of the last states, gates, states before each step, and all operands by name."""
        layer = self.forward
        dy, *others = operands
        ends, (gates, *others) = others[: layer.states], others[layer.states :]
        return dy, ends, gates, others[: len(layer.read_back)], self.named_inputs(operands)

    def infer(self, *operands: TensorType | None) -> Any:
        layer = self.forward
        dy, ends, gates, before, named = self._given(operands)
        r = named["r"]
        if gates.shape is None or r.shape is None:
            results = 1 + layer.states + bool(self.rest)
            return (TensorType(gates.dtype),) * results
        if len(gates.shape) != 4 or len(r.shape) != 3:
            raise TypeMismatch(f"gates must have 4 dimensions and r must have 3, not {gates} and {r}")
        count, time, batch, _ = gates.shape
        hidden = r.shape[2]
        if not all(fits((n,), (layer.directions,)) for n in (count, r.shape[0])):
            raise TypeMismatch(f"gates {gates} and r {r} do not have {layer.directions} directions")

        def saved(parts: int) -> TensorType:
            return TensorType(gates.dtype, (count, time, batch, hidden * parts))

        state = TensorType(gates.dtype, (batch, count, hidden) if self.layout else (count, batch, hidden))
        whole = (batch, time, count, hidden) if self.layout else (time, count, batch, hidden)
        expected = [("dy", dy, whole), *(("the gradient by a state", end, state.shape) for end in ends)]
        expected += [("a state before the steps", b, saved(1).shape) for b in before]
        expected.append(("gates", gates, saved(layer.saved_gates).shape))
        for what, operand, shape in expected:
            if operand is not None and not fits(operand.shape, shape):
                raise TypeMismatch(f"{what} is {operand}; expected {TensorType(gates.dtype, shape)}")
        return saved(layer.gates), *[state] * layer.states, *([saved(self.rest)] if self.rest else [])

    def reference(self, xp: Any, *operands: Any) -> Any:
        layer, math = self.forward, ArrayMath(xp)
        dy, ends, gates, before, named = self._given(operands)
        r, lengths, p = named["r"], named["sequence_lens"], named.get("p")
        turned: Any = (lambda a: None if a is None else xp.swapaxes(a, 0, 1)) if self.layout else (lambda a: a)
        dy = dy if dy is None or not self.layout else xp.transpose(dy, (1, 2, 0, 3))
        count, steps, batch, _ = gates.shape
        hidden = r.shape[2]
        d_gates = xp.zeros((count, steps, batch, layer.gates * hidden), gates.dtype)
        rest = xp.zeros((count, steps, batch, self.rest * hidden), gates.dtype)
        d_initial = []
        for d, backwards in enumerate(layer.reversed):
            weights = Weights(r[d], None, None if p is None else p[d], layer.functions_of(d))
            zeros = xp.zeros((batch, hidden), gates.dtype)
            d_state = tuple(zeros if g is None else turned(g)[d] for g in ends)
            for t in range(steps)[:: 1 if backwards else -1]:
                going = xp.full((batch, 1), True) if lengths is None else (t < lengths)[:, None]
                d_after = d_state if dy is None else (d_state[0] + dy[t, d], *d_state[1:])
                kept = tuple(math.keep(going, g) for g in d_after)
                step = layer.cell_gradient(math, weights, gates[d, t], tuple(b[d, t] for b in before), kept)
                d_state = tuple(xp.where(going, g, old) for g, old in zip(step.state, d_state, strict=True))
                d_gates[d, t] = step.gates
                if step.other is not None:
                    rest[d, t] = math.keep(going, step.other)
                elif step.peepholes is not None:
                    rest[d, t] = step.peepholes
            d_initial.append(d_state)
        d_states = [turned(xp.stack(parts)) for parts in zip(*d_initial, strict=True)]
        results = (d_gates, *d_states, *([rest] if self.rest else []))
        return tuple(xp.ascontiguousarray(a) for a in results)

    def expand(self, *operands: Any) -> Any:
        """Build one Scan per direction."""
        layer = self.forward
        dy, ends, gates, before, named = self._given(operands)
        dy = F.transpose(dy, perm=(1, 2, 0, 3)) if dy is not None and self.layout else dy
        lengths, p = named["sequence_lens"], named.get("p")
        going = going_of(lengths, size(gates, 1))
        zeros = F.expand(scalar_like(0.0, gates), F.concat(size(gates, 2), size(named["r"], 2), axis=0))
        results = []
        for d, backwards in enumerate(layer.reversed):

            def step_back(d_state: Any, slices: Any, captured: Any, d: int = d) -> tuple[Any, Any]:
                gate, goes_on, d_result, *states = slices
                d_after = d_state if d_result is None else [F.add(d_state[0], d_result), *d_state[1:]]
                if goes_on is not None:
                    d_after = [keep_where(goes_on, g) for g in d_after]
                weights = Weights(captured[0], None, captured[1], layer.functions_of(d))
                step = layer.cell_gradient(GraphMath, weights, gate, tuple(states), tuple(d_after))
                d_before, rest = step.state, step.peepholes
                if step.other is not None:
                    rest = step.other if goes_on is None else keep_where(goes_on, step.other)
                if goes_on is not None:
                    d_before = tuple(F.where(goes_on, g, old) for g, old in zip(d_before, d_state, strict=True))
                return d_before, [step.gates, *([] if rest is None else [rest])]

            slices = [of_direction(v, d) for v in (gates, *before)]
            first = [zeros if g is None else of_direction(swapped(layer, g), d) for g in ends]
            d_result = None if dy is None else F.gather(dy, np.int64(d), axis=1)
            scanned = (slices[0], going, d_result, *slices[1:])
            captured = (of_direction(named["r"], d), of_direction(p, d))
            results.append(scan(first, scanned, captured, step_back, not backwards))
        found = stacked(results)
        d_states = [swapped(layer, g) for g in found[: layer.states]]
        d_gates, *rest = found[layer.states :]
        if self.rest and not rest:
            columns = F.mul(size(named["r"], 2), np.array([self.rest]))
            rest = [F.expand(scalar_like(0.0, gates), F.concat(F.shape(gates, end=3), columns, axis=0))]
        return d_gates, *d_states, *rest


def _case(*operands: Any, **attributes: Any) -> Sample:
    """Return a sample with five hidden units."""
    return Sample(*operands, hidden_size=5, **attributes)


@op
class RNNRecurrence(SavingRecurrence):
    """RNN that also returns the gates and states that its gradient needs. Operands and attributes: those of RNN.

    Outputs: y and y_h of RNN; gates [D, T, N, H], the arguments of the activation before clipping; h_before [D, T, N,
    H], the state before each step.
    """

    former_names = ("RNNWalk",)
    layer = RNN
    activations: tuple[str, ...] = ("Tanh", "Tanh")
    inputs = RNN.inputs
    types = RNN.types
    outputs = (*RNN.outputs, "gates", "h_before")
    samples = lambda: RNN.samples()[2:6]


@op
class GRURecurrence(SavingRecurrence):
    """GRU that also returns the gates and states that its gradient needs. Operands and attributes: those of GRU.

    Outputs: y and y_h of GRU; gates [D, T, N, 3 * H], the arguments of the activations before clipping, in the order z,
    r, n (with linear_before_reset [D, T, N, 4 * H]: also Rn h + Rbn); h_before [D, T, N, H], the state before each
    step.
    """

    former_names = ("GRUWalk",)
    layer = GRU
    linear_before_reset: bool = False
    inputs = GRU.inputs
    types = GRU.types
    outputs = (*GRU.outputs, "gates", "h_before")
    samples = lambda: GRU.samples()[2:8]


@op
class LSTMRecurrence(SavingRecurrence):
    """LSTM that also returns the gates and states that its gradient needs. Operands and attributes: those of LSTM.

    Outputs: y, y_h and y_c of LSTM; gates [D, T, N, 4 * H], the arguments of the activations without peepholes and
    before clipping, in the order i, o, f, g; h_before and c_before [D, T, N, H], the states before each step.
    """

    former_names = ("LSTMWalk",)
    layer = LSTM
    input_forget: bool = False
    inputs = LSTM.inputs
    types = LSTM.types
    outputs = (*LSTM.outputs, "gates", "h_before", "c_before")
    samples = lambda: LSTM.samples()[2:8]


_GATES = {"gates": FLOATS, "r": "gates", "sequence_lens": PARAMETERS["sequence_lens"]}


@op
class RNNRecurrenceGrad(RecurrenceGrad):
    """Backward pass through time of an RNN: gradients with respect to its gates and initial state.

    dy, dy_h: the gradients with respect to y and y_h; absent: 0. gates: the output of RNNRecurrence. r, sequence_lens
    and attributes: those of RNN. Outputs: d_gates [D, T, N, H]; dinitial_h, shaped like initial_h.
    """

    former_names = ("RNNWalkGrad",)
    layer = RNN
    activations: tuple[str, ...] = ("Tanh", "Tanh")
    inputs = ("dy?", "dy_h?", "gates", "r", "sequence_lens?")
    outputs = ("d_gates", "dinitial_h")
    types = _GATES | dict.fromkeys(("dy", "dy_h"), FLOATS)
    samples = lambda: (
        _case((4, 1, 3, 5), (1, 3, 5), (1, 4, 3, 5), (1, 5, 5), _LENGTHS),
        _case((3, 4, 2, 5), None, (2, 4, 3, 5), (2, 5, 5), direction="bidirectional", layout=1),
        _case(None, (1, 3, 5), (1, 4, 3, 5), (1, 5, 5), direction="reverse", clip=0.5, activations=("Softplus",)),
    )


@op
class GRURecurrenceGrad(RecurrenceGrad):
    """Backward pass through time of a GRU: gradients with respect to its gates and initial state.

    dy, dy_h: the gradients with respect to y and y_h; absent: 0. gates, h_before: outputs of GRURecurrence. r,
    sequence_lens and attributes: those of GRU. Outputs: d_gates [D, T, N, 3 * H]; dinitial_h, shaped like initial_h;
    and other [D, T, N, H]: r * h, or with linear_before_reset the gradient with respect to Rn h + Rbn.
    """

    former_names = ("GRUWalkGrad",)
    layer = GRU
    rest = 1
    linear_before_reset: bool = False
    inputs = ("dy?", "dy_h?", "gates", "h_before", "r", "sequence_lens?")
    outputs = ("d_gates", "dinitial_h", "other")
    types = _GATES | dict.fromkeys(("dy", "dy_h"), FLOATS) | {"h_before": "gates"}
    samples = lambda: (
        _case((4, 1, 3, 5), (1, 3, 5), (1, 4, 3, 15), (1, 4, 3, 5), (1, 15, 5), _LENGTHS),
        _case((3, 4, 2, 5), None, (2, 4, 3, 15), (2, 4, 3, 5), (2, 15, 5), direction="bidirectional", layout=1),
        _case(
            None, (1, 3, 5), (1, 4, 3, 20), (1, 4, 3, 5), (1, 15, 5), _LENGTHS, linear_before_reset=True, clip=0.5,
            direction="reverse",
        ),
    )  # fmt: skip


@op
class LSTMRecurrenceGrad(RecurrenceGrad):
    """Backward pass through time of an LSTM: gradients with respect to its gates and initial states.

    dy, dy_h, dy_c: the gradients with respect to y, y_h and y_c; absent: 0. gates, c_before: outputs of LSTMRecurrence.
    r, sequence_lens, p and attributes: those of LSTM. Outputs: d_gates [D, T, N, 4 * H]; dinitial_h and dinitial_c,
    shaped like initial_h and initial_c; d_peepholes [D, T, N, 3 * H], whose sum over T and N is the gradient of p.
    """

    former_names = ("LSTMWalkGrad",)
    layer = LSTM
    rest = 3
    input_forget: bool = False
    inputs = ("dy?", "dy_h?", "dy_c?", "gates", "c_before", "r", "sequence_lens?", "p?")
    outputs = ("d_gates", "dinitial_h", "dinitial_c", "d_peepholes")
    types = _GATES | dict.fromkeys(("dy", "dy_h", "dy_c"), FLOATS) | {"c_before": "gates", "p": "gates"}
    samples = lambda: (
        _case(
            (4, 2, 3, 5), (2, 3, 5), (2, 3, 5), (2, 4, 3, 20), (2, 4, 3, 5), (2, 20, 5), _LENGTHS, (2, 15),
            direction="bidirectional",
        ),
        _case((3, 4, 1, 5), None, None, (1, 4, 3, 20), (1, 4, 3, 5), (1, 20, 5), layout=1, input_forget=True),
        _case(
            None, None, (1, 3, 5), (1, 4, 3, 20), (1, 4, 3, 5), (1, 20, 5), None, (1, 15), direction="reverse",
            clip=0.5,
        ),
    )  # fmt: skip
