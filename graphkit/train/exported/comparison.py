"""Check an exported step: ONNX Runtime takes some steps with it, and a Trainer takes the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from graphkit.errors import CheckFailed, InvalidModel, NotFinite, RuntimeFailure, UsageError
from graphkit.ir.types import HALVES, dtype_of
from graphkit.text import short_repr
from graphkit.train.exchange.exchange import StepSpec
from graphkit.train.exchange.local import LocalExchange
from graphkit.train.stepper import Stepper

# Largest relative difference of the loss, and of the change of all states with one role: for float32 or wider, and if
# a state or the loss is float16 or bfloat16.
LIMITS = (1e-4, 2e-2), (3e-2, 1e-1)


@dataclass(frozen=True)
class RoleReport:
    """The comparison of the losses, or of all states with one role.

    Attributes:
        role: "loss", or the role of the states.
        count: Number of arrays that were compared.
        difference: For the loss: the largest relative difference of a step. For states: the norm of the difference
            after the last step, divided by the norm of their change. For counters: 0 if they are equal, else infinity.
        limit: The largest difference that passes.
    """

    role: str
    count: int
    difference: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.difference <= self.limit


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
                f"after {self.steps} steps, ONNX Runtime and graphkit differ: "
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


def compare_steps(subject: Subject, feeds: Mapping[str, Any], rates: Sequence[float], threads: int | None) -> StepReport:
    """Take one step for each of `rates` on the batch `feeds`, in both runtimes. Return how much they differ.

    Raises:
        CheckFailed: A loss is not finite, so nothing can be compared.
    """
    losses, ours = _in_graphkit(subject, feeds, rates)
    found, theirs = _in_runtime(subject, feeds, rates, threads)
    halves = any(dtype_of(np.asarray(a).dtype) in HALVES for a in (*subject.states.values(), found[0]))
    of_loss, of_states = LIMITS[halves]
    worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in zip(map(float, found), losses, strict=True))
    reports = [RoleReport("loss", len(losses), worst if np.isfinite(worst) else float("inf"), of_loss)]
    by_role: dict[str, list[str]] = {}
    for state in subject.description["states"]:
        by_role.setdefault(state["role"], []).append(state["input"])
    for role, names in by_role.items():
        difference = _difference(names, subject.states, ours, theirs)
        exact = all(np.asarray(subject.states[n]).dtype.kind in "iub" for n in names)
        reports.append(RoleReport(role, len(names), difference, 0.0 if exact else of_states))
    return StepReport(len(rates), tuple(reports))


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
        if not np.isfinite(other).all():
            return float("inf")
        error, change = error + float(np.sum((other - mine) ** 2)), change + float(np.sum((mine - first) ** 2))
        size += float(np.sum(mine**2))
    # A state that does not change, such as a constant learning rate of 0, is compared with its own size.
    return float(np.sqrt(error) / max(np.sqrt(change), 1e-6 * np.sqrt(size), 1e-30)) if error else 0.0


def _in_graphkit(
    subject: Subject, feeds: Mapping[str, Any], rates: Sequence[float]
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses of a Trainer's steps, and the states after them."""
    exchange = LocalExchange(subject.spec)
    stepper = Stepper(subject.spec, exchange)
    stepper.updates, stepper.accumulated, stepper.accumulated_weight = subject.counts
    for name in exchange.slots:
        if name in subject.states:
            exchange.slots[name] = subject.states[name]
    exchange.executors[0].rng = subject.rng
    losses = []
    for rate in rates:
        try:
            loss, _ = stepper.take(dict(feeds), None, rate, None)
        except NotFinite as error:
            raise _untestable(str(error)) from None
        if not np.isfinite(loss):
            raise _untestable(f"the loss is {float(loss)}")
        losses.append(float(loss))
    found = {name: np.asarray(exchange.store[name]) for name in subject.states if name in exchange.store}
    # The states that graphkit keeps outside of its programs.
    for state in subject.description["states"]:
        name, role = state["input"], state["role"]
        if role == "random":
            found[name] = _signed(exchange.executors[0].rng)
        elif role == "accumulated_batches":
            found[name] = np.asarray(stepper.accumulated, np.int64)
        elif role == "accumulated_weight":
            found[name] = np.asarray(stepper.accumulated_weight, np.float32)
    return losses, found


def _untestable(reason: str) -> CheckFailed:
    return CheckFailed(
        f"the exported step cannot be compared with graphkit on this batch: {reason}. Give a batch of your data "
        "(batch=(inputs, targets); on the command line: the inputs and targets as arguments), or leave out the "
        "comparison (verify=False, --no-verify)"
    )


def _signed(rng: tuple[int, int]) -> np.ndarray:
    """Return (seed, step) as the state of the file."""
    return np.array([rng[0] % (1 << 64), rng[1]], np.uint64).view(np.int64)


def _in_runtime(
    subject: Subject, feeds: Mapping[str, Any], rates: Sequence[float], threads: int | None
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return the losses of the exported step in ONNX Runtime, and the states after the last step."""
    from graphkit.onnx_io.compare import OnnxRuntimeModel

    described = subject.description
    try:
        model = OnnxRuntimeModel(subject.model, threads=threads)
    except InvalidModel as error:
        raise UsageError(f"{error}. To write the file without the comparison: verify=False, --no-verify") from None
    controls = {i["role"]: i["name"] for i in described["inputs"]}
    given = {name: np.asarray(array) for name, array in feeds.items()}
    if "flush" in controls:
        given[controls["flush"]] = np.asarray(False)
    states, losses = dict(subject.states), []
    for rate in rates:
        if "learning_rate" in controls:
            given[controls["learning_rate"]] = np.asarray(rate, np.float32)
        try:
            found = model.run({name: array for name, array in {**given, **states}.items() if name in model.inputs})
        except RuntimeFailure as error:
            raise CheckFailed(f"{error}. To write the file without the comparison: verify=False, --no-verify") from None
        states = {s["input"]: found[s["output"]] for s in described["states"]}
        losses.append(found[described["loss"]])
    return losses, states
