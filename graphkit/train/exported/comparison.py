"""Check an exported step: ONNX Runtime and a Trainer take the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from graphkit.errors import CheckFailed, InvalidModel, NotFinite, RuntimeFailure
from graphkit.executor.run.params import ParamStore
from graphkit.ir.types import HALVES, dtype_of
from graphkit.text import short_repr
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exchange.local import LocalExchange
from graphkit.train.stepper import Stepper

# Limits of relative differences, for float32, then for float16 and bfloat16. The first number of a pair is the limit
# for the loss and outputs, the second one for the changes of states.
LIMITS = (1e-4, 1e-3), (3e-2, 1e-1)

# If a difference exceeds its limit, `_noise` measures how much rounding changes graphkit's own step, for example at the
# kink of a ReLU. The limit is then _NOISE_FACTOR times this change, at most _LARGEST.
_NOISE_FACTOR, _LARGEST = 4.0, 0.5
_DRAWS = 2

LOSS, OUTPUT, METRIC, SKIPPED = "loss", "output", "metric", "skipped_step"


_UNCHECKED = "To write the file without the comparison: verify=False, --no-verify"


@dataclass(frozen=True)
class RoleReport:
    """The comparison of all arrays that have one role.

    Attributes:
        role: "loss", "output" (of the model), "metric", "batch_weight", the role of the states, or "skipped_step": the
            states after a step that is not finite.
        count: Number of arrays that were compared.
        difference: The largest difference in any step. For the loss and outputs: the relative difference. For states:
            the norm of the difference, divided by the norm of their change in the step. For counters, and after a
            skipped step: 0 if they are equal, else infinity.
        limit: The largest difference that passes.
    """

    role: str
    count: int
    difference: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.limit

    @property
    def excess(self) -> float:
        """The difference as a multiple of the limit."""
        return self.difference / self.limit if self.limit else self.difference


@dataclass(frozen=True)
class StepReport:
    """Result of the comparison of an exported step with graphkit. steps: number of steps that both took."""

    steps: int
    roles: tuple[RoleReport, ...]

    @property
    def passed(self) -> bool:
        return all(role.passed for role in self.roles)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data, for JSON."""
        return {
            "passed": self.passed, "steps": self.steps,
            "roles": [{**asdict(role), "passed": role.passed} for role in self.roles],
        }  # fmt: skip

    def raise_if_failed(self) -> None:
        """Raise CheckFailed if the runtimes differ. The message lists the roles above their limits."""
        if not self.passed:
            raise CheckFailed(
                "the exported step differs from graphkit's in ONNX Runtime: "
                + "; ".join(f"{r.role}: {r.difference:.3g}, limit {r.limit:.3g}" for r in self.roles if not r.passed)
            )

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield "PASSED" if self.passed else "FAILED"
        yield f"{self.steps} steps"


@dataclass(frozen=True)
class Subject:
    """An exported step, and the training step of graphkit.

    Attributes:
        model: The exported step, a ModelProto.
        metrics: Kind, output and target input of each metric of the file.
    """

    model: Any
    description: Mapping[str, Any]
    spec: StepSpec
    states: Mapping[str, np.ndarray]
    rng: tuple[int, int]
    counts: tuple[int, int, float]
    outputs: Mapping[str, str]
    metrics: Mapping[str, tuple[str, str, str]]


@dataclass(frozen=True)
class _Results:
    loss: Any
    outputs: Mapping[str, Any]
    states: dict[str, np.ndarray]


