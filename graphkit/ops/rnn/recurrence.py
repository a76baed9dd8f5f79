"""Shared by RNN, GRU and LSTM: operands, types, the recurrence over time and directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from graphkit.errors import TypeMismatch, UsageError, did_you_mean
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import FLOATS, DType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import F, Op, constant
from graphkit.ops.axes import shape_text
from graphkit.ops.nn.activation import keep_where
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like
from graphkit.ops.rnn.gates import FUNCTIONS, Activation, ArrayMath, GraphMath, slope

# Element types of the operands that all three operators have.
PARAMETERS = {
    "x": FLOATS,
    "w": "x",
    "r": "x",
    "b": "x",
    "sequence_lens": frozenset({DType.INT32}),
    "initial_h": "x",
}


# Ranks of the operands of layers, and of the operators of their gradients.
_RANKS = {"x": 3, "w": 3, "r": 3, "b": 2, "sequence_lens": 1, "initial_h": 3, "initial_c": 3, "p": 2} | {
    "dy": 4, "dy_h": 3, "dy_c": 3, "gates": 4, "h_before": 4, "c_before": 4,
}  # fmt: skip


def operand_ranks(op: Op, count: int) -> list[int | None]:
    """Return the ranks of the first `count` operands of a recurrent layer's operators."""
    return [_RANKS.get(formal.name) for formal in op.formals[:count]]


class Weights(NamedTuple):
    """One direction's recurrent matrix [gates * H, H], its bias [gates * H], peepholes [3 * H], and functions.

    The bias and the peepholes may be None.
    """

    r: Any
    bias: Any
    peepholes: Any
    functions: Sequence[Activation]


class CellGradient(NamedTuple):
    """Gradient of one step: with respect to its gates [N, gates * H], and to the state before it.

    `other` [N, H]: the operand of a GRU's last matrix, or with linear_before_reset, the gradient of its product.
    `peepholes` [N, 3 * H]: the terms of the gradient of p. None if the layer does not have it.
    """

    gates: Any
    state: tuple[Any, ...]
    other: Any = None
    peepholes: Any = None


