"""Functions of numpy on arrays: the results of numpy, and gradients or an error while operations are recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

nd = gk.nd

DIFFERENTIABLE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "log1p": (np.log1p, lambda x: 1 / (1 + x)),
    "expm1": (np.expm1, np.exp),
    "square": (np.square, lambda x: 2 * x),
    "sum": (lambda x: np.sum(x, axis=-1, keepdims=True), np.ones_like),
    "max": (np.max, lambda x: x == x.max()),
    "min": (lambda x: np.min(x, axis=(0,)), lambda x: x == x.min()),
    "prod": (np.prod, lambda x: x.prod() / x),
    "reduce": (np.add.reduce, np.ones_like),
    "copy": (copy.copy, np.ones_like),
    "mean": (np.mean, lambda x: np.full_like(x, 1 / x.size)),
    "sum in float64": (lambda x: np.sum(x, dtype=np.float64), np.ones_like),
    "var": (np.var, lambda x: 2 * (x - x.mean()) / x.size),
    "std": (np.std, lambda x: (x - x.mean()) / x.size / x.std()),
    "concatenate": (lambda x: np.concatenate([x, x]), lambda x: np.full_like(x, 2)),
    "stack": (lambda x: np.stack([x, x], 1), lambda x: np.full_like(x, 2)),
    "where": (lambda x: np.where(x > 0, x, 0), lambda x: x > 0),
    "clip": (lambda x: np.clip(x, -0.5, 0.6), lambda x: (x > -0.5) & (x < 0.6)),
    "dot": (lambda x: np.dot(x, x), lambda x: 2 * x),
    "expand_dims": (lambda x: np.expand_dims(x, (0, 2)), np.ones_like),
    "cumsum": (np.cumsum, lambda x: np.arange(x.size, 0, -1)),
    "take": (lambda x: np.take(x, [0, 0, 1]), lambda x: np.array([2, 1, 0, 0, 0, 0])),
    "repeat": (lambda x: np.repeat(x, 3), lambda x: np.full_like(x, 3)),
    "ravel": (lambda x: np.ravel(x.reshape(2, 3).T), np.ones_like),
    "squeeze": (lambda x: np.squeeze(x[None]), np.ones_like),
    "swapaxes": (lambda x: np.swapaxes(x.reshape(2, 3), 0, -1), np.ones_like),
}


@in_one_item()
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_pass_through(name: str) -> None:
    function, gradient = DIFFERENTIABLE[name]
    elements = np.array([1e-9, -0.3, 0.499, 0.7, 40.0, -0.999])
    x = nd.array(elements)
    x.attach_grad()
    with nd.record():
        y = function(x)
    np.testing.assert_allclose(y.asnumpy(), function(elements), rtol=1e-14)
    assert isinstance(y, nd.NDArray)
    y.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), gradient(elements), rtol=1e-12)


def test_log1p_and_expm1_at_the_ends() -> None:
    elements = np.array([0.0, -1.0, np.inf, -np.inf, np.nan, 1e30, -40.0, -2.0], np.float32)
    with np.errstate(all="ignore"):
        for function in (np.log1p, np.expm1):
            np.testing.assert_allclose(function(nd.array(elements)).asnumpy(), function(elements), rtol=1e-6)


def test_other_functions_refuse_arrays_with_gradients() -> None:
    x = nd.array([1.0, 2.0])
    x.attach_grad()
    functions: list[Callable[[], Any]] = [
        lambda: np.cbrt(x),
        lambda: np.median(x),
        lambda: np.concatenate([np.ones(2), x * 2.0]),
        lambda: np.add.outer(x, x),
        lambda: np.hypot(np.ones(2), x),
        lambda: np.sum(x, initial=1.0),
        lambda: np.where([True, False], x, np.ones(2)),
    ]
    for function in functions:
        with nd.record(), pytest.raises(UsageError, match="gradients do not pass"):
            function()
        assert isinstance(function(), (np.ndarray, np.generic))
    with nd.record():
        assert np.shape(x) == (2,)
        assert np.isfinite(x).all()
        assert np.argmax(x) == 1
        assert np.zeros_like(x).tolist() == [0, 0]
        assert np.cbrt(x.detach()).shape == (2,)


def test_numpy_does_not_write_to_arrays() -> None:
    a = nd.array([1.0, -1.0])
    with pytest.raises(UsageError, match=r"np.add.at cannot write"):
        np.add.at(a, [0], 1.0)
    with pytest.raises(UsageError, match="cannot write"):
        np.add(np.ones(2), np.ones(2), out=a)
    for function in (lambda: np.clip(a, 0, 1, out=a), lambda: np.einsum("i->i", a, out=a), lambda: np.mean(a, out=a)):
        with pytest.raises(UsageError, match="cannot write to an NDArray"):
            function()
    found = np.add(a, a, where=a > 0, out=np.zeros(2, np.float32))
    assert found.tolist() == [2, 0]
    assert np.sum(nd.array([1, 2, 3])) == 6


def test_take_copies_and_counts_booleans_as_numbers() -> None:
    a = nd.arange(6).reshape(2, 3)
    for indices, axis in ((1, 0), (2, None), (-1, 1), ([True, False], 1), ([], 0), (np.int8(1), 0)):
        for mode in ("raise", "wrap", "clip"):
            found = a.take(indices, axis, mode=mode)
            assert found.tolist() == a.asnumpy().take(np.array(indices, int), axis, mode=mode).tolist()
            found[...] = 9
    assert a.tolist() == [[0, 1, 2], [3, 4, 5]]
    for wrong, axis, mode in ((slice(0, 1), 0, "raise"), (None, 0, "raise"), ([0.5], 0, "wrap"), (6, None, "raise")):
        with pytest.raises(UsageError, match="take of array"):
            a.take(wrong, axis, mode=mode)
    with pytest.raises(UsageError, match="mode must be"):
        nd.zeros(0).take([], mode="none")
    assert nd.hybridize(lambda x: x + a.take(1, 0))(nd.ones(3)).tolist() == [4, 5, 6]


def test_dot_refuses_numbers_of_another_kind() -> None:
    half = np.full((2, 3, 2), 0.5)
    assert nd.ones(3).dot(half).tolist() == [[1.5, 1.5], [1.5, 1.5]]
    with pytest.raises(UsageError, match="cannot be combined"):
        nd.ones(3, "int32").dot(half)


def test_where_of_booleans_and_numbers() -> None:
    mask = np.array([True, False])
    for number in (300, -1, 0.5, True):
        found = np.where(nd.array(mask), nd.array(mask), number)
        np.testing.assert_array_equal(np.asarray(found), np.where(mask, mask, number), strict=True)


def test_a_float_operand_keeps_its_gradient() -> None:
    """Only operands that the shape of the result depends on become part of the program."""
    x, v = nd.ones(3), nd.full((), 2.0)
    v.attach_grad()
    for pads in ([1, 1], nd.array([1, 1])):
        v.grad[...] = 7
        with nd.record():
            y = gk.reduce_sum(gk.pad(x, pads, v))
        y.backward()
        assert (y.asscalar(), v.grad.asscalar()) == (7, 2)
    stop = nd.full((), 3.0)
    assert gk.range(nd.full((), 0.0), stop, nd.full((), 1.0)).shape == (3,)
    stop.attach_grad()
    with nd.record(), pytest.raises(UsageError, match=r"Range: the shape of the result depends"):
        gk.range(nd.full((), 0.0), stop, nd.full((), 1.0))
