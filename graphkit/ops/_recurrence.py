"""What RNN, GRU and LSTM share: operands, types, the walk over time and directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from graphkit.errors import TypeMismatch, UsageError, did_you_mean
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.ops._base import F, Op, constant
from graphkit.ops._checks import fits
from graphkit.ops._gates import FUNCTIONS, Activation, ArrayMath, GraphMath
from graphkit.ops._pointwise import scalar_like
from graphkit.ops._shapes import shape_text

# Element types of the operands that all three operators have.
PARAMETERS = {
    "x": FLOATS,
    "w": "x",
    "r": "x",
    "b": "x",
    "sequence_lens": frozenset({DType.INT32}),
    "initial_h": "x",
}


class Weights(NamedTuple):
    """One direction's recurrent matrix [gates * H, H], its bias [gates * H], peepholes [3 * H], and functions.

    The bias and the peepholes may be None.
    """

    r: Any
    bias: Any
    peepholes: Any
    functions: Sequence[Activation]


class Recurrence(Op):
    """A recurrent layer over x: [T, N, I], or [N, T, I] with layout=1, of H hidden units in D directions (1 or 2).

    w: [D, gates * H, I] and r: [D, gates * H, H] hold one matrix after another, b: [D, 2 * gates * H] the biases of w,
    then those of r. States are [D, N, H] ([N, D, H] with layout=1), by default 0. Sequence n has sequence_lens[n]
    steps, by default T: beyond them y is 0 and the state stays, so that a reverse walk starts at the last of them.
    """

    gates: ClassVar[int]
    functions: ClassVar[tuple[str, ...]]  # of one direction, when `activations` says nothing
    states: ClassVar[int] = 1

    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    @property
    def directions(self) -> int:
        if self.direction not in ("forward", "reverse", "bidirectional"):
            raise UsageError(f"direction is forward, reverse or bidirectional, not {self.direction!r}")
        return 2 if self.direction == "bidirectional" else 1

    @property
    def reversed(self) -> tuple[bool, ...]:
        """For each direction, whether it goes from the end."""
        return {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[self.direction]

    def functions_named(self) -> tuple[str, ...]:
        """The names of the functions of all directions."""
        return self.activations or self.functions * self.directions

    def functions_of(self, direction: int) -> tuple[Activation, ...]:
        """The functions of one direction. Raises UsageError for a name or a number of them that the standard lacks.

        The values of activation_alpha (and activation_beta) belong, in order, to the functions that take one.
        """
        count = len(self.functions)
        names = [name.lower() for name in self.functions_named()]
        if len(names) != count * self.directions:
            raise UsageError(f"{self.name} takes {count} activations for each direction, not {list(names)}")
        given = list(self.activation_alpha or ()), list(self.activation_beta or ())
        chosen = []
        for name in names:
            if name not in FUNCTIONS:
                raise UsageError(f"activation {name!r} is not known{did_you_mean(name, FUNCTIONS)}")
            values = []
            for left, default in zip(given, FUNCTIONS[name].defaults, strict=False):
                value = left.pop(0) if left else default
                if value is None:
                    raise UsageError(f"activation {name!r} needs activation_alpha and activation_beta")
                values.append(value)
            chosen.append(Activation(name, *values))
        return tuple(chosen[direction * count : (direction + 1) * count])

    # --- types ------------------------------------------------------------------------------------

    def infer(self, *operands: TensorType | None) -> Any:
        given = self.named_inputs(operands)
        x, w, r = given["x"], given["w"], given["r"]
        if self.layout not in (0, 1):
            raise UsageError(f"layout is 0 or 1, not {self.layout}")
        count = self.directions
        self.functions_of(0)
        for name, operand in (("x", x), ("w", w), ("r", r)):
            if operand.shape is not None and len(operand.shape) != 3:
                raise TypeMismatch(f"{name} has 3 dimensions, not {operand}")
        time, batch, features = (dims.fresh(), dims.fresh(), dims.fresh()) if x.shape is None else x.shape
        if self.layout:
            time, batch = batch, time
        hidden = self._hidden(w, r)
        columns = hidden * self.gates
        state = (batch, count, hidden) if self.layout else (count, batch, hidden)
        expected: dict[str, tuple[Dim, ...]] = {
            "w": (count, columns, features),
            "r": (count, columns, hidden),
            "b": (count, columns * 2),
            "sequence_lens": (batch,),
            "initial_h": state,
            "initial_c": state,
            "p": (count, hidden * 3),
        }
        for name, shape in expected.items():
            operand = given.get(name)
            if operand is not None and not fits(operand.shape, shape):
                raise TypeMismatch(f"{name} is {operand}; expected {shape_text(shape)}")
        y = (batch, time, count, hidden) if self.layout else (time, count, batch, hidden)
        return TensorType(x.dtype, y), *[TensorType(x.dtype, state)] * self.states

    def _hidden(self, w: TensorType, r: TensorType) -> Dim:
        """The number of hidden units, from the attribute or an operand's shape."""
        if self.hidden_size is not None:
            if self.hidden_size < 1:
                raise UsageError(f"hidden_size is positive, not {self.hidden_size}")
            return self.hidden_size
        if r.shape is not None:
            return r.shape[2]
        if w.shape is not None and isinstance(w.shape[1], int):
            return w.shape[1] // self.gates
        return dims.fresh()

    # --- values -----------------------------------------------------------------------------------

    def cell(self, math: Any, weights: Weights, x: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        """The state after one step, from the projected input [N, gates * H] and the state before.

        `math` is ArrayMath or GraphMath, and the operands are arrays or values accordingly.
        """
        raise NotImplementedError(f"{self.name}.cell")

    def clipped(self, math: Any, x: Any) -> Any:
        """The input of an activation."""
        return x if self.clip is None else math.clip(x, self.clip)

    def reference(self, xp: Any, *operands: Any) -> Any:
        given: Any = self.named_inputs(operands)
        swapped: Any = (lambda a: None if a is None else xp.swapaxes(a, 0, 1)) if self.layout else (lambda a: a)
        x: Any = swapped(given["x"])
        w, r, b, lengths, p = (given.get(name) for name in ("w", "r", "b", "sequence_lens", "p"))
        initial = [swapped(given.get(name)) for name in ("initial_h", "initial_c")[: self.states]]
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
        y = xp.zeros((steps, self.directions, batch, hidden), x.dtype)
        finals = []
        for d, backwards in enumerate(self.reversed):
            of_w, of_r = (None, None) if b is None else b[d].reshape(2, -1)
            weights = Weights(r[d], of_r, None if p is None else p[d], self.functions_of(d))
            projected = xp.matmul(x, w[d].T)
            if of_w is not None:
                projected = projected + of_w
            state = tuple(xp.zeros((batch, hidden), x.dtype) if s is None else s[d] for s in initial)
            for t in range(steps)[:: -1 if backwards else 1]:
                after = self.cell(ArrayMath(xp), weights, projected[t], state)
                going = xp.ones((batch, 1), bool) if lengths is None else (t < lengths).reshape(-1, 1)
                y[t, d] = xp.where(going, after[0], xp.zeros_like(after[0]))
                state = tuple(xp.where(going, new, old) for new, old in zip(after, state, strict=True))
            finals.append(state)
        ends = [xp.stack(parts) for parts in zip(*finals, strict=True)]
        if self.layout:
            y = xp.transpose(y, (2, 0, 1, 3))
            ends = [xp.swapaxes(s, 0, 1) for s in ends]
        return tuple(xp.ascontiguousarray(a) for a in (y, *ends))

    def expand(self, *operands: Any) -> Any:
        """The layer as one Scan for each direction, over the input's product with w."""
        given: Any = self.named_inputs(operands)
        swapped: Any = (lambda a: None if a is None else F.transpose(a, perm=(1, 0, 2))) if self.layout else lambda a: a
        x, r, lengths = swapped(given["x"]), given["r"], given["sequence_lens"]
        initial = [swapped(given.get(name)) for name in ("initial_h", "initial_c")[: self.states]]
        of_direction: Any = lambda a, d: None if a is None else F.gather(a, constant(np.int64(d)), axis=0)  # noqa: E731
        zeros = F.expand(scalar_like(0.0, x), F.concat(_size(x, 1), _size(r, 2), axis=0))
        going = None if lengths is None else _going(x, lengths)
        results = []
        for d, backwards in enumerate(self.reversed):
            of_w, of_r = (None, None) if given["b"] is None else F.split(of_direction(given["b"], d), num_outputs=2)
            projected = F.mat_mul(x, F.transpose(of_direction(given["w"], d), perm=(1, 0)))
            if of_w is not None:
                projected = F.add(projected, of_w)
            captured = [of_direction(r, d), of_r, of_direction(given.get("p"), d)]
            state = [zeros if s is None else of_direction(s, d) for s in initial]
            results.append(self._scan(projected, going, state, captured, self.functions_of(d), backwards))
        y = F.concat(*(F.unsqueeze(r[-1], np.array([1])) for r in results), axis=1)
        ends = [F.concat(*(F.unsqueeze(r[i], np.array([0])) for r in results), axis=0) for i in range(self.states)]
        if self.layout:
            y = F.transpose(y, perm=(2, 0, 1, 3))
            ends = [F.transpose(s, perm=(1, 0, 2)) for s in ends]
        return y, *ends

    def _scan(
        self,
        projected: Any,
        going: Any,
        state: Sequence[Any],
        captured: Sequence[Any],
        functions: Sequence[Activation],
        backwards: bool,
    ) -> Any:
        """The final state, and h of every step, of one direction."""
        scanned = [v for v in (projected, going) if v is not None]
        present = [v for v in captured if v is not None]
        slices = [Value(TensorType(v.dtype, None if v.shape is None else v.shape[1:])) for v in scanned]
        before = [Value(TensorType(v.dtype, v.shape)) for v in state]
        inner = [Value(TensorType(v.dtype, v.shape)) for v in present]
        remaining = iter(inner)
        r, bias, peepholes = (None if v is None else next(remaining) for v in captured)
        after = self.cell(GraphMath, Weights(r, bias, peepholes, functions), slices[0], tuple(before))
        y = after[0]
        if going is not None:
            y = F.where(slices[1], y, scalar_like(0.0, y))
            after = tuple(F.where(slices[1], new, old) for new, old in zip(after, before, strict=True))
        return F.scan(
            *state, *scanned, *present,
            body=Graph([*before, *slices, *inner], [*after, y], name=self.name),
            num_scan_inputs=len(scanned), captures=len(present),
            scan_input_directions=(int(backwards),) * len(scanned), scan_output_directions=(int(backwards),),
        )  # fmt: skip


def _size(x: Value, axis: int) -> Value:
    """The size of one axis, as a vector of one element."""
    size: Value = F.shape(x, start=axis, end=axis + 1)
    return size


def _going(x: Value, lengths: Value) -> Value:
    """For each step, sequence, and one column: whether the sequence goes on."""
    steps = F.squeeze(_size(x, 0), np.array([0]))
    times = F.range(constant(np.int64(0)), steps, constant(np.int64(1)))
    column = F.unsqueeze(F.cast(times, to=lengths.dtype), np.array([1, 2]))
    going: Value = F.less(column, F.unsqueeze(lengths, np.array([1])))
    return going
