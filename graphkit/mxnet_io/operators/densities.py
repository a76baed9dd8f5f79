"""Densities of probability distributions (_random_pdf_*). They are computed in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, converter, scalar
from graphkit.mxnet_io.operators.special import log_gamma
from graphkit.ops import F
from graphkit.ops.axes import i64

# The samples and the parameters of a distribution, which are broadcast -> the logarithm of the density.
_Density = Callable[..., Value]


def _normal(x: Value, mean: Value, deviation: Value) -> Value:
    z = F.div(F.sub(x, mean), deviation)
    square = F.mul(scalar(-0.5, z), F.mul(z, z))
    result: Value = F.sub(square, F.add(F.log(deviation), scalar(0.5 * math.log(2 * math.pi), z)))
    return result


def _uniform(x: Value, low: Value, high: Value) -> Value:
    """The same density for samples outside of low and high, as in MXNet."""
    result: Value = F.add(F.mul(x, scalar(0.0, x)), F.neg(F.log(F.sub(high, low))))
    return result


def _exponential(x: Value, rate: Value) -> Value:
    result: Value = F.sub(F.log(rate), F.mul(rate, x))
    return result


def _gamma(x: Value, alpha: Value, beta: Value) -> Value:
    """beta: the rate."""
    powers = F.add(F.mul(alpha, F.log(beta)), F.mul(F.sub(alpha, scalar(1.0, x)), F.log(x)))
    result: Value = F.sub(F.sub(powers, F.mul(beta, x)), log_gamma(alpha))
    return result


def _poisson(x: Value, rate: Value) -> Value:
    result: Value = F.sub(F.sub(F.mul(x, F.log(rate)), log_gamma(F.add(x, scalar(1.0, x)))), rate)
    return result


def _negative_binomial(x: Value, count: Value, p: Value) -> Value:
    one = scalar(1.0, x)
    ways = F.sub(F.sub(log_gamma(F.add(x, count)), log_gamma(F.add(x, one))), log_gamma(count))
    result: Value = F.add(ways, F.add(F.mul(count, F.log(p)), F.mul(x, F.log(F.sub(one, p)))))
    return result


def _generalized_negative_binomial(x: Value, mean: Value, alpha: Value) -> Value:
    one = scalar(1.0, x)
    return _negative_binomial(x, F.div(one, alpha), F.div(one, F.add(F.mul(mean, alpha), one)))


def _dirichlet(x: Value, alpha: Value) -> Value:
    """x: [..., samples, K]; alpha: [..., K]."""
    powers = F.reduce_sum(F.mul(F.sub(alpha, scalar(1.0, x)), F.log(x)), i64(-1), keepdims=False)
    of_sum = log_gamma(F.reduce_sum(alpha, i64(-1), keepdims=False))
    result: Value = F.add(powers, F.sub(of_sum, F.reduce_sum(log_gamma(alpha), i64(-1), keepdims=False)))
    return result


def _converted(density: _Density, axis: int, call: Call) -> Value:
    """axis: where the parameters lack the axis of samples."""
    x = call.x
    parameters = [F.unsqueeze(F.cast(p, to="float64"), i64(axis)) for p in call.operands()[1:]]
    found = density(F.cast(x, to="float64"), *parameters)
    result: Value = F.cast(found if call.attributes.flag("is_log", False) else F.exp(found), to=x.dtype)
    return result


_DENSITIES: dict[str, _Density] = {
    "normal": _normal, "uniform": _uniform, "exponential": _exponential, "gamma": _gamma, "poisson": _poisson,
    "negative_binomial": _negative_binomial, "generalized_negative_binomial": _generalized_negative_binomial,
    "dirichlet": _dirichlet,
}  # fmt: skip
for _name, _density in _DENSITIES.items():
    _axis = -2 if _name == "dirichlet" else -1
    converter(f"_random_pdf_{_name}", f"random_pdf_{_name}")(partial(_converted, _density, _axis))
