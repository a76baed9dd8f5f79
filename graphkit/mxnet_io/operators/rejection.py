"""Random numbers of gamma, Poisson and negative binomial distributions, computed in float64.

Candidates are drawn in a loop until all elements have one that is accepted. Parameters outside of their range give NaN.
A gamma distribution with a shape of 0 gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from graphkit.frontend.control import while_loop
from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.mxnet_io.operators.special import log_gamma
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, constant
from graphkit.passes.core.match import array_of

# More iterations than any draw needs: a candidate is accepted with a probability above 0.7.
_MOST = 200
# Poisson numbers of a smaller rate are found by inversion, the others by rejection.
_LARGE_RATE = 10.0


class Source(NamedTuple):
    """Draws numbers of a given shape.

    Attributes:
        draw: Draws with an operator, random_uniform or random_normal, in an element type.
        dtype: Element type of the numbers, float32 or float64. In a half type, a uniform number can be 1.
    """

    draw: Callable[[str, DType], Value]
    dtype: DType

    def uniform(self) -> Value:
        """Numbers on [0, 1)."""
        return self.draw("random_uniform", self.dtype)

    def normal(self) -> Value:
        """Numbers with mean 0 and standard deviation 1."""
        return self.draw("random_normal", self.dtype)


def _number(x: float) -> Value:
    return constant(np.float64(x))


def any_of(mask: Value) -> Value:
    """Return whether an element is true, as a scalar."""
    result: Value = F.greater(F.reduce_max(F.cast(mask, to=np.int32), keepdims=False), np.int32(0))
    return result


def _accepted(draw: Callable[[], tuple[Value, Value]], impossible: Value) -> Value:
    """Repeat a draw of (candidate, whether it is accepted) until each element has an accepted candidate.

    impossible: the elements that never have one. They become NaN.
    """

    def step(state: list[Value]) -> list[Value]:
        done, found = state
        candidate, accept = draw()
        return [F.or_(done, accept), F.where(F.and_(F.not_(done), accept), candidate, found)]

    start = [impossible, F.expand(_number(np.nan), F.shape(impossible))]
    _, found = while_loop(lambda state: any_of(F.not_(state[0])), step, start, maximum_iterations=_MOST)
    result: Value = found
    return result


def _gamma(source: Source, shape: Value, scale: Value) -> Value:
    """Draw by the method of Marsaglia and Tsang (2000). A shape below 1 is drawn as shape + 1, times a power."""
    rest = F.sub(_number(1.0), source.uniform())
    shape = F.expand(shape, F.shape(rest))
    below = F.less(shape, _number(1.0))
    d = F.sub(F.where(below, F.add(shape, _number(1.0)), shape), _number(1 / 3))
    c = F.reciprocal(F.sqrt(F.mul(d, _number(9.0))))

    def draw() -> tuple[Value, Value]:
        x = source.normal()
        root = F.add(F.mul(c, x), _number(1.0))
        v = F.mul(root, F.mul(root, root))
        bound = F.add(F.mul(_number(0.5), F.mul(x, x)), F.mul(d, F.add(F.sub(_number(1.0), v), F.log(v))))
        u = F.sub(_number(1.0), source.uniform())
        return F.mul(d, v), F.and_(F.greater(v, _number(0.0)), F.less(F.log(u), bound))

    found = _accepted(draw, F.not_(F.greater_or_equal(shape, _number(0.0))))
    found = F.where(below, F.mul(found, F.pow(rest, F.reciprocal(shape))), found)
    result: Value = F.mul(found, F.where(F.less(scale, _number(0.0)), _number(np.nan), scale))
    return result


def _few(source: Source, rate: Value) -> Value:
    """Draw Poisson numbers by inversion: count until the sum of probabilities exceeds a uniform number."""
    u = source.uniform()

    def step(state: list[Value]) -> list[Value]:
        count, probability, total = state
        runs = F.less(total, u)
        count = F.where(runs, F.add(count, _number(1.0)), count)
        probability = F.where(runs, F.div(F.mul(probability, rate), count), probability)
        return [count, probability, F.where(runs, F.add(total, probability), total)]

    none = F.expand(F.exp(F.neg(rate)), F.shape(u))
    start = [F.mul(u, _number(0.0)), none, none]
    found = while_loop(lambda state: any_of(F.less(state[2], u)), step, start, maximum_iterations=_MOST)
    result: Value = found[0]
    return result


def _many(source: Source, rate: Value) -> Value:
    """Draw Poisson numbers of a rate of at least 10 by transformed rejection (PTRS, Hoermann 1993)."""
    log_rate, root = F.log(rate), F.sqrt(rate)
    b = F.add(_number(0.931), F.mul(_number(2.53), root))
    a = F.add(_number(-0.059), F.mul(_number(0.02483), b))
    inverse = F.add(_number(1.1239), F.div(_number(1.1328), F.sub(b, _number(3.4))))
    limit = F.sub(_number(0.9277), F.div(_number(3.6224), F.sub(b, _number(2.0))))

    def draw() -> tuple[Value, Value]:
        u, v = F.sub(source.uniform(), _number(0.5)), F.sub(_number(1.0), source.uniform())
        near = F.sub(_number(0.5), F.abs(u))
        slope = F.add(F.div(F.mul(_number(2.0), a), near), b)
        k = F.floor(F.add(F.mul(slope, u), F.add(rate, _number(0.43))))
        at_once = F.and_(F.greater_or_equal(near, _number(0.07)), F.less_or_equal(v, limit))
        possible = F.and_(
            F.greater_or_equal(k, _number(0.0)),
            F.not_(F.and_(F.less(near, _number(0.013)), F.greater(v, near))),
        )
        left = F.log(F.div(F.mul(v, inverse), F.add(F.div(a, F.mul(near, near)), b)))
        right = F.sub(F.sub(F.mul(k, log_rate), rate), log_gamma(F.add(F.max(k, _number(0.0)), _number(1.0))))
        return k, F.or_(at_once, F.and_(possible, F.less_or_equal(left, right)))

    return _accepted(draw, F.not_(F.greater_or_equal(F.expand(rate, F.shape(source.uniform())), _number(0.0))))


def _poisson(source: Source, rate: Value) -> Value:
    border, known = _number(_LARGE_RATE), array_of(rate)
    if known is not None and np.all((known >= 0) & (known < _LARGE_RATE)):
        return _few(source, rate)
    few, many = _few(source, F.clip(rate, _number(0.0), border)), _many(source, F.max(rate, border))
    valid = F.greater_or_equal(rate, _number(0.0))
    result: Value = F.where(valid, F.where(F.less(rate, border), few, many), _number(np.nan))
    return result


def _negative_binomial(source: Source, count: Value, chance: Value) -> Value:
    possible = F.and_(F.greater(chance, _number(0.0)), F.less_or_equal(chance, _number(1.0)))
    chance = F.where(possible, chance, _number(np.nan))
    rate = _gamma(source, count, F.div(F.sub(_number(1.0), chance), chance))
    return _poisson(source, rate)


def _generalized_negative_binomial(source: Source, mean: Value, alpha: Value) -> Value:
    """Poisson numbers whose rate has a gamma distribution of this mean and the variance alpha mean^2."""
    none = F.equal(alpha, _number(0.0))
    spread = F.where(none, _number(1.0), alpha)
    rate = F.where(none, mean, _gamma(source, F.reciprocal(spread), F.mul(spread, mean)))
    return _poisson(source, rate)


def _cast(function: Callable[..., Value], source: Source, parameters: Sequence[Value]) -> Value:
    """Draw in float64. The numbers have no gradient."""
    exact = Source(source.draw, DType.FLOAT64)
    result: Value = F.stop_gradient(function(exact, *(F.cast(p, to=DType.FLOAT64) for p in parameters)))
    return result


gamma = partial(_cast, _gamma)
poisson = partial(_cast, _poisson)
negative_binomial = partial(_cast, _negative_binomial)
generalized_negative_binomial = partial(_cast, _generalized_negative_binomial)
