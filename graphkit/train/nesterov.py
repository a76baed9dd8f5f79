"""The scalars of a step of NAdam, as values of the training graph."""

from __future__ import annotations

import math
from itertools import count
from typing import Protocol

import numpy as np

from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.ops import F

_BASE = 0.96


class Settings(Protocol):
    @property
    def beta1(self) -> float: ...

    @property
    def beta2(self) -> float: ...

    @property
    def momentum_decay(self) -> float: ...


def factors(settings: Settings, step: Value, dtype: DType) -> tuple[Value, Value, Value]:
    """Return three scalars of step t: the factors of the gradient and of its mean, and the divisor of the mean square.

    They are (1 - mu[t]) / (1 - P[t]), mu[t + 1] / (1 - P[t + 1]) and 1 - beta2^t. See NAdam for mu and P.

    Args:
        step: t, an int64 scalar, 1 at the first update.
        dtype: Type of the results, float32 or float64.
    """

    def scalar(number: float) -> Value:
        return F.constant(value=np.asarray(number, dtype.numpy))

    one = scalar(1.0)
    now = F.cast(step, to=dtype)
    following = F.add(now, one)
    tables = _logarithms(settings, float(np.finfo(dtype.numpy).eps))

    def missing(t: Value) -> Value:
        share = F.exp(F.mul(t, scalar(settings.momentum_decay * math.log(_BASE))))
        return F.mul(scalar(settings.beta1 / 2), share)

    def rest(t: Value) -> Value:
        if not settings.beta1:
            return one
        known = np.asarray(tables, dtype.numpy)
        numbers = np.arange(1, len(known) + 1, dtype=dtype.numpy)
        first = F.where(F.less_or_equal(F.constant(value=numbers), t), F.constant(value=known), scalar(0.0))
        more = F.relu(F.sub(t, scalar(len(known))))
        total = F.add(F.reduce_sum(first, keepdims=False), F.mul(more, scalar(math.log(settings.beta1))))
        return _one_minus_exp(total, one)

    of_grad = F.div(F.add(scalar(1.0 - settings.beta1), missing(now)), rest(now))
    of_mean = F.div(F.sub(scalar(settings.beta1), missing(following)), rest(following))
    if not settings.beta2:
        return of_grad, of_mean, one
    return of_grad, of_mean, _one_minus_exp(F.mul(now, scalar(math.log(settings.beta2))), one)


def _logarithms(settings: Settings, precision: float) -> list[float]:
    """Return a list of log(mu[t]) for t = 1, 2, ...

    It ends when mu[t] differs from beta1, or the product of all mu so far from 0, by less than `precision`.
    """
    if not settings.beta1:
        return []
    found: list[float] = []
    for t in count(1):
        share = _BASE ** (t * settings.momentum_decay)
        if share < precision / 4 or sum(found) < math.log(precision / 4):
            return found
        found.append(math.log(settings.beta1 * (1.0 - 0.5 * share)))
    raise AssertionError("`count` has no end")


def _one_minus_exp(x: Value, one: Value) -> Value:
    """Return 1 - exp(x) for x of at most 0, without cancellation: 2 h / (1 + h), where h = tanh(-x / 2)."""
    h = F.tanh(F.mul(x, F.constant(value=np.asarray(-0.5, one.dtype.numpy))))
    found: Value = F.div(F.add(h, h), F.add(one, h))
    return found
