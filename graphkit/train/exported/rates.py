"""Learning-rate schedules as graph values, so that a step computes its own learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ops import F
from graphkit.train import schedules
from graphkit.train.schedules import RateFunction, Schedule


def rate_value(schedule: Schedule, step: Value) -> Value:
    """Return the learning rate of an update, a float64 scalar. step: number of earlier updates, float64 scalar.

    Raises:
        UnsupportedError: The schedule is a function of Python, or a class of the user.
        UsageError: The schedule covers a whole run, and the length of the run is unknown.
    """
    write = _WRITERS.get(type(schedule))
    if write is None:
        named = (
            f"function {schedule.name}" if isinstance(schedule, RateFunction) else f"class {type(schedule).__name__}"
        )
        raise UnsupportedError(
            f"the learning rate is computed by the Python {named}, which an ONNX file cannot contain: let the caller "
            "of the file give the learning rate of each step (rate='input', --rate-input), or use a schedule of "
            "gk.optim"
        )
    return write(schedule, step)


def _number(value: float) -> Value:
    found: Value = F.constant(value=np.asarray(value, np.float64))
    return found


def _constant(s: Any, step: Value) -> Value:
    return _number(s.rate)


def _step(s: Any, step: Value) -> Value:
    found: Value = F.mul(_number(s.rate), F.pow(_number(s.factor), F.floor(F.div(step, _number(s.every)))))
    return found


def _exponential(s: Any, step: Value) -> Value:
    found: Value = F.mul(_number(s.rate), F.pow(_number(s.factor), step))
    return found


def _progress(s: Any, step: Value) -> Value:
    s.progress(0)  # raises UsageError without steps
    found: Value = F.min(F.div(step, _number(s.steps)), _number(1.0))
    return found


def _between(first: float, last: float, progress: Value) -> Value:
    wave = F.add(_number(1.0), F.cos(F.mul(_number(math.pi), progress)))
    found: Value = F.add(_number(last), F.mul(_number((first - last) * 0.5), wave))
    return found


def _cosine(s: Any, step: Value) -> Value:
    return _between(s.rate, s.final, _progress(s, step))


def _falling(s: Any, step: Value, power: float) -> Value:
    left = F.sub(_number(1.0), _progress(s, step))
    factor = left if power == 1.0 else F.pow(left, _number(power))
    found: Value = F.add(_number(s.final), F.mul(_number(s.rate - s.final), factor))
    return found


def _linear(s: Any, step: Value) -> Value:
    return _falling(s, step, 1.0)


def _polynomial(s: Any, step: Value) -> Value:
    return _falling(s, step, s.power)


def _one_cycle(s: Any, step: Value) -> Value:
    s.progress(0)
    start, end = s.rate / s.start_factor, s.rate / s.start_factor / s.end_factor
    top, last = s.rise * s.steps - 1.0, s.steps - 1.0
    rising = F.div(step, _number(top)) if top else _number(1.0)
    falling = F.min(F.div(F.sub(step, _number(top)), _number(max(last - top, 1e-9))), _number(1.0))
    found: Value = F.where(
        F.less_or_equal(step, _number(top)), _between(start, s.rate, rising), _between(s.rate, end, falling)
    )
    return found


def _warmup(s: Any, step: Value) -> Value:
    rising = F.div(F.mul(rate_value(s.after, _number(0.0)), F.add(step, _number(1.0))), _number(s.steps))
    after = rate_value(s.after, F.max(F.sub(step, _number(s.steps)), _number(0.0)))
    found: Value = F.where(F.less(step, _number(s.steps)), rising, after)
    return found


_WRITERS: dict[type[Schedule], Callable[[Any, Value], Value]] = {
    schedules.Constant: _constant,
    schedules.Step: _step,
    schedules.Exponential: _exponential,
    schedules.Cosine: _cosine,
    schedules.Linear: _linear,
    schedules.Polynomial: _polynomial,
    schedules.OneCycle: _one_cycle,
    schedules.Warmup: _warmup,
}
