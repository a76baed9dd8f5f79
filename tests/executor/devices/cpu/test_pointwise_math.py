"""The machine's elementary functions against results of more digits, in units of the last place."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.special
from combinations import in_one_item

from graphkit.executor.devices.cpu import native


def apply(opcode, *operands):
    dtype = operands[0].dtype.name
    kernel = native.Pointwise(
        opcode,
        operands[0].shape,
        inputs=[(x.shape, dtype) for x in operands],
        constants=[],
        instructions=[(opcode, list(range(len(operands))), "")],
        outputs=[(len(operands), dtype)],
        threads=2,
    )
    y = np.empty_like(operands[0])
    kernel(list(operands), [y])
    return y


def ulps(got, exact):
    """The largest error in units of the last place of the correctly rounded result; infinities and NaN must agree."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(got[~finite], rounded[~finite])
        unit = np.spacing(np.abs(rounded[finite])).astype(exact.dtype)
        errors = np.abs(got[finite].astype(exact.dtype) - exact[finite]) / unit
    return float(errors.max()) if errors.size else 0.0


def spread(low, high, count=200_000, dtype=np.float32):
    """Numbers in [low, high]: evenly spaced, and on both sides of zero down to the smallest exponents."""
    rng = np.random.default_rng(0)
    even = np.linspace(low, high, count)
    small = 10.0 ** rng.uniform(-44 if dtype is np.float32 else -300, 0, count // 2) * rng.choice([-1, 1], count // 2)
    both = np.concatenate([even, small, [0.0, -0.0, low, high]]).astype(dtype)
    return both[(both >= low) & (both <= high)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * scipy.special.erfc(-x / np.sqrt(2.0))


def gelu_tanh(x):
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return x * sigmoid(2 * u)


def softplus(x):
    return np.logaddexp(x, 0)


def softsign(x):
    return x / (1 + np.abs(x))


def mish(x):
    e = np.exp(np.minimum(x, 100))
    return x * (e * (e + 2) / (e * (e + 2) + 2))


# opcode, exact function of float64, range, units of the last place
FLOAT_BOUNDS = [
    ("exp", np.exp, (-104, 89), 1.5),
    ("expm1", np.expm1, (-104, 64), 3),
    ("log", np.log, (0, 3.4e38), 1.5),
    ("log", np.log, (0.5, 2), 1.5),
    ("tanh", np.tanh, (-50, 50), 3),
    ("sigmoid", sigmoid, (-110, 110), 3),
    ("erf", scipy.special.erf, (-10, 10), 3),
    ("sin", np.sin, (-100, 100), 1),
    ("cos", np.cos, (-100, 100), 1),
    ("sin", np.sin, (-3e7, 3e7), 1),
    ("cos", np.cos, (-3e7, 3e7), 1),
    ("softplus", softplus, (-80, 80), 4),
    ("mish", mish, (-80, 80), 6),
    ("softsign", softsign, (-50, 50), 1.5),
    ("softsign", softsign, (-1e-38, 1e-38), 1.5),
    ("softsign", softsign, (-3.4e38, 3.4e38), 1.5),
    ("gelu", gelu, (-4, 40), 8),
    ("gelu", gelu, (-12, -4), 12),
    ("gelu_tanh", gelu_tanh, (-1, 40), 4),
    ("gelu_tanh", gelu_tanh, (-5, -1), 48),  # the exponential magnifies the rounding of its argument
    ("sqrt", np.sqrt, (0, 3.4e38), 0.5),
    ("atan", np.arctan, (-3, 3), 2),
    ("atan", np.arctan, (-3.4e38, 3.4e38), 2),
    ("asin", np.arcsin, (-1, 1), 2),
    ("acos", np.arccos, (-1, 1), 2),
    ("sinh", np.sinh, (-90, 90), 2.5),
    ("sinh", np.sinh, (-2, 2), 2.5),
    ("cosh", np.cosh, (-90, 90), 2),
    ("tan", np.tan, (-100, 100), 1),
    ("tan", np.tan, (-3e7, 3e7), 1),
    ("asinh", np.arcsinh, (-3, 3), 1),
    ("asinh", np.arcsinh, (-3.4e38, 3.4e38), 1),
    ("acosh", np.arccosh, (1, 3), 1),
    ("acosh", np.arccosh, (1, 3.4e38), 1),
    ("atanh", np.arctanh, (-1, 1), 1),
]


@in_one_item()
@pytest.mark.parametrize(
    ("opcode", "exact", "limits", "bound"), FLOAT_BOUNDS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_float_functions(opcode, exact, limits, bound, every_isa):
    x = spread(*limits)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
    assert ulps(apply(opcode, x), expected) <= bound


ALL_FLOATS = {
    "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos, "sinh": np.sinh, "cosh": np.cosh, "tan": np.tan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("opcode", ALL_FLOATS)
def test_functions_of_all_exponents(opcode, every_isa):
    """The bits of the operands are evenly spaced: subnormal numbers, infinities and NaN are among them."""
    bits = np.concatenate([np.arange(0, 1 << 32, 65521), np.array([0x7F800000, 0xFF800000, 0x7FC00000, 1 << 31])])
    x = bits.astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        expected = ALL_FLOATS[opcode](x.astype(np.float64))
    got = apply(opcode, x)
    assert ulps(got, expected) <= 2
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def remainder_operands():
    """Operands with quotients of all sizes: below 1, integers and their neighbours, and far above 2^29."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, (2, 40_000), np.uint32).view(np.float32)
    b = rng.standard_normal(60_000).astype(np.float32)
    near = b * rng.integers(1, 1 << 29, b.size).astype(np.float32)
    near = np.nextafter(near, rng.choice(np.array([-np.inf, 0, np.inf], np.float32), b.size))
    special = np.array([0, -0.0, 1, -1, 3, 1e-45, -1e-45, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    return np.concatenate([bits, [near, b], pairs, [b, -b]], axis=1, dtype=np.float32)


@in_one_item()
@pytest.mark.parametrize(("opcode", "exact"), [("fmod", np.fmod), ("mod", np.mod)])
def test_float_remainders_are_exact(opcode, exact, every_isa):
    a, b = remainder_operands()
    with np.errstate(all="ignore"):
        expected = exact(a, b)
    got = apply(opcode, a, b)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


def test_float_powers(isa):
    rng = np.random.default_rng(1)
    a = np.exp(rng.uniform(-80, 80, 400_000)).astype(np.float32)
    b = (rng.uniform(-88, 88, a.size) / np.log(a.astype(float))).astype(np.float32)
    near = (1 + rng.uniform(-1e-3, 1e-3, a.size)).astype(np.float32)
    with np.errstate(all="ignore"):
        assert ulps(apply("pow", a, b), a.astype(float) ** b.astype(float)) <= 1
        far = rng.uniform(-8e4, 8e4, a.size).astype(np.float32)
        assert ulps(apply("pow", near, far), near.astype(float) ** far.astype(float)) <= 1
        whole = np.rint(rng.uniform(-9, 9, a.size)).astype(np.float32)
        negative = -np.exp(rng.uniform(-5, 5, a.size)).astype(np.float32)
        assert ulps(apply("pow", negative, whole), negative.astype(float) ** whole.astype(float)) <= 1


def erf_of_more_digits(x):
    """2 / sqrt(pi) times the Taylor series, with fifty digits."""
    with localcontext() as context:
        context.prec = 50
        value = Decimal(float(x))
        term, total, n = value, value, 0
        while abs(term) > Decimal(10) ** -45 * abs(total):
            n += 1
            term = -term * value * value / n
            total += term / (2 * n + 1)
            if n > 400:
                break
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582")
        return np.longdouble(str(total * 2 / pi.sqrt()))


def exact_sigmoid(x):
    return 1 / (1 + np.exp(-x))


DOUBLE_BOUNDS = [
    ("exp", np.exp, (-745, 709), 1.5),
    ("expm1", np.expm1, (-60, 64), 3),
    ("log", np.log, (0, 1.7e308), 2),
    ("log", np.log, (0.5, 2), 2),
    ("tanh", np.tanh, (-50, 50), 3),
    ("sigmoid", exact_sigmoid, (-740, 740), 3),
    ("sin", np.sin, (-1e5, 1e5), 1),
    ("cos", np.cos, (-1e5, 1e5), 1),
    ("cosh", np.cosh, (-711, 711), 2),
]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double has no more digits than double here")
@in_one_item()
@pytest.mark.parametrize(
    ("opcode", "exact", "limits", "bound"), DOUBLE_BOUNDS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_double_functions(opcode, exact, limits, bound, isa):
    x = spread(*limits, count=50_000, dtype=np.float64)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.longdouble))
    assert ulps(apply(opcode, x), expected) <= bound


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double has no more digits than double here")
def test_double_powers():
    rng = np.random.default_rng(2)
    a = np.exp(rng.uniform(-300, 300, 20_000))
    b = rng.uniform(-700, 700, a.size) / np.log(a)
    expected = np.power(a.astype(np.longdouble), b.astype(np.longdouble))
    assert ulps(apply("pow", a, b), expected) <= 1.5


def test_double_erf():
    x = np.concatenate([np.linspace(-5.5, 5.5, 301), 10.0 ** np.linspace(-300, -1, 50)])
    expected = np.array([erf_of_more_digits(v) for v in x])
    assert ulps(apply("erf", x), expected) <= 2


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("opcode", "results"),
    [  # of 0, -0, inf, -inf, nan
        ("exp", (1, 1, np.inf, 0, np.nan)),
        ("log", (-np.inf, -np.inf, np.inf, np.nan, np.nan)),
        ("tanh", (0, -0.0, 1, -1, np.nan)),
        ("sigmoid", (0.5, 0.5, 1, 0, np.nan)),
        ("erf", (0, -0.0, 1, -1, np.nan)),
        ("sin", (0, -0.0, np.nan, np.nan, np.nan)),
        ("cos", (1, 1, np.nan, np.nan, np.nan)),
        ("sqrt", (0, -0.0, np.inf, np.nan, np.nan)),
        ("softplus", (math.log(2), math.log(2), np.inf, 0, np.nan)),
        ("softsign", (0, -0.0, np.nan, np.nan, np.nan)),
        ("floor", (0, -0.0, np.inf, -np.inf, np.nan)),
        ("ceil", (0, -0.0, np.inf, -np.inf, np.nan)),
        ("round", (0, -0.0, np.inf, -np.inf, np.nan)),
    ],
)
def test_special_numbers(opcode, results, dtype, isa):
    got = apply(opcode, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], dtype))
    expected = np.array(results, dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_powers(dtype, isa):
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, -2.5, 2.0**24, 1e30]
    a, b = (x.ravel() for x in np.meshgrid(np.array(special, dtype), np.array(special, dtype)))
    with np.errstate(all="ignore"):
        expected = np.power(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
    got = apply("pow", a, b)
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("opcode", "exact"), [("floor", np.floor), ("ceil", np.ceil), ("round", np.rint)])
def test_rounding(opcode, exact, dtype, isa):
    edge = 2.0 ** (np.finfo(dtype).nmant + 1)
    near = np.concatenate([k * edge + np.arange(-8, 9) for k in (-1, -0.5, -0.25, 0.25, 0.5, 1)])
    x = np.concatenate([np.arange(-40, 41) / 8, near, near / 2, near / 4]).astype(dtype)
    np.testing.assert_array_equal(apply(opcode, x), exact(x))
