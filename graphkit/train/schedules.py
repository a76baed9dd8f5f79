"""Learning-rate schedules: a number as a function of the update count, described by a JSON-able dict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from graphkit.errors import UsageError, did_you_mean
from graphkit.train.arguments import fields


@dataclass(frozen=True)
class Schedule:
    """The learning rate at update `step` (0 for the first)."""

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        owner = type(self).__name__
        kinds = {f.name: f.type for f in dataclasses.fields(self)}
        for name, value in fields(owner, {name: getattr(self, name) for name in kinds}, kinds, {}).items():
            object.__setattr__(self, name, schedule(value) if kinds[name] == "Schedule" else value)

    def __call__(self, step: int) -> float:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """`{"type": ..., fields}`; `schedule(...)` reads it back."""
        own = {k: v.describe() if isinstance(v, Schedule) else v for k, v in vars(self).items()}
        return {"type": self.kind, **own}


@dataclass(frozen=True)
class Constant(Schedule):
    """Always `rate`."""

    rate: float
    kind = "constant"

    def __call__(self, step: int) -> float:
        return self.rate


@dataclass(frozen=True)
class Step(Schedule):
    """`rate`, multiplied by `factor` every `every` updates."""

    rate: float
    every: int
    factor: float = 0.1
    kind = "step"

    def __call__(self, step: int) -> float:
        return self.rate * self.factor ** (step // self.every)


@dataclass(frozen=True)
class Exponential(Schedule):
    """rate * factor ** step."""

    rate: float
    factor: float
    kind = "exponential"

    def __call__(self, step: int) -> float:
        return self.rate * self.factor**step


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from `rate` to `final` over `steps` updates, then `final` (Loshchilov and Hutter, SGDR, 2017)."""

    rate: float
    steps: int
    final: float = 0.0
    kind = "cosine"

    def __call__(self, step: int) -> float:
        progress = min(step / self.steps, 1.0)
        return self.final + (self.rate - self.final) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Warmup(Schedule):
    """Linear from 0 during `steps` updates, then `after`, a schedule or a number, which counts from there."""

    after: Schedule
    steps: int
    kind = "warmup"

    def __call__(self, step: int) -> float:
        if step < self.steps:
            return self.after(0) * (step + 1) / self.steps
        return self.after(step - self.steps)


_KINDS = {cls.kind: cls for cls in (Constant, Step, Exponential, Cosine, Warmup)}


def schedule(spec: float | Schedule | Mapping[str, Any]) -> Schedule:
    """A Schedule from a number, a Schedule, or what `describe` gave."""
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, Mapping):
        found = dict(spec)
        kind = found.pop("type", "")
        if kind not in _KINDS:
            raise UsageError(f"unknown schedule {kind!r}{did_you_mean(kind, _KINDS)}")
        if "after" in found:
            found["after"] = schedule(found["after"])
        return _KINDS[kind](**found)
    return Constant(spec)
