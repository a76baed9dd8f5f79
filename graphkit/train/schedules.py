"""Learning-rate schedules: the rate as a function of the number of updates."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeAlias

from graphkit.errors import UsageError, did_you_mean
from graphkit.train.arguments import POSITIVE, Range, convert_fields, real

Rate: TypeAlias = "float | Schedule | Callable[[int], float]"


@dataclass(frozen=True)
class Schedule:
    """Base class of learning-rate schedules: `schedule(n)` returns the rate of the update after n earlier updates.

    The first update has n = 0. To define a schedule, override `__call__`.
    """

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        convert_fields(self, type(self).__name__, {})
        for field in dataclasses.fields(self):
            if field.type == "Schedule":
                object.__setattr__(self, field.name, schedule(getattr(self, field.name)))

    def __call__(self, step: int) -> float:
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether the schedule covers all updates of a run, because it has no `steps` of its own."""
        return False

    def over(self, steps: int) -> Schedule:
        """Return the schedule for a run of `steps` updates. A schedule with `steps` of its own stays unchanged."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return `{"type": ..., fields}`, from which `schedule(...)` creates the schedule again."""
        own = {k: v.describe() if isinstance(v, Schedule) else v for k, v in vars(self).items()}
        return {"type": self.kind, **own}


@dataclass(frozen=True)
class Constant(Schedule):
    """The rate is always `rate`."""

    rate: float
    kind = "constant"

    def __call__(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Step(Schedule):
    """The rate starts at `rate` and is multiplied by `factor` after every `every` updates."""

    rate: float
    every: int
    factor: float = 0.1
    kind = "step"

    def __call__(self, step: int) -> float:
        return self.rate * self.factor ** (step // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """The rate is rate * factor ** step, where step counts the updates from 0."""

    rate: float
    factor: float
    kind = "exponential"

    def __call__(self, step: int) -> float:
        return self.rate * self.factor**step


@dataclass(frozen=True)
class _OverSteps(Schedule):
    rate: float
    steps: int | None = None

    def progress(self, step: int) -> float:
        return min(step / self._known_steps(), 1.0)

    def _known_steps(self) -> int:
        if self.steps is None:
            raise UsageError(
                f"{type(self).__name__} without steps covers all updates of a run, which only `fit` knows; pass steps="
            )
        return self.steps

    @property
    def is_open(self) -> bool:
        return self.steps is None

    def over(self, steps: int) -> Self:
        return self if self.steps is not None else replace(self, steps=max(steps, 1))


@dataclass(frozen=True)
class Cosine(_OverSteps):
    """Half a cosine from `rate` to `final` over `steps` updates, then `final` (Loshchilov and Hutter, SGDR, 2017).

    Without `steps`, the schedule covers all updates of the run.
    """

    final: float = 0.0
    kind = "cosine"

    def __call__(self, step: int) -> float:
        return _between(self.rate, self.final, self.progress(step))


@dataclass(frozen=True)
class Polynomial(_OverSteps):
    """The rate is final + (rate - final) * (1 - step / steps) ** power; `final` after `steps` updates.

    Without `steps`, the schedule covers all updates of the run.
    """

    power: float = 1.0
    final: float = 0.0
    kind = "polynomial"

    def __call__(self, step: int) -> float:
        factor: float = (1.0 - self.progress(step)) ** self.power
        return self.final + (self.rate - self.final) * factor


@dataclass(frozen=True)
class Linear(_OverSteps):
    """A straight line from `rate` to `final` over `steps` updates, then `final`.

    Without `steps`, the schedule covers all updates of the run.
    """

    final: float = 0.0
    kind = "linear"

    def __call__(self, step: int) -> float:
        return self.final + (self.rate - self.final) * (1.0 - self.progress(step))


@dataclass(frozen=True)
class OneCycle(_OverSteps):
    """Up from rate / start_factor to `rate`, then down to rate / (start_factor * end_factor), each as half a cosine.

    The rate rises in the first `rise * steps` updates, with `rise` from 0 to 1, and falls in the later updates. Without
    `steps`, the schedule covers all updates of the run. The momentum does not change. (Smith and Topin, 2018, in the
    form that PyTorch and fastai use.)
    """

    rise: float = 0.3
    start_factor: float = 25.0
    end_factor: float = 1e4
    kind = "one-cycle"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start_factor", "end_factor"):
            real("OneCycle", name, getattr(self, name), POSITIVE)
        real("OneCycle", "rise", self.rise, Range(0.0, 1.0, open_low=True, open_high=True))

    def __call__(self, step: int) -> float:
        start = self.rate / self.start_factor
        top, last = self.rise * self._known_steps() - 1.0, self._known_steps() - 1.0
        if step <= top:
            return _between(start, self.rate, step / top if top else 1.0)
        return _between(self.rate, start / self.end_factor, min((step - top) / max(last - top, 1e-9), 1.0))


def _between(first: float, last: float, progress: float) -> float:
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Warmup(Schedule):
    """The rate grows linearly to the first rate of `after` in `steps` updates, then follows `after`.

    Update n has the rate after(0) * (n + 1) / steps if n < steps, else after(n - steps).

    Args:
        after: A learning rate, or a schedule, which counts from the end of the warmup.
        steps: Number of updates of the warmup.
    """

    after: Schedule
    steps: int
    kind = "warmup"

    def __call__(self, step: int) -> float:
        if step < self.steps:
            return self.after(0) * (step + 1) / self.steps
        return self.after(step - self.steps)

    @property
    def is_open(self) -> bool:
        return self.after.is_open

    def over(self, steps: int) -> Warmup:
        return replace(self, after=self.after.over(steps - self.steps))


@dataclass(frozen=True)
class RateFunction(Schedule):
    """The rate is `function(step)`. A call raises UsageError if the rate is not a finite number of at least 0.

    A checkpoint contains only the name of the function.
    """

    function: Callable[[int], float]
    kind = "function"

    def __post_init__(self) -> None:
        if isinstance(self.function, type):
            name = self.function.__name__
            raise UsageError(f"lr must be a number, a schedule or a function, not the class {name}; write {name}(...)")

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def __call__(self, step: int) -> float:
        try:
            found: Any = self.function(step)
        except Exception as error:
            error.add_note(f"raised by the learning rate function {self.name} for update {step} (counted from 0)")
            raise
        given = found.item() if getattr(found, "shape", None) == () else found
        is_number = isinstance(given, numbers.Real) and not isinstance(given, bool)
        if not is_number or not math.isfinite(given) or given < 0:
            raise UsageError(
                f"the learning rate of update {step} (counted from 0) must be a finite number of at least 0, but the "
                f"function {self.name} returned {found!r}"
            )
        return float(given)

    def describe(self) -> dict[str, Any]:
        return {"type": self.kind, "name": self.name}


_KINDS = {cls.kind: cls for cls in (Constant, Step, Exponential, Cosine, Linear, Polynomial, OneCycle, Warmup)}


def names() -> list[str]:
    return list(_KINDS)


def schedule(spec: Rate | Mapping[str, Any]) -> Schedule:
    """Return a Schedule from a number, a Schedule, a function of the number of updates, or the dict of `describe`."""
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, Mapping):
        found = dict(spec)
        kind = found.pop("type", None)
        if kind == RateFunction.kind:
            raise UsageError(
                f"the learning rate is the function {found.get('name')}, which a description does not contain: pass "
                "the function, such as gk.optim.SGD(function)"
            )
        if kind is None:
            raise UsageError(f"a dict that describes a schedule needs the key 'type': {', '.join(_KINDS)}")
        if kind not in _KINDS:
            raise UsageError(f"unknown schedule {kind!r}{did_you_mean(str(kind), _KINDS)}")
        cls = _KINDS[kind]
        known = {f.name: f.default is dataclasses.MISSING for f in dataclasses.fields(cls)}
        for name in found:
            if name not in known:
                hint = did_you_mean(name, [n for n in known if n != "rate"])
                rate = ". The learning rate is --lr (in Python: rate=)" if "rate" in known else ""
                raise UsageError(f"schedule {kind} has no option {name!r}{hint}{'' if hint.endswith('?') else rate}")
        if missing := [name for name, needed in known.items() if needed and name not in found]:
            options = {n: f"--schedule-option {n}=N" if n != "rate" else "--lr" for n in missing}
            listed = " and ".join(f"{n}= ({option})" for n, option in options.items())
            raise UsageError(f"schedule {kind} needs {listed}")
        if "after" in found:
            found["after"] = schedule(found["after"])
        return cls(**found)
    if callable(spec):
        return RateFunction(spec)
    return _constant(spec) if isinstance(spec, float) else Constant(spec)


@lru_cache
def _constant(rate: float) -> Constant:
    return Constant(rate)


class RunRate:
    """The learning rate of each update of a run.

    Attributes:
        scale: Factor on the rates, which callbacks may set.
        run_updates: Number of updates of the run, or None if unknown.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.run_updates: int | None = None
        self._resolved: tuple[tuple[Schedule, int], Schedule] | None = None

    def at(self, schedule: Schedule, update: int, first: int) -> float:
        """Return the learning rate of an update.

        Args:
            update: Number of updates before this one, in all runs.
            first: Number of updates before this run.

        Raises:
            UsageError: The schedule covers the whole run, and the number of its updates is unknown.
        """
        if not schedule.is_open or self.run_updates is None:
            return schedule(update) * self.scale
        if self._resolved is None or self._resolved[0] != (schedule, self.run_updates):
            self._resolved = (schedule, self.run_updates), schedule.over(self.run_updates)
        return self._resolved[1](update - first) * self.scale
