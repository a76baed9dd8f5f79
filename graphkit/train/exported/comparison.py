"""Check an exported step: ONNX Runtime takes some steps with it, and a Trainer takes the same ones."""

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

# Largest relative difference of the loss, and of the change of all states with one role: for float32 or wider, and if
# a state or the loss is float16 or bfloat16. Rounding moves some elements across the kink of a ReLU, which changes the
# gradients of a deep network by a few percent.
LIMITS = (1e-4, 5e-2), (3e-2, 1e-1)

# If states differ more, the effect of rounding on graphkit's own step is measured. The limit is then this factor times
# the effect, but not above the largest limit.
_NOISE_FACTOR, _LARGEST = 4.0, 0.5


_UNCHECKED = "To write the file without the comparison: verify=False, --no-verify"


@dataclass(frozen=True)
class RoleReport:
    """The comparison of the losses, or of all states with one role.

    Attributes:
        role: "loss", or the role of the states.
        count: Number of arrays that were compared.
        difference: The largest one of all steps. For the loss: the relative difference. For states: the norm of the
            difference, divided by the norm of their change in the step. For counters: 0 if they are equal, else
            infinity.
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
        """Raise CheckFailed if the runtimes differ. The message gives the roles that do."""
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
    """An exported step and what it was made from.

    Attributes:
        model: The exported step: a ModelProto.
        description: Its description.
        spec: The training step. Its parameters are not changed.
        states: The first values of the states by name.
        rng: (seed, step) of random numbers.
        counts: Numbers of updates and accumulated batches, and the weight of these batches.
    """

    model: Any
    description: Mapping[str, Any]
    spec: StepSpec
    states: Mapping[str, np.ndarray]
    rng: tuple[int, int]
    counts: tuple[int, int, float]


def compare_steps(
    subject: Subject, feeds: Mapping[str, Any], rates: Sequence[float], threads: int | None
) -> StepReport:
    """Take one step for each of `rates` on the batch `feeds`, in both runtimes. Return how much they differ.

    Both begin each step with graphkit's states, so that differences do not grow from step to step.

    Raises:
        CheckFailed: A loss is not finite, so nothing can be compared.
    """
    ours, theirs = _Graphkit(subject), _Runtime(subject, threads)
    roles: dict[str, list[str]] = {}
    for state in subject.description["states"]:
        roles.setdefault(state["role"], []).append(state["input"])
    worst: dict[str, RoleReport] = {}
    states = dict(subject.states)
    for rate in rates:
        their_loss, their_states = theirs.step(feeds, states, rate)
        before = replace(subject, states=states, rng=ours.rng, counts=ours.counts)
        loss, new = ours.step(feeds, rate)
        error = abs(float(their_loss) - loss) / max(abs(loss), 1e-6)
        found = {"loss": error} | {role: _difference(n, states, new, their_states) for role, n in roles.items()}
        of_loss, of_states = LIMITS[any(dtype_of(a.dtype) in HALVES for a in (*new.values(), np.asarray(their_loss)))]
        limits = dict.fromkeys(found, of_states) | {"loss": of_loss}
        limits |= {role: 0.0 for role, names in roles.items() if all(states[n].dtype.kind in "iub" for n in names)}
        if any(not found[role] <= limit for role, limit in limits.items() if role != "loss"):
            noise = _noise(before, feeds, rate, new, roles)
            limits |= {role: max(limits[role], min(_NOISE_FACTOR * d, _LARGEST)) for role, d in noise.items() if d}
        for role, difference in found.items():
            count = len(roles[role]) if role in roles else len(rates)
            report = RoleReport(role, count, difference if np.isfinite(difference) else float("inf"), limits[role])
            if role not in worst or report.excess > worst[role].excess:
                worst[role] = report
        states = new
    return StepReport(len(rates), tuple(worst.values()))


def _noise(
    before: Subject, feeds: Mapping[str, Any], rate: float, new: Mapping[str, np.ndarray],
    roles: Mapping[str, Sequence[str]],
) -> dict[str, float]:  # fmt: skip
    """Return how much a step of graphkit differs, by role, if its parameters change by two units in the last place.

    For example, if a parameter has a gradient of 0 in exact arithmetic, Adam divides rounding errors by their size.
    """
    draw = np.random.default_rng(0)
    states = dict(before.states)
    for name in roles.get("parameter", ()):
        array = states[name]
        sign = draw.integers(0, 2, array.shape) * 2 - 1
        scale = 1 + 2 * float(ml_dtypes.finfo(array.dtype).eps) * sign
        states[name] = (array.astype(np.float64) * scale).astype(array.dtype)
    _, found = _Graphkit(replace(before, states=states)).step(feeds, rate)
    return {role: _difference(names, before.states, new, found) for role, names in roles.items()}


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
    # A change that is smaller than rounding, such as that of a learning rate of 0, is compared with the size.
    return float(np.sqrt(error) / max(np.sqrt(change), 1e-5 * np.sqrt(size), 1e-30)) if error else 0.0


class _Graphkit:
    """Takes steps as a Trainer does, with parameters and states of its own."""

    def __init__(self, subject: Subject):
        self._subject = subject
        params = subject.spec.params
        arrays = params.entries() | {name: array for name, array in subject.states.items() if name in params}
        spec = replace(subject.spec, params=ParamStore({name: params.type_of(name) for name in params}, arrays))
        self._exchange = LocalExchange(spec)
        self._stepper = Stepper(spec, self._exchange)
        self._stepper.updates, self._stepper.accumulated, self._stepper.accumulated_weight = subject.counts
        for name in self._exchange.slots:
            if name in subject.states:
                self._exchange.slots[name] = subject.states[name]
        self._exchange.executors[0].rng = subject.rng

    @property
    def rng(self) -> tuple[int, int]:
        """(seed, step) of random numbers."""
        return self._exchange.executors[0].rng

    @property
    def counts(self) -> tuple[int, int, float]:
        """The counts of `Subject`."""
        return self._stepper.updates, self._stepper.accumulated, self._stepper.accumulated_weight

    def step(self, feeds: Mapping[str, Any], rate: float) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss of a step and copies of the states after it. Raises CheckFailed if it is not finite."""
        try:
            loss, _ = self._stepper.take(dict(feeds), None, rate, None)
        except NotFinite as error:
            raise _untestable(str(error).partition(". The parameters")[0]) from None
        if not np.isfinite(loss):
            raise _untestable(f"the loss or a gradient is not finite (loss {float(loss)})")
        # The states that graphkit keeps outside of its programs.
        own = {
            "random": random_state(self.rng),
            "accumulated_batches": np.asarray(self._stepper.accumulated, np.int64),
            "accumulated_weight": np.asarray(self._stepper.accumulated_weight, np.float32),
        }
        states = self._subject.description["states"]
        found = {s["input"]: own[s["role"]] if s["role"] in own else self._exchange.store[s["input"]] for s in states}
        return float(loss), {name: np.array(array) for name, array in found.items()}


