"""Gradients against numeric differentiation, in float64.

With a random weight w per output, f(x) = sum(w * output(x)). Its gradient, as `graphkit.autodiff` builds it, is
compared with the five-point central difference (Abramowitz and Stegun, table 25.2)

    f'(x) ~ (8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / (12 h)
per element. For large inputs, it is compared along random directions, of one input or of all inputs together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from graphkit.autodiff.reverse_mode import gradient
from graphkit.checks.inputs import make_feeds
from graphkit.checks.precision import in_float64, narrow_node, widened_value
from graphkit.checks.samples import taken_apart
from graphkit.errors import CheckFailed, UnsupportedError, UsageError, did_you_mean
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.model import Model
from graphkit.named_tuples import NamedTuple
from graphkit.ops.evaluate import evaluate
from graphkit.ops.sequence.elements import holds_floats
from graphkit.signatures import typed
from graphkit.text import listed, quantity, short_repr

STEP = 1e-4
# With more elements in all, derivatives along random directions are checked.
ELEMENTS = 64
DIRECTIONS = 4


@dataclass(frozen=True)
class GradientEntry:
    """The comparison for one input, or for a group of inputs that are changed together.

    Attributes:
        name: Name of the input, or "3 together" for a group of 3.
        passed: Whether all derivatives agree within the tolerances.
        max_abs: Largest absolute error of a derivative.
        max_rel: Largest relative error of a derivative.
        worst: Place of the worst error: the index of the element, or (number of the direction,).
        numeric: Numeric derivative at that place.
        symbolic: Derivative by graphkit's gradient at that place.
        checked: Number of derivatives that were compared.
    """

    name: str
    passed: bool
    max_abs: float
    max_rel: float
    worst: tuple[int, ...]
    numeric: float
    symbolic: float
    checked: int

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if the input has no elements."""
        return "FAILED" if not self.passed else "PASSED" if self.checked else "NOT TESTED"

    def __repr__(self) -> str:
        return short_repr(self, lambda: [str(self)])

    def __str__(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        line = f"{self.name}: {verdict}, {self.checked} derivatives, max error {self.max_abs:.3g}"
        if not self.passed:
            line += f"; at {list(self.worst)} numeric {self.numeric:.9g}, symbolic {self.symbolic:.9g}"
        return line


@dataclass(frozen=True)
class GradientReport:
    """Result of `gk.check_gradient`: one entry per differentiated input or group of inputs.

    `passed` is true if something was compared and every entry passed. `guesses` are the sizes that were chosen for
    unknown dimensions.
    """

    entries: tuple[GradientEntry, ...]
    rtol: float
    atol: float
    guesses: Mapping[str, int] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict == "PASSED"

    @property
    def verdict(self) -> str:
        """The verdict: "PASSED", "FAILED", or "NOT TESTED" if no input has elements."""
        if not all(entry.passed for entry in self.entries):
            return "FAILED"
        return "PASSED" if any(entry.checked for entry in self.entries) else "NOT TESTED"

    @property
    def formula(self) -> str:
        return f"|numeric - symbolic| <= {self.atol:g} + {self.rtol:g} * |numeric|"

    def raise_if_failed(self) -> None:
        """Raise CheckFailed, which names failing entries, unless the report passed; also if nothing was compared."""
        if self.verdict == "NOT TESTED":
            raise CheckFailed(
                "no gradient was compared: the inputs have no elements; give shapes or inputs with elements"
            )
        if not self.passed:
            raise CheckFailed("gradients differ: " + "; ".join(str(e) for e in self.entries if not e.passed))

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield self.verdict
        yield quantity(len(self.entries), "input")
        failed = [item.name for item in self.entries if not item.passed]
        if failed:
            yield f"failed: {listed(failed, len(failed))}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.entries), f"{self.verdict}  {self.formula}"])


@typed("gk.check_gradient")
def check_gradient(
    model: Model,
    inputs: Mapping[str, Any] | None = None,
    *,
    of: str | Sequence[str] | None = None,
    wrt: Sequence[str] | None = None,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    directions: int | None = None,
    together: bool = False,
    step: float = STEP,
    seed: int = 0,
) -> GradientReport:
    """Compare the gradients of a Model with numeric differentiation in float64.

    The differentiated function is the sum of r * y over all outputs y, with random weights r. The numeric derivative
    has an error of order step^4. Several step sizes are tried, and the best agreement counts, because a larger step may
    cross a kink such as that of ReLU.

    Args:
        model: The model. A float64 copy of it is checked; the model itself does not change.
        inputs: Arrays by name. Missing ones are drawn at random.
        of: Names of outputs (default: all float outputs).
        wrt: Names of inputs and parameters (default: all that are floats).
        rtol: Relative tolerance of a derivative.
        atol: Absolute tolerance of a derivative.
        directions: 0 checks the derivative with respect to every element. n > 0 checks the derivatives along n random
            directions. Default: 0 for up to 64 elements in all, else 4.
        together: Check all inputs and parameters of `wrt` together: each random direction changes all of them at once.
            If the check fails, the group is halved until the failing ones are found. Use it for networks with many
            parameters, where separate checks take too long.
        step: Largest step of the numeric differentiation.
        seed: Seed of generated inputs, weights and directions.

    Returns:
        A report with one entry per input or group.

    Raises:
        MissingGradient: An operator has no gradient rule.
        UnsupportedError: An operator between `wrt` and `of`, such as QuantizeLinear, cannot compute in float64.
        UsageError: A name is unknown.
    """
    graph = in_float64(model.graph, narrow=True)
    feeds = make_feeds(model, given=inputs or {}, seed=seed)
    named = {k: widened_value(v) for k, v in {**model.params, **feeds.arrays}.items()}
    arrays = [named[graph.name_of(v)] if v.role != "rng" else _fixed_rng(seed) for v in graph.inputs]
    outputs = _chosen(dict(zip(graph.output_names, graph.outputs, strict=True)), [of] if isinstance(of, str) else of)
    targets = _chosen({graph.name_of(v): v for v in graph.inputs if isinstance(v.type, TensorType)}, wrt)
    if (node := narrow_node(targets.values(), outputs.values())) is not None:
        raise UnsupportedError(
            f"{node.describe()}: {node.op.name} has no float64, so the gradients through this node cannot be checked. "
            "Choose outputs that do not depend on it (of=), or inputs and parameters that it does not read (wrt=)"
        )
    report = check_graph(
        graph.inputs, _tensors(graph, list(outputs.values()), arrays), targets, arrays,
        rtol=rtol, atol=atol, directions=directions, together=together, step=step, seed=seed,
    )  # fmt: skip
    return GradientReport(report.entries, rtol, atol, feeds.guesses)


def check_graph(
    inputs: Sequence[Value],
    outputs: Sequence[Value],
    wrt: Mapping[str, Value],
    arrays: Sequence[np.ndarray],
    *,
    rtol: float = 1e-6,
    atol: float = 1e-7,
    directions: int | None = None,
    together: bool = False,
    step: float = STEP,
    seed: int = 0,
) -> GradientReport:
    """Check the gradients of a float64 graph. `arrays` are the values of `inputs`; `wrt`: name -> one of `inputs`."""
    rng = np.random.default_rng(seed)
    forward = Graph(inputs, outputs)
    results = evaluate(forward, arrays)
    weights = [rng.standard_normal(np.shape(y)) for y in results]
    seeds = [Value(TensorType(y.dtype, y.shape), f"seed_{i}") for i, y in enumerate(outputs)]
    gradients = gradient(outputs, list(wrt.values()), seeds, allow_unused=True)
    symbolic = evaluate(Graph([*inputs, *seeds], gradients), [*arrays, *weights])

    def objective(moved: Mapping[int, np.ndarray]) -> float:
        found = evaluate(forward, [moved.get(i, a) for i, a in enumerate(arrays)])
        if any(np.shape(y) != w.shape for w, y in zip(weights, found, strict=True)):
            names = ", ".join(repr(name) for name, value in wrt.items() if inputs.index(value) in moved)
            raise UsageError(f"the sizes of outputs depend on the elements of {names}: leave it out of wrt= (--wrt)")
        return math.fsum(float(np.sum(w * y)) for w, y in zip(weights, found, strict=True))

    total = sum(array.size for array in symbolic)
    chosen = (0 if total <= ELEMENTS else DIRECTIONS) if directions is None else directions
    operands: list[_Operand] = []
    for (name, value), derivative in zip(wrt.items(), symbolic, strict=True):
        position = inputs.index(value)
        if derivative.shape != arrays[position].shape:
            raise CheckFailed(
                f"the gradient in {name} has shape {list(derivative.shape)}, the input {list(arrays[position].shape)}"
            )
        operands.append(_Operand(name, position, arrays[position], derivative))
    if together:
        entries = _grouped(objective, operands, chosen or DIRECTIONS, step, rng, (rtol, atol))
    else:
        entries = [_entry(o.name, _differences(objective, o, chosen, step, rng), rtol, atol) for o in operands]
    return GradientReport(tuple(entries), rtol, atol)


class _Operand(NamedTuple):
    """An input that is differentiated: its name, its position among the inputs, its array, the gradient to check."""

    name: str
    position: int
    array: np.ndarray
    derivative: np.ndarray


Objective: TypeAlias = Callable[[Mapping[int, np.ndarray]], float]


def _grouped(
    objective: Objective,
    operands: Sequence[_Operand],
    directions: int,
    step: float,
    rng: np.random.Generator,
    tolerances: tuple[float, float],
) -> list[GradientEntry]:
    """Check all operands together. A group that fails is halved and checked again, down to single operands.

    Returns one entry for each group that passed, and for each single operand that failed.
    """
    entries = []
    pending = [[o for o in operands if o.array.size]]
    while pending:
        group = pending.pop()
        pairs = [
            ((number,), *_along(objective, [(o, _unit(o.array.shape, rng)) for o in group], step))
            for number in range(directions if group else 0)
        ]
        name = group[0].name if len(group) == 1 else f"{len(group)} together" if group else "nothing"
        entry = _entry(name, pairs, *tolerances)
        if entry.passed or len(group) == 1:
            entries.append(entry)
        else:
            pending += [group[len(group) // 2 :], group[: len(group) // 2]]
    return entries


def _differences(
    objective: Objective, operand: _Operand, directions: int, step: float, rng: np.random.Generator
) -> list[tuple[tuple[int, ...], float, float]]:
    """(place, numeric, symbolic) for each checked derivative."""
    found: list[tuple[tuple[int, ...], float, float]] = []
    if directions:
        numbers = range(directions if operand.array.size else 0)
        return [((i,), *_along(objective, [(operand, _unit(operand.array.shape, rng))], step)) for i in numbers]
    for place in np.ndindex(operand.array.shape):
        unit = np.zeros_like(operand.array)
        unit[place] = 1.0
        found.append((place, *_along(objective, [(operand, unit)], step)))
    return found


def _unit(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    direction = rng.standard_normal(shape)
    return np.asarray(direction / np.linalg.norm(direction))


def _along(objective: Objective, moves: Sequence[tuple[_Operand, np.ndarray]], step: float) -> tuple[float, float]:
    """The numeric and the symbolic derivative when each operand moves in its direction."""
    symbolic = math.fsum(float(np.sum(o.derivative * d)) for o, d in moves)
    numeric = _nearest(lambda t: objective({o.position: o.array + t * d for o, d in moves}), step, symbolic)
    return numeric, symbolic


def _nearest(f: Callable[[float], float], step: float, symbolic: float) -> float:
    """Of several step sizes, the difference quotient closest to `symbolic`.

    A kink (max pooling, ReLU) within a large step spoils only the quotients of large steps. A wrong gradient agrees
    with no quotient. In networks with a million units, every direction has kinks within all but the smallest steps.
    """
    best = math.nan
    for factor in (1.0, 0.1, 1e-2, 1e-3, 1e-4):
        quotient = _difference(f, step * factor)
        if not abs(best - symbolic) <= abs(quotient - symbolic):
            best = quotient
        if abs(best - symbolic) <= 1e-9 * (1.0 + abs(symbolic)):
            break
    return best


def _difference(f: Callable[[float], float], h: float) -> float:
    return (8.0 * (f(h) - f(-h)) - (f(2.0 * h) - f(-2.0 * h))) / (12.0 * h)


def _entry(name: str, pairs: Sequence[tuple[tuple[int, ...], float, float]], rtol: float, atol: float) -> GradientEntry:
    if not pairs:
        return GradientEntry(name, True, 0.0, 0.0, (), 0.0, 0.0, 0)
    numeric = np.array([n for _, n, _ in pairs])
    symbolic = np.array([s for _, _, s in pairs])
    error = np.where(np.isnan(numeric - symbolic), np.inf, np.abs(numeric - symbolic))
    excess = error - (atol + rtol * np.abs(numeric))
    worst = int(np.argmax(excess))
    relative = float(np.max(error / np.maximum(np.abs(numeric), np.finfo(float).tiny)))
    passed = bool(np.all(excess <= 0))
    place = pairs[worst][0]
    return GradientEntry(
        name, passed, float(error.max()), relative, place, float(numeric[worst]), float(symbolic[worst]), len(pairs)
    )


def _tensors(graph: Graph, values: Sequence[Value], arrays: Sequence[Any]) -> list[Value]:
    """The tensors in `values`, including those that sequences and optionals hold if `arrays` are the inputs."""
    if all(isinstance(v.type, TensorType) for v in values):
        return list(values)
    results = evaluate(Graph(graph.inputs, values), arrays)
    return [t for v, result in zip(values, results, strict=True) for t in taken_apart(v, result)]


def _chosen(known: Mapping[str, Value], names: Sequence[str] | None) -> dict[str, Value]:
    if names is None:
        floats = {n: v for n, v in known.items() if holds_floats(v.type)}
        if not floats:
            raise UsageError(
                f"none of {', '.join(known) or 'the inputs'} contains floats, so there is no gradient to check"
            )
        return floats
    for name in names:
        if name not in known:
            raise UsageError(f"no value {name!r} to differentiate{did_you_mean(name, known)}")
    return {n: known[n] for n in names}


def _fixed_rng(seed: int) -> np.ndarray:
    return np.array([seed, 0], np.uint64)
