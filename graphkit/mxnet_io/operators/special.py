"""gamma, gammaln and erfinv, from the operators of ONNX. They are computed in float64."""

from __future__ import annotations

import math

from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, converter, scalar
from graphkit.ops import F

# Lanczos's series for g = 7: relative errors of log(gamma(x)) near 1e-15 for x >= 0.5 (Godfrey 2001).
_G = 7.0
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def log_gamma(x: Value) -> Value:
    """log |gamma(x)| of float64. Below 0.5: log(pi / |sin(pi x)|) - log gamma(1 - x)."""
    left = F.less(x, scalar(0.5, x))
    z = F.sub(F.where(left, F.sub(scalar(1.0, x), x), x), scalar(1.0, x))
    total = scalar(_LANCZOS[0], x)
    for i, coefficient in enumerate(_LANCZOS[1:], 1):
        total = F.add(total, F.div(scalar(coefficient, x), F.add(z, scalar(float(i), x))))
    t = F.add(z, scalar(_G + 0.5, x))
    found = F.add(
        F.sub(F.mul(F.add(z, scalar(0.5, x)), F.log(t)), t),
        F.add(F.log(total), scalar(0.5 * math.log(2 * math.pi), x)),
    )
    # The distance from the nearest integer keeps the digits of sin(pi x) near the poles.
    distance = F.sub(x, F.round(x))
    sine = F.abs(F.sin(F.mul(distance, scalar(math.pi, x))))
    reflected = F.sub(F.sub(scalar(math.log(math.pi), x), F.log(sine)), found)
    infinite = F.is_inf(x)
    result: Value = F.where(infinite, scalar(math.inf, x), F.where(left, reflected, found))
    return result


@converter("gammaln", "_npx_gammaln", "_sparse_gammaln")
def gammaln(call: Call) -> Value:
    x = call.x
    result: Value = F.cast(log_gamma(F.cast(x, to="float64")), to=x.dtype)
    return result


@converter("gamma", "_npx_gamma", "_sparse_gamma")
def gamma(call: Call) -> Value:
    """Negative where floor(x) is odd and x < 0; NaN at negative integers."""
    x = call.x
    wide = F.cast(x, to="float64")
    zero, below = scalar(0.0, wide), F.floor(wide)
    size = F.exp(log_gamma(wide))
    odd = F.not_(F.equal(F.mod(below, scalar(2.0, wide), fmod=True), zero))
    negative = F.less(wide, zero)
    signed = F.where(F.and_(negative, odd), F.neg(size), size)
    pole = F.and_(negative, F.equal(below, wide))
    result: Value = F.cast(F.where(pole, scalar(math.nan, wide), signed), to=x.dtype)
    return result


# Coefficients of Giles, "Approximating the erfinv function" (2010), highest power first: for w < 5 in w - 2.5, else in
# sqrt(w) - 3, with w = -log(1 - x^2).
_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], x: Value) -> Value:
    total = scalar(coefficients[0], x)
    for coefficient in coefficients[1:]:
        total = F.add(F.mul(total, x), scalar(coefficient, x))
    return total


@converter("erfinv", "_npx_erfinv")
def erfinv(call: Call) -> Value:
    """The inverse of erf: infinite at 1 and -1, NaN beyond."""
    x = call.x
    wide = F.cast(x, to="float64")
    one = scalar(1.0, wide)
    size = F.abs(wide)
    inside = F.where(F.less(size, one), wide, scalar(0.0, wide))
    w = F.neg(F.log(F.mul(F.sub(one, inside), F.add(one, inside))))
    central = _polynomial(_CENTRAL, F.sub(w, scalar(2.5, w)))
    tail = _polynomial(_TAIL, F.sub(F.sqrt(F.max(w, scalar(5.0, w))), scalar(3.0, w)))
    found = F.mul(F.where(F.less(w, scalar(5.0, w)), central, tail), inside)
    edge = F.mul(F.sign(wide), scalar(math.inf, wide))
    outside = F.where(F.equal(size, one), edge, scalar(math.nan, wide))
    result: Value = F.cast(F.where(F.less(size, one), found, outside), to=x.dtype)
    return result
