"""NumPy functions and operators with graph values make nodes, or raise an error that says what to use."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import NotAnArray, UsageError
from graphkit.ir.graph import Value

FLOATS = np.linspace(-1.6, 2.1, 8).astype(np.float32).reshape(2, 4)
INTS = np.array([3, -7, 8, 5], np.int32)
TRUTHS = np.array([True, False, True, False])
FEEDS = {"x": FLOATS, "i": INTS, "t": TRUTHS}


def inputs():
    return gk.input("x", ["N", 4]), gk.input("i", [4], dtype="int32"), gk.input("t", [4], dtype="bool")


def evaluated(value):
    assert isinstance(value, Value)
    net = gk.Model({"y": value})
    return net.run({name: FEEDS[name] for name in net.inputs})["y"]


ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge)
BESIDE_FLOATS = (
    np.arange(1, 5), np.arange(1.0, 5.0), np.float32(2), np.float64(2.5), np.float16(0.5), np.int64(3), [1, 2, 3, 4],
    np.arange(1, 5, dtype=np.float16),
)  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("other", BESIDE_FLOATS, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("function", [*ARITHMETIC, *COMPARISONS, operator.pow])
def test_arrays_and_scalars_beside_floats(function, other):
    x, _, _ = inputs()
    constant = np.asarray(other, np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(evaluated(function(x, other)), function(FLOATS, constant), rtol=1e-5)
        np.testing.assert_allclose(evaluated(function(other, x)), function(constant, FLOATS), rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize("function", [operator.add, operator.mul, operator.floordiv, operator.mod, *COMPARISONS])
@pytest.mark.parametrize("other", [np.array([2, 3, -4, 5]), np.int64(3), np.int8(-3)], ids=str)
def test_integers_beside_integers(function, other):
    _, i, _ = inputs()
    np.testing.assert_array_equal(evaluated(function(other, i)), function(other, INTS))
    np.testing.assert_array_equal(evaluated(function(i, other)), function(INTS, other))


@in_one_item()
@pytest.mark.parametrize("function", [operator.and_, operator.or_, operator.xor])
def test_bits_and_truth(function):
    _, i, t = inputs()
    np.testing.assert_array_equal(
        evaluated(function(np.array([6, 5, 3, 1]), i)), function(np.array([6, 5, 3, 1]), INTS)
    )
    np.testing.assert_array_equal(evaluated(function(~TRUTHS, t)), function(~TRUTHS, TRUTHS))
    np.testing.assert_array_equal(evaluated(~i), ~INTS)
    np.testing.assert_array_equal(evaluated(~t), ~TRUTHS)


def test_products_of_matrices():
    x, _, _ = inputs()
    w = np.arange(8.0).reshape(4, 2)
    np.testing.assert_allclose(evaluated(x @ w), FLOATS @ w, rtol=1e-6)
    np.testing.assert_allclose(evaluated(np.ones((3, 2)) @ x[:2]), np.ones((3, 2)) @ FLOATS, rtol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    "function",
    [np.exp, np.tanh, np.abs, np.negative, np.floor, np.rint, np.square, np.isnan, np.sign, np.arctan, np.positive],
    ids=lambda f: f.__name__,
)
def test_functions_of_one(function):
    x, _, _ = inputs()
    np.testing.assert_allclose(evaluated(function(x)), function(FLOATS), rtol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    "function",
    [np.maximum, np.minimum, np.fmod, np.equal, np.not_equal, np.multiply, np.greater],
    ids=lambda f: f.__name__,
)
def test_functions_of_two(function):
    x, _, _ = inputs()
    np.testing.assert_allclose(evaluated(function(x, 0.5)), function(FLOATS, np.float32(0.5)), rtol=1e-6)
    np.testing.assert_allclose(evaluated(function(np.ones(4), x)), function(np.ones(4, np.float32), FLOATS), rtol=1e-6)


@in_one_item()
@pytest.mark.parametrize(
    ("use", "hint"),
    [
        (lambda x, i: np.asarray(x), "not an array"),
        (lambda x, i: np.array([x, x]), "not an array"),
        (lambda x, i: np.concatenate([x, x]), "not an array"),
        (lambda x, i: np.add.reduce(x), "gk.reduce_sum"),
        (lambda x, i: np.sum(x), r"np\.sum \(np\.add\.reduce\).* use gk\.reduce_sum$"),
        (lambda x, i: np.max(x), r"np\.max .* use gk\.reduce_max$"),
        (lambda x, i: np.cbrt(x), "np.cbrt"),
        (lambda x, i: np.exp(x, where=TRUTHS), "gk.exp"),
        (lambda x, i: np.add(np.ones(4), x, out=np.ones((2, 4))), r"y = y \+ x"),
        (lambda x, i: operator.iadd(np.ones(4), x), r"y = y \+ x"),
    ],
)
def test_what_has_no_node_says_what_to_use(use, hint):
    x, i, _ = inputs()
    with pytest.raises(NotAnArray, match=hint) as caught:
        use(x, i)
    assert isinstance(caught.value, TypeError)


@in_one_item()
@pytest.mark.parametrize("other", [np.ones(4), np.float32(1.5), np.array([2**40]), np.array(["a"]), TRUTHS], ids=str)
def test_constants_that_would_lose_their_value(other):
    _, i, _ = inputs()
    with pytest.raises(UsageError, match=r"cannot be combined with i: int32\[4\]"):
        other * i