def random_state(rng: tuple[int, int]) -> np.ndarray:
    """Return (seed, step) of an executor as the state of the file: int64 [2] with the same bits."""
    return np.array([rng[0] % (1 << 64), rng[1]], np.uint64).view(np.int64)


def _untestable(reason: str) -> CheckFailed:
    return CheckFailed(
        f"the exported step cannot be compared with graphkit on this batch: {reason}. Give a batch of your data: "
        "batch=(inputs, targets), on the command line the inputs and targets as arguments. To leave out the "
        "comparison: verify=False, --no-verify"
    )


class _Runtime:
    """Takes steps with the exported file in ONNX Runtime."""

    def __init__(self, subject: Subject, threads: int | None):
        from graphkit.onnx_io.compare import OnnxRuntimeModel

        self._described = subject.description
        try:
            self._model = OnnxRuntimeModel(subject.model, threads=threads)
        except InvalidModel as error:
            raise InvalidModel(f"{error}. {_UNCHECKED}") from None
        self._controls = {i["role"]: i["name"] for i in self._described["inputs"]}

    def step(
        self, feeds: Mapping[str, Any], states: Mapping[str, np.ndarray], rate: float
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """Return the loss of a step, and the states after it."""
        given = {**{name: np.asarray(array) for name, array in feeds.items()}, **states}
        if "flush" in self._controls:
            given[self._controls["flush"]] = np.asarray(False)
        if "learning_rate" in self._controls:
            given[self._controls["learning_rate"]] = np.asarray(rate, np.float32)
        try:
            found = self._model.run({name: array for name, array in given.items() if name in self._model.inputs})
        except RuntimeFailure as error:
            raise _untestable(str(error)) from None
        return found[self._described["loss"]], {s["input"]: found[s["output"]] for s in self._described["states"]}