def compare_steps(
    subject: Subject, feeds: Mapping[str, Any], steps: Sequence[tuple[float, bool]], threads: int | None
) -> StepReport:
    """Take steps on the batch `feeds` in both runtimes. Return how much they differ.

    Both begin each step with graphkit's states: differences do not grow. At the end, both take a step that must be
    skipped (see `_skipped_step`).

    Args:
        steps: For each step: the learning rate, and whether it flushes accumulated gradients.
    """
    ours, theirs = _Graphkit(subject), _Runtime(subject, threads)
    roles: dict[str, list[str]] = {}
    for state in subject.description["states"]:
        roles.setdefault(state["role"], []).append(state["input"])
    counts = {LOSS: len(steps), METRIC: len(subject.metrics), OUTPUT: len(subject.description["outputs"])}
    counts |= {role: len(names) for role, names in roles.items()}
    worst: dict[str, RoleReport] = {}
    before = subject
    for rate, flush in steps:
        ours.load(before)
        given, new = theirs.step(feeds, before.states, rate, flush), ours.step(feeds, rate, flush)
        found = _differences(subject, roles, before.states, new, given)
        if subject.metrics:
            found[METRIC] = max(_metric_error(given, feeds, name, *of) for name, of in subject.metrics.items())
        limits = _limits(before, roles, new, given, found)
        following = replace(subject, states=new.states, rng=ours.rng, counts=ours.counts)
        if any(not found[role] <= limit for role, limit in limits.items() if role != METRIC):
            noise = _noise(ours, before, feeds, (rate, flush), new, roles)
            limits |= {role: max(limits[role], min(_NOISE_FACTOR * d, _LARGEST)) for role, d in noise.items() if d}
        for role, difference in found.items():
            difference = difference if np.isfinite(difference) else float("inf")
            report = RoleReport(role, counts.get(role, 1), difference, limits[role])
            if role not in worst or report.excess > worst[role].excess:
                worst[role] = report
        before = following
    skipped = _skipped_step(before, ours, theirs, feeds, steps[-1][0])
    return StepReport(len(steps) + len(skipped), (*worst.values(), *skipped))


def _limits(
    before: Subject, roles: Mapping[str, Sequence[str]], new: _Results, given: _Results, found: Mapping[str, float]
) -> dict[str, float]:
    """Return the limit of each role. The caller may increase the limits (see `_NOISE_FACTOR`)."""
    kinds = [array.dtype for array in new.states.values()] + [np.asarray(given.loss).dtype]
    of_outputs, of_states = LIMITS[any(dtype_of(kind) in HALVES for kind in kinds)]
    limits = {role: of_states if role in roles else of_outputs for role in found}
    return limits | {
        role: 0.0 for role, names in roles.items() if all(before.states[n].dtype.kind in "iub" for n in names)
    }


def _differences(
    subject: Subject, roles: Mapping[str, Sequence[str]], before: Mapping[str, Any], ours: _Results, theirs: _Results
) -> dict[str, float]:
    found = {LOSS: abs(float(theirs.loss) - float(ours.loss)) / max(abs(float(ours.loss)), 1e-6)}
    for name in subject.outputs:
        role = OUTPUT if name in subject.description["outputs"] else "batch_weight"
        found[role] = max(found.get(role, 0.0), _output_difference(ours.outputs[name], theirs.outputs[name]))
    return found | {role: _difference(n, before, ours.states, theirs.states) for role, n in roles.items()}


def _noise(
    ours: _Graphkit, before: Subject, feeds: Mapping[str, Any], step: tuple[float, bool], new: _Results,
    roles: Mapping[str, Sequence[str]],
) -> dict[str, float]:  # fmt: skip
    """Return, by role, how much a step of graphkit changes if parameters change by two units in the last place.

    For states, the result is at least that of `_rounding`. It can be large: if a gradient of exactly 0 becomes a
    rounding error, Adam divides this error by its own magnitude.
    """
    draw = np.random.default_rng(0)
    worst = {role: _rounding(names, before.states, new.states) for role, names in roles.items()}
    for _ in range(_DRAWS):
        states = dict(before.states)
        for name in roles.get("parameter", ()):
            array = states[name]
            sign = draw.integers(0, 2, array.shape) * 2 - 1
            scale = 1 + 2 * float(ml_dtypes.finfo(array.dtype).eps) * sign
            states[name] = (array.astype(np.float64) * scale).astype(array.dtype)
        ours.load(replace(before, states=states))
        found = ours.step(feeds, *step)
        differences = _differences(before, roles, before.states, new, found)
        worst |= {role: max(worst.get(role, 0.0), d) for role, d in differences.items()}
    return worst