class Recurrence(Op):
    """A recurrent layer of H hidden units in D directions (1 or 2), over x: [T, N, I], or [N, T, I] with layout=1.

    w: [D, gates * H, I] and r: [D, gates * H, H] hold the matrices of all gates one after the other. b: [D, 2 * gates *
    H] holds the biases of w, then those of r. States are [D, N, H] ([N, D, H] with layout=1), by default 0. Sequence n
    has sequence_lens[n] steps, by default T. Beyond them y is 0 and the state stays, so that the reverse direction
    starts at the last step.
    """

    gates: ClassVar[int]
    functions: ClassVar[tuple[str, ...]]  # default activations of one direction
    states: ClassVar[int] = 1
    # Numbers of the states (before a step) that the gradient of the step reads.
    read_back: ClassVar[tuple[int, ...]] = ()

    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    activations: tuple[str, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    symbolic_inference = True

    @property
    def directions(self) -> int:
        if self.direction not in ("forward", "reverse", "bidirectional"):
            raise UsageError(f"direction must be forward, reverse or bidirectional, not {self.direction!r}")
        return 2 if self.direction == "bidirectional" else 1

    @property
    def reversed(self) -> tuple[bool, ...]:
        """Whether each direction starts at the end of the sequence."""
        return {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[self.direction]

    def functions_named(self) -> tuple[str, ...]:
        """Return the names of the activation functions of all directions."""
        return self.activations or self.functions * self.directions

    def functions_of(self, direction: int) -> tuple[Activation, ...]:
        """Return the activation functions of one direction. Raises UsageError for unknown names or a wrong number.

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

    def operand_ranks(self, *inputs: Any) -> Sequence[int | None]:
        return operand_ranks(self, len(inputs))

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        x, w, r = (inputs[i].known_shape for i in range(3))
        rows: Dim = x[0] * x[1]
        return rows * (dims.product(w) + dims.product(r))

    def infer(self, *operands: TensorType | None) -> Any:
        given = self.named_inputs(operands)
        x, w, r = given["x"], given["w"], given["r"]
        if self.layout not in (0, 1):
            raise UsageError(f"layout must be 0 or 1, not {self.layout}")
        count = self.directions
        self.functions_of(0)
        rows = f"{self.gates}*hidden_size"
        forms = (
            "[N, T, C]" if self.layout else "[T, N, C]",
            f"[{count}, {rows}, C]",
            f"[{count}, {rows}, hidden_size]",
        )
        for name, operand, form in zip("xwr", (x, w, r), forms, strict=True):
            if operand.shape is not None and len(operand.shape) != 3:
                raise TypeMismatch(f"{name} must have 3 dimensions, {form}; it has {len(operand.shape)}")
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
        """Return the number of hidden units, from the attribute or an operand's shape."""
        if self.hidden_size is not None:
            if self.hidden_size < 1:
                raise UsageError(f"hidden_size must be positive, not {self.hidden_size}")
            return self.hidden_size
        if r.shape is not None:
            return r.shape[2]
        if w.shape is not None and isinstance(w.shape[1], int):
            return w.shape[1] // self.gates
        return dims.fresh()

    # --- values -----------------------------------------------------------------------------------

    @property
    def saved_gates(self) -> int:
        """Number of parts of H columns in the gates that `cell` returns."""
        return self.gates

    def cell(
        self, math: Any, weights: Weights, x: Any, state: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return the state after one step, and the gates. x: projected input [N, gates * H]; state: before the step.

        `math` is ArrayMath or GraphMath, and the operands are arrays or values accordingly. Gates are the inputs of the
        activations, without peepholes and before clipping, as one or more arrays that together have [N, saved_gates *
        H].
        """
        raise NotImplementedError(f"{self.name}.cell")

    def cell_gradient(self, math: Any, weights: Weights, gates: Any, before: tuple[Any, ...], d: Any) -> CellGradient:
        """Return the gradient of one step.

        d: the gradient of the state after it; gates and `before`: as saved, with the states of `read_back`.

        `weights` have no bias.
        """
        raise NotImplementedError(f"{self.name}.cell_gradient")

    def products(self, math: Any, d_gates: Any, other: Any, h: Any) -> tuple[tuple[Any, Any], ...]:
        """Return, for each part of r, the gradient of its product, and the other factor of the product."""
        return ((d_gates, h),)

    def clipped(self, math: Any, x: Any) -> Any:
        """Clip the input of an activation, if the layer clips."""
        return x if self.clip is None else math.clip(x, self.clip)

    def slope(self, math: Any, function: Activation, x: Any, y: Any, d: Any) -> Any:
        """Return d times the derivative of y = function(clipped(x)) with respect to x."""
        inner = slope(math, function, self.clipped(math, x), y, d)
        return inner if self.clip is None else math.drop(x > self.clip, math.drop(x < -self.clip, inner))

    def reference(self, xp: Any, *operands: Any) -> Any:
        return self.recurrence(xp, *operands)[: 1 + self.states]

    def recurrence(self, xp: Any, *operands: Any) -> tuple[Any, ...]:
        """Return the results, the gates [D, T, N, saved_gates * H], and the states before each step [D, T, N, H]."""
        given: Any = self.named_inputs(operands)
        swapped: Any = (lambda a: None if a is None else xp.swapaxes(a, 0, 1)) if self.layout else (lambda a: a)
        x: Any = swapped(given["x"])
        w, r, b, lengths, p = (given.get(name) for name in ("w", "r", "b", "sequence_lens", "p"))
        initial = [swapped(given.get(name)) for name in ("initial_h", "initial_c")[: self.states]]
        steps, batch, hidden = x.shape[0], x.shape[1], r.shape[2]
        y = xp.zeros((steps, self.directions, batch, hidden), x.dtype)
        gates = xp.zeros((self.directions, steps, batch, self.saved_gates * hidden), x.dtype)
        before = [xp.zeros((self.directions, steps, batch, hidden), x.dtype) for _ in range(self.states)]
        math, finals = ArrayMath(xp), []
        for d, backwards in enumerate(self.reversed):
            of_w, of_r = (None, None) if b is None else b[d].reshape(2, -1)
            weights = Weights(r[d], of_r, None if p is None else p[d], self.functions_of(d))
            projected = xp.matmul(x, w[d].T)
            if of_w is not None:
                projected = projected + of_w
            state = tuple(xp.zeros((batch, hidden), x.dtype) if s is None else s[d] for s in initial)
            for t in range(steps)[:: -1 if backwards else 1]:
                for saved, s in zip(before, state, strict=True):
                    saved[d, t] = s
                after, parts = self.cell(math, weights, projected[t], state)
                gates[d, t] = math.join(*parts)
                going = xp.ones((batch, 1), bool) if lengths is None else (t < lengths).reshape(-1, 1)
                y[t, d] = xp.where(going, after[0], xp.zeros_like(after[0]))
                state = tuple(xp.where(going, new, old) for new, old in zip(after, state, strict=True))
            finals.append(state)
        ends = [xp.stack(parts) for parts in zip(*finals, strict=True)]
        if self.layout:
            y = xp.transpose(y, (2, 0, 1, 3))
            ends = [xp.swapaxes(s, 0, 1) for s in ends]
        return tuple(xp.ascontiguousarray(a) for a in (y, *ends, gates, *before))

    def expand(self, *operands: Any) -> Any:
        """Build the layer as one Scan per direction, over the product of the input and w."""
        return self.expand_recurrence(operands, saves=False)

    def expand_recurrence(self, operands: Sequence[Any], saves: bool) -> tuple[Any, ...]:
        """Build the layer as Scans. saves: return the results of `recurrence`, else only those of the layer."""
        results = []
        given: Any = self.named_inputs(operands)
        going = going_of(given["sequence_lens"], size(given["x"], 1 if self.layout else 0))
        for part in directions_of(self, operands):

            def body(before: Any, slices: Any, captured: Any, part: Direction = part) -> tuple[Any, Any]:
                projected, goes_on = slices
                after, gates = self.cell(GraphMath, part.weights(captured), projected, before)
                saved = [joined(gates), *(F.identity(s) for s in before)] if saves else []
                if goes_on is None:
                    return after, [after[0], *saved]
                kept = tuple(F.where(goes_on, new, old) for new, old in zip(after, before, strict=True))
                return kept, [keep_where(goes_on, after[0]), *saved]

            results.append(scan(part.initial, (part.projected, going), part.captured, body, part.backwards))
        states = self.states
        y = F.concat(*(F.unsqueeze(r[states], np.array([1])) for r in results), axis=1)
        ends, saved = stacked([r[:states] for r in results]), stacked([r[states + 1 :] for r in results])
        if self.layout:
            y = F.transpose(y, perm=(2, 0, 1, 3))
            ends = [F.transpose(s, perm=(1, 0, 2)) for s in ends]
        return y, *ends, *saved


# --- as graph -------------------------------------------------------------------------------------


class Direction(NamedTuple):
    """Operands of one direction's Scan: the product of input and w, initial states, (r, bias of r, peepholes)."""

    projected: Value
    initial: tuple[Value, ...]
    captured: tuple[Value | None, ...]
    functions: tuple[Activation, ...]
    backwards: bool

    def weights(self, captured: Sequence[Any]) -> Weights:
        """The weights for `cell`, inside a body whose captures are `captured`."""
        r, bias, peepholes = captured
        return Weights(r, bias, peepholes, self.functions)


def swapped(op: Recurrence, value: Any) -> Any:
    """Return x or a state in the axis order of layout=0."""
    return F.transpose(value, perm=(1, 0, 2)) if op.layout and value is not None else value


def of_direction(value: Any, direction: int) -> Any:
    """Return one direction of the first axis; None stays None."""
    if value is None:
        return None
    if value.tensor.shape is not None and value.tensor.shape[0] == 1:
        return F.squeeze(value, np.array([0]))
    return F.gather(value, constant(np.int64(direction)), axis=0)


def directions_of(op: Recurrence, operands: Sequence[Any]) -> Iterator[Direction]:
    """Return the directions of a layer, as graph values."""
    given: Any = op.named_inputs(operands)
    x, r = swapped(op, given["x"]), given["r"]
    zeros = F.expand(scalar_like(0.0, x), F.concat(size(x, 1), size(r, 2), axis=0))
    for d, backwards in enumerate(op.reversed):
        of_w, of_r = (None, None) if given["b"] is None else F.split(of_direction(given["b"], d), num_outputs=2)
        projected = F.mat_mul(x, F.transpose(of_direction(given["w"], d), perm=(1, 0)))
        if of_w is not None:
            projected = F.add(projected, of_w)
        states = (swapped(op, given.get(name)) for name in ("initial_h", "initial_c")[: op.states])
        initial = tuple(zeros if s is None else of_direction(s, d) for s in states)
        captured = (of_direction(r, d), of_r, of_direction(given.get("p"), d))
        yield Direction(projected, initial, captured, op.functions_of(d), backwards)


def scan(
    state: Sequence[Value],
    scanned: Sequence[Value | None],
    captured: Sequence[Value | None],
    body: Callable[[Any, Any, Any], tuple[Any, Any]],
    backwards: bool,
) -> tuple[Value, ...]:
    """Build a Scan over the first axes. Returns the final states, then the results of `body` for each step, stacked.

    body(state, slices, captured) returns the next state and a step's results. Operands that are None are None in the
    body, too.
    """

    def inside(value: Value | None, first: int) -> Value | None:
        if value is None:
            return None
        return Value(TensorType(value.dtype, None if value.shape is None else value.shape[first:]))

    before, slices, inner = ([inside(v, i == 1) for v in vs] for i, vs in enumerate((state, scanned, captured)))
    after, results = body(before, slices, inner)
    given = [[v for v in values if v is not None] for values in (before, slices, inner)]
    flag = int(backwards)
    outputs: tuple[Value, ...] = F.scan(
        *(v for v in (*state, *scanned, *captured) if v is not None),
        body=Graph([v for values in given for v in values], [*after, *results]),
        num_scan_inputs=len(given[1]),
        captures=len(given[2]),
        scan_input_directions=(flag,) * len(given[1]),
        scan_output_directions=(flag,) * len(results),
    )
    return outputs


def joined(parts: Sequence[Value]) -> Value:
    """Concatenate values along the last axis."""
    return parts[0] if len(parts) == 1 else F.concat(*parts, axis=-1)


def stacked(of_directions: Sequence[Sequence[Value]]) -> list[Value]:
    """Stack corresponding values of all directions along a new first axis."""
    first = np.array([0])
    return [F.concat(*(F.unsqueeze(v, first) for v in each), axis=0) for each in zip(*of_directions, strict=True)]


def size(x: Value, axis: int) -> Value:
    """Return the size of one axis, as a vector of one element."""
    result: Value = F.shape(x, start=axis, end=axis + 1)
    return result


def going_of(lengths: Value | None, steps: Value) -> Value | None:
    """Return bool [steps, N, 1]: whether step t is within sequence n; None without lengths. steps: one element."""
    if lengths is None:
        return None
    times = F.range(constant(np.int64(0)), F.squeeze(steps, np.array([0])), constant(np.int64(1)))
    column = F.unsqueeze(F.cast(times, to=lengths.dtype), np.array([1, 2]))
    going: Value = F.less(column, F.unsqueeze(lengths, np.array([1])))
    return going


def gradients(node: Node, found: Sequence[Value]) -> tuple[Value | None, ...]:
    """Return the results of a gradient operator in the order of the layer's operands."""
    names = ("x", "w", "r", "b", "sequence_lens", "initial_h", "initial_c", "p")
    kept = iter(found)
    by_position = [None if name == "sequence_lens" else next(kept, None) for name in names]
    return tuple(None if v is None else g for v, g in zip(node.inputs, by_position, strict=False))
