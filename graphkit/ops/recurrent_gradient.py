"""Gradients of recurrent layers: the layer is walked once more for its states, then back through time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import TensorType
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops._checks import fits
from graphkit.ops._gates import ArrayMath, GraphMath
from graphkit.ops._pointwise import scalar_like
from graphkit.ops._recurrence import (
    PARAMETERS,
    Recurrence,
    Weights,
    directions_of,
    going_of,
    of_direction,
    scan,
    size,
    swapped,
)
from graphkit.ops.activation import keep_where
from graphkit.ops.recurrent import GRU, LSTM, RNN

_LENGTHS = np.array([3, 1, 4], np.int32)


class _RecurrenceGrad(Op):
    """dy, dy_h, ... are the gradients by the layer's results, None for 0; then the layer's operands and attributes.

    The results are the gradients by x, w, r, b and the initial states (and peepholes), also by those that are absent.
    """

    layer: ClassVar[type[Recurrence]]
    # Two Scans of native steps are an order of magnitude faster than the walk of `reference`.
    composite: ClassVar[bool] = True
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

    def reference(self, xp: Any, *operands: Any) -> Any:
        layer, math = self.forward, ArrayMath(xp)
        states = layer.states
        turned: Any = (lambda a: None if a is None else xp.swapaxes(a, 0, 1)) if self.layout else (lambda a: a)
        dy, *d_ends = operands[: 1 + states]
        dy = dy if dy is None or not self.layout else xp.transpose(dy, (1, 2, 0, 3))
        given: Any = layer.named_inputs(operands[1 + states :])
        x, w, r, b, lengths = turned(given["x"]), given["w"], given["r"], given["b"], given["sequence_lens"]
        initial = [turned(given.get(name)) for name in ("initial_h", "initial_c")[:states]]
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
        zeros = xp.zeros((batch, hidden), x.dtype)
        dx, dw, dr = xp.zeros_like(x), xp.zeros_like(w), xp.zeros_like(r)
        db, dp = (xp.zeros((layer.directions, hidden * k), x.dtype) for k in (2 * layer.gates, 3))
        d_initial = []
        for d, backwards in enumerate(layer.reversed):
            of_w, of_r = (None, None) if b is None else b[d].reshape(2, -1)
            peepholes = None if given.get("p") is None else given["p"][d]
            weights = Weights(r[d], of_r, peepholes, layer.functions_of(d))
            projected = xp.matmul(x, w[d].T)
            projected = projected if of_w is None else projected + of_w
            order = range(steps)[:: -1 if backwards else 1]
            going = [xp.full((batch, 1), True) if lengths is None else (t < lengths)[:, None] for t in range(steps)]
            state, before = tuple(zeros if s is None else s[d] for s in initial), {}
            for t in order:
                before[t] = state
                after = layer.cell(math, weights, projected[t], state)
                state = tuple(xp.where(going[t], new, old) for new, old in zip(after, state, strict=True))
            d_state = tuple(zeros if g is None else turned(g)[d] for g in d_ends)
            d_projected = xp.zeros_like(projected)
            for t in reversed(order):
                d_after = d_state if dy is None else (d_state[0] + dy[t, d], *d_state[1:])
                step = layer.cell_gradient(
                    math, weights, projected[t], before[t], tuple(math.keep(going[t], g) for g in d_after)
                )
                d_state = tuple(xp.where(going[t], g, old) for g, old in zip(step.state, d_state, strict=True))
                d_projected[t] = step.x
                dr[d] += xp.concatenate([xp.matmul(g.T, left) for g, left in step.products])
                db[d, layer.gates * hidden :] += xp.concatenate([xp.sum(g, axis=0) for g, _ in step.products])
                if step.peepholes is not None:
                    dp[d] += xp.sum(step.peepholes, axis=0)
            rows = d_projected.reshape(steps * batch, -1)
            dx += xp.matmul(d_projected, w[d])
            dw[d] = xp.matmul(rows.T, x.reshape(steps * batch, -1))
            db[d, : layer.gates * hidden] = xp.sum(rows, axis=0)
            d_initial.append(d_state)
        d_states = [turned(xp.stack(parts)) for parts in zip(*d_initial, strict=True)]
        results = (turned(dx), dw, dr, db, *d_states, *((dp,) if states == 2 else ()))
        return tuple(xp.ascontiguousarray(a) for a in results)

    def expand(self, *operands: Any) -> Any:
        """Two Scans for each direction: forward for the states, backward for the gradients."""
        layer = self.forward
        states = layer.states
        dy, *d_ends = operands[: 1 + states]
        dy = F.transpose(dy, perm=(1, 2, 0, 3)) if dy is not None and self.layout else dy
        given = operands[1 + states :]
        named: Any = layer.named_inputs(given)
        x, w, going = swapped(layer, named["x"]), named["w"], going_of(layer, given)
        parts: list[list[Any]] = []
        for d, part in enumerate(directions_of(layer, given)):

            def forward(before: Any, slices: Any, captured: Any, part: Any = part) -> tuple[Any, Any]:
                projected, goes_on = slices
                after = layer.cell(GraphMath, part.weights(captured), projected, before)
                if goes_on is not None:
                    after = tuple(F.where(goes_on, new, old) for new, old in zip(after, before, strict=True))
                return after, [F.identity(s) for s in before]

            walked = scan(part.initial, (part.projected, going), part.captured, forward, part.backwards)
            before = walked[states:]

            def backward(d_state: Any, slices: Any, captured: Any, part: Any = part) -> tuple[Any, Any]:
                projected, goes_on, d_result, *before = slices
                d_after = d_state if d_result is None else [F.add(d_state[0], d_result), *d_state[1:]]
                if goes_on is not None:
                    d_after = [keep_where(goes_on, g) for g in d_after]
                weights = part.weights(captured)
                step = layer.cell_gradient(GraphMath, weights, projected, tuple(before), tuple(d_after))
                d_before = step.state
                if goes_on is not None:
                    d_before = tuple(F.where(goes_on, g, old) for g, old in zip(d_before, d_state, strict=True))
                pairs = [v for pair in step.products for v in pair]
                return d_before, [step.x, *pairs, *([] if step.peepholes is None else [step.peepholes])]

            d_first = [
                GraphMath.zeros(s) if g is None else of_direction(swapped(layer, g), d)
                for g, s in zip(d_ends, part.initial, strict=True)
            ]
            d_result = None if dy is None else F.gather(dy, np.int64(d), axis=1)
            slices = (part.projected, going, d_result, *before)
            results = scan(d_first, slices, part.captured, backward, not part.backwards)
            parts.append(self._direction(layer, x, of_direction(w, d), results, named.get("p") is not None))
        dx = parts[0][0] if len(parts) == 1 else F.sum(*(p[0] for p in parts))
        first = np.array([0])
        stacked = [F.concat(*(F.unsqueeze(g, first) for g in each), axis=0) for each in zip(*parts, strict=True)]
        dw, dr, db, *others = stacked[1:]
        d_states = [swapped(layer, g) for g in others[:states]]
        return swapped(layer, dx), dw, dr, db, *d_states, *others[states:]

    def _direction(self, layer: Recurrence, x: Any, w: Any, results: Sequence[Any], peepholes: bool) -> list[Any]:
        """The gradients by x, w, r, b, the initial states (and p) of one direction, from those of its steps."""
        states = layer.states
        d_projected, *others = results[states:]
        count = (len(others) - peepholes) // 2
        pairs = [(_rows(others[2 * i]), _rows(others[2 * i + 1])) for i in range(count)]
        axis = np.array([0])
        rows = _rows(d_projected)
        totals = [F.reduce_sum(g, axis, keepdims=False) for g in (rows, *(g for g, _ in pairs))]
        dr = [F.gemm(g, left, transA=True) for g, left in pairs]
        found = [
            F.mat_mul(d_projected, w),
            F.gemm(rows, _rows(x), transA=True),
            dr[0] if count == 1 else F.concat(*dr, axis=0),
            F.concat(*totals, axis=0),
            *results[:states],
        ]
        if peepholes:
            found.append(F.reduce_sum(_rows(others[-1]), axis, keepdims=False))
        elif states == 2:
            found.append(F.expand(scalar_like(0.0, x), F.mul(size(results[0], 1), np.array([3]))))
        return found


def _rows(x: Any) -> Any:
    """[T, N, k] as [T * N, k]."""
    return F.flatten(x, axis=2)


def _case(*operands: Any, **attributes: Any) -> Sample:
    """A sample with five hidden units."""
    return Sample(*operands, hidden_size=5, **attributes)


@op
class RNNGrad(_RecurrenceGrad):
    """Gradient of RNN."""

    layer = RNN
    activations: tuple[str, ...] = ("Tanh", "Tanh")
    inputs = ("dy?", "dy_h?", *RNN.inputs)
    outputs = ("dx", "dw", "dr", "db", "dinitial_h")
    types = PARAMETERS | {"dy": PARAMETERS["x"], "dy_h": PARAMETERS["x"]}
    samples = (
        _case((4, 1, 3, 5), (1, 3, 5), (4, 3, 2), (1, 5, 2), (1, 5, 5), (1, 10), _LENGTHS, (1, 3, 5)),
        _case((3, 4, 2, 5), None, (3, 4, 2), (2, 5, 2), (2, 5, 5), direction="bidirectional", layout=1),
        _case(None, (1, 3, 5), (4, 3, 2), (1, 5, 2), (1, 5, 5), direction="reverse", clip=0.5, activations=("Relu",)),
    )


@op
class GRUGrad(_RecurrenceGrad):
    """Gradient of GRU."""

    layer = GRU
    linear_before_reset: bool = False
    inputs = ("dy?", "dy_h?", *GRU.inputs)
    outputs = ("dx", "dw", "dr", "db", "dinitial_h")
    types = PARAMETERS | {"dy": PARAMETERS["x"], "dy_h": PARAMETERS["x"]}
    samples = (
        _case((4, 1, 3, 5), (1, 3, 5), (4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), _LENGTHS, (1, 3, 5)),
        _case((3, 4, 2, 5), None, (3, 4, 2), (2, 15, 2), (2, 15, 5), direction="bidirectional", layout=1),
        _case(None, (1, 3, 5), (4, 3, 2), (1, 15, 2), (1, 15, 5), (1, 30), linear_before_reset=True, clip=0.5),
    )


@op
class LSTMGrad(_RecurrenceGrad):
    """Gradient of LSTM."""

    layer = LSTM
    input_forget: bool = False
    inputs = ("dy?", "dy_h?", "dy_c?", *LSTM.inputs)
    outputs = ("dx", "dw", "dr", "db", "dinitial_h", "dinitial_c", "dp")
    types = PARAMETERS | dict.fromkeys(("dy", "dy_h", "dy_c"), PARAMETERS["x"]) | {"initial_c": "x", "p": "x"}
    samples = (
        _case(
            (4, 2, 3, 5), (2, 3, 5), (2, 3, 5), (4, 3, 2), (2, 20, 2), (2, 20, 5), (2, 40), _LENGTHS, (2, 3, 5),
            (2, 3, 5), (2, 15), direction="bidirectional",
        ),
        _case((3, 4, 1, 5), None, None, (3, 4, 2), (1, 20, 2), (1, 20, 5), layout=1, input_forget=True),
        _case(None, None, (1, 3, 5), (4, 3, 2), (1, 20, 2), (1, 20, 5), (1, 40), direction="reverse", clip=0.5),
    )  # fmt: skip