def _rounding(names: Sequence[str], before: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """Return the largest `_difference` if each new element changes by one unit in the last place."""
    moved = {
        n: (a.astype(np.float64) * (1 + float(ml_dtypes.finfo(a.dtype).eps))).astype(a.dtype)
        for n in names
        if (a := np.asarray(new[n])).dtype.kind not in "iub"
    }
    return _difference(list(moved), before, new, moved)


def _difference(
    names: Sequence[str], before: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> float:
    """Return |theirs - ours| / |ours - before|, with norms over all arrays of these names."""
    error = change = size = 0.0
    for name in names:
        first, mine, other = (np.asarray(side[name]) for side in (before, ours, theirs))
        if mine.shape != other.shape or mine.dtype != other.dtype:
            return float("inf")
        if mine.dtype.kind in "iub":
            if not np.array_equal(mine, other):
                return float("inf")
            continue
        first, mine, other = (np.asarray(a, np.float64) for a in (first, mine, other))
        error, change = error + float(np.sum((other - mine) ** 2)), change + float(np.sum((mine - first) ** 2))
        size += float(np.sum(mine**2))
    if not np.isfinite(error):
        return float("inf")
    # If the states hardly change, divide by a small part of their norm.
    return float(np.sqrt(error) / max(np.sqrt(change), 1e-5 * np.sqrt(size), 1e-30)) if error else 0.0


def _output_difference(ours: Any, theirs: Any) -> float:
    """Return |theirs - ours| / |ours| of an output; for integers, the share of unequal elements.

    Elements that are both NaN count as equal. For a sequence, return the largest difference.
    """
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return float("inf")
        return max((_output_difference(a, b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    mine, other = np.asarray(ours), np.asarray(theirs)
    if mine.shape != other.shape or mine.dtype != other.dtype:
        return float("inf")
    if not mine.size:
        return 0.0
    if not isinstance(ours, np.ndarray) or not dtype_of(mine.dtype).is_float:
        return float(np.mean(mine != other))
    mine, other = mine.astype(np.float64), other.astype(np.float64)
    differs = ~((mine == other) | (np.isnan(mine) & np.isnan(other)))
    error = float(np.linalg.norm(other[differs] - mine[differs]))
    size = float(np.linalg.norm(mine[np.isfinite(mine)]))
    return error / max(size, 1e-6 * float(np.sqrt(mine.size))) if np.isfinite(error) else float("inf")


def _metric_error(given: _Results, feeds: Mapping[str, Any], name: str, kind: str, output: str, target: str) -> float:
    scores, wanted = np.asarray(given.outputs[output], np.float64), np.asarray(feeds[target])
    if kind == "accuracy":
        expected = np.mean(scores.argmax(-1) == wanted)
    else:
        difference = scores - wanted.astype(np.float64)
        expected = np.mean(difference**2 if kind == "mse" else np.abs(difference))
    return float(abs(float(given.outputs[name]) - expected) / max(abs(expected), 1e-6))


# --- a step that is not finite ----------------------------------------------------------------------


def _skipped_step(
    before: Subject, ours: _Graphkit, theirs: _Runtime, feeds: Mapping[str, Any], rate: float
) -> tuple[RoleReport, ...]:
    """Compare the states of both runtimes after a step with the loss NaN, which both must skip.

    One array after another is replaced by NaN until the loss is NaN. Return no report if no array makes the loss NaN in
    both runtimes, if `on_nonfinite` is "ignore", or if the graph has a Loop, which may never end.
    """
    loops = any(node.op_type == "Loop" for node in before.model.graph.node)
    if before.spec.rule.on_nonfinite == "ignore" or loops:
        return ()
    for with_nan, states in _with_nan(before, feeds):
        try:
            given = theirs.step(with_nan, states, rate, True)
        except CheckFailed:
            continue
        if np.isfinite(given.loss):
            continue
        ours.load(replace(before, states=states), skips=True)
        try:
            new = ours.step(with_nan, rate, True)
        except RuntimeFailure:
            continue
        if np.isfinite(new.loss):
            continue
        same = all(_same_bits(new.states[name], given.states[name]) for name in states)
        return (RoleReport(SKIPPED, len(states), 0.0 if same else float("inf"), 0.0),)
    return ()


def _with_nan(
    subject: Subject, feeds: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, np.ndarray]]]:
    """Yield feeds and states in which one array is NaN: each target and weight, then each input, then a parameter."""
    data = {i["name"] for i in subject.description["inputs"] if i["role"] == "data"}
    for name in sorted(feeds, key=lambda n: n in data):
        if isinstance(array := feeds[name], np.ndarray) and dtype_of(array.dtype).is_float:
            yield {**feeds, name: np.full_like(array, np.nan)}, subject.states
    for name in [s["input"] for s in subject.description["states"] if s["role"] == "parameter"][-1:]:
        yield feeds, {**subject.states, name: np.full_like(subject.states[name], np.nan)}


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(np.all((one == other) | ((one != one) & (other != other))))


class _Graphkit:
    """Takes steps as a Trainer does, with its own parameters and states. Call `load` before the first step."""

    def __init__(self, subject: Subject):
        self._subject, self._skips = subject, False
        params = subject.spec.params
        copies = ParamStore({name: params.type_of(name) for name in params}, params.entries())
        self._spec = replace(subject.spec, params=copies)
        self._exchange = LocalExchange(self._spec)
        self._stepper = Stepper(self._spec, self._exchange)

    def load(self, subject: Subject, *, skips: bool = False) -> None:
        """Set the states and counts to those of `subject`, which must have the same training step.

        skips: skip steps that are not finite, as the file does, instead of raising an error.
        """
        self._skips = skips
        # Only the stepper gets the new rule. With "skip", the programs would also check gradients; the file does not.
        rule = replace(self._spec.rule, on_nonfinite="skip") if skips else self._spec.rule
        self._stepper = Stepper(replace(self._spec, rule=rule), self._exchange)
        self._stepper.updates, self._stepper.accumulated, self._stepper.accumulated_weight = subject.counts
        for store in (self._spec.params, self._exchange.slots):
            for name in store:
                if name in subject.states:
                    store[name] = subject.states[name]
        self._exchange.executors[0].rng = subject.rng

    @property
    def rng(self) -> tuple[int, int]:
        return self._exchange.executors[0].rng

    @property
    def counts(self) -> tuple[int, int, float]:
        return self._stepper.updates, self._stepper.accumulated, self._stepper.accumulated_weight

    def step(self, feeds: Mapping[str, Any], rate: float, flush: bool) -> _Results:
        """Return the results of a step with copies of the states."""
        try:
            loss, results = self._stepper.take(dict(feeds), None, rate, None)
            if flush:
                self._stepper.flush(rate)
        except NotFinite as error:
            raise _untestable(str(error).partition(". The parameters")[0]) from None
        if not np.isfinite(loss) and not self._skips:
            raise _untestable(f"the loss or a gradient is not finite (loss {float(loss)})")
        own = {
            "random": random_state(self.rng),
            "accumulated_batches": np.asarray(self._stepper.accumulated, np.int64),
            "accumulated_weight": np.asarray(self._stepper.accumulated_weight, np.float32),
        }
        states = self._subject.description["states"]
        found = {s["input"]: own[s["role"]] if s["role"] in own else self._exchange.store[s["input"]] for s in states}
        outputs = {name: results[own] for name, own in self._subject.outputs.items() if own in results}
        return _Results(float(loss), outputs, {name: np.array(array) for name, array in found.items()})


def random_state(rng: tuple[int, int]) -> np.ndarray:
    """Return (seed, step) as the state of the file: int64 [2] with the same bits."""
    return np.array([rng[0] % (1 << 64), rng[1]], np.uint64).view(np.int64)


def _untestable(reason: str) -> CheckFailed:
    return CheckFailed(
        f"the exported step cannot be compared with graphkit on this batch: {reason}. Give a batch of your data: "
        "batch=(inputs, targets), on the command line the inputs and targets as arguments. To leave out the "
        "comparison: verify=False, --no-verify"
    )


class _Runtime:
    def __init__(self, subject: Subject, threads: int | None):
        from graphkit.onnx_io.compare import OnnxRuntimeModel

        self._described = subject.description
        try:
            self._model = OnnxRuntimeModel(subject.model, threads=threads)
        except InvalidModel as error:
            raise InvalidModel(f"{error}. {_UNCHECKED}") from None
        self._controls = {i["role"]: i["name"] for i in self._described["inputs"]}

    def step(self, feeds: Mapping[str, Any], states: Mapping[str, np.ndarray], rate: float, flush: bool) -> _Results:
        """Return the results of a step."""
        given = {**{name: np.asarray(array) for name, array in feeds.items()}, **states}
        if "flush" in self._controls:
            given[self._controls["flush"]] = np.asarray(flush)
        if "learning_rate" in self._controls:
            given[self._controls["learning_rate"]] = np.asarray(rate, np.float32)
        try:
            found = self._model.run({name: array for name, array in given.items() if name in self._model.inputs})
        except RuntimeFailure as error:
            raise _untestable(str(error)) from None
        return _Results(
            found[self._described["loss"]], found, {s["input"]: found[s["output"]] for s in self._described["states"]}
        )
