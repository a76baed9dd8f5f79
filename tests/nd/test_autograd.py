"""Gradients of recorded operations: against differences in float64, requests, records, errors, higher orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import MissingGradient, TypeMismatch, UsageError
from graphkit.ops import apply
from graphkit.ops._base import declared

nd = gk.nd


def differences(function: Callable[..., Any], arrays: list[np.ndarray], weight: np.ndarray) -> list[np.ndarray]:
    """The gradients of sum(weight * function(*arrays)) by central differences."""
    found = []
    for i, array in enumerate(arrays):
        gradient = np.zeros_like(array)
        for place in np.ndindex(*array.shape):
            values = []
            for shift in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[i][place] += shift
                values.append(float((function(*map(nd.array, moved)).asnumpy() * weight).sum()))
            gradient[place] = (values[0] - values[1]) / 2e-6
        found.append(gradient)
    return found


def attention(q: Any, k: Any, v: Any) -> Any:
    return gk.softmax(q @ gk.transpose(k, perm=[1, 0]) * 0.5, axis=-1) @ v


def with_loop(x: Any, w: Any) -> Any:
    h = x
    for i in range(3):
        h = gk.tanh(h @ w) if i != 1 else h * h
    return h


# Functions of float64 matrices of 3x3.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b * 2.0,
    "product": lambda a, b: a * b - a / (b * b + 1.0),
    "power": lambda a, b: (a * a + 0.5) ** b,
    "matmul": lambda a, b: a @ b @ a,
    "broadcast": lambda a, b: a[0] * b + a[:, 1:2],
    "views": lambda a, b: a.reshape(9)[2:8].reshape(2, 3) @ b.T,
    "rows": lambda a, b: a[[0, 2, 0]] + b[np.array([1, 1, 2])],
    "places": lambda a, b: a[([0, 1, 2], [2, 1, 0])] * b[0],
    "twice": lambda a, b: gk.exp(a) * gk.exp(a) + a * b,
    "unary": lambda a, b: gk.sin(a) + gk.sigmoid(b) + gk.softplus(a) + gk.erf(b) + abs(a) + (-b),
    "reduce": lambda a, b: gk.reduce_mean(a, [0]) + gk.reduce_max(b, [1]) + gk.reduce_log_sum_exp(a),
    "attention": lambda a, b: attention(a, b, a),
    "loop": with_loop,
    "concat": lambda a, b: gk.concat([a, b, a], axis=1)[:, 2:7],
    "split": lambda a, b: gk.split(a @ b, [1, 2], axis=0)[1],
    "normalise": lambda a, b: gk.layer_normalization(a, b[0], b[1], axis=-1)[0],
    "where": lambda a, b: gk.where(a > b, a * 2.0, b * b),
    "conv": lambda a, b: gk.conv(a.reshape(1, 1, 3, 3), b.reshape(1, 1, 3, 3), pads=[1, 1, 1, 1]),
    "pool": lambda a, b: gk.average_pool((a * b).reshape(1, 1, 3, 3), kernel_shape=[2, 2]),
    "loss": lambda a, b: gk.softmax_cross_entropy_loss(a @ b, nd.array([0, 2, 1]))[0],
    "cumulative": lambda a, b: gk.cum_sum(a, 1) * gk.cum_sum(b, 0),
    "einsum": lambda a, b: gk.einsum([a, b], equation="ij,kj->ik"),
    "in a nested function": lambda a, b: nd.hybridize(attention)(a, b, a * b),
}


# They use methods of arrays, which values of graphs do not have.
EAGER_ONLY = {"views", "places", "rows", "pool", "conv", "loss"}
CASES = [(name, hybrid) for name in FUNCTIONS for hybrid in (False, True) if not (hybrid and name in EAGER_ONLY)]


@in_one_item()
@pytest.mark.parametrize(("name", "hybrid"), CASES)
def test_gradients_are_limits_of_differences(name: str, hybrid: bool) -> None:
    rng = np.random.default_rng(1)
    function = FUNCTIONS[name]
    if hybrid:
        function = nd.hybridize(function)
    arrays = [rng.standard_normal((3, 3)) for _ in range(2)]
    weight = rng.standard_normal(function(*map(nd.array, arrays)).shape)
    variables = [nd.array(a) for a in arrays]
    for x in variables:
        x.attach_grad()
    for _ in range(2):  # compiled, then from the cache
        with nd.record():
            y = function(*variables)
        y.backward(nd.array(weight))
        for x, expected in zip(variables, differences(function, arrays, weight), strict=True):
            np.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-5, atol=1e-7)


def test_requests_for_gradients() -> None:
    x, y, z = nd.array([1.0, 2.0]), nd.array([3.0, 4.0]), nd.array([5.0, 6.0])
    x.attach_grad()
    y.attach_grad("add")
    z.attach_grad("null")
    assert z.grad is None
    assert x.grad.asnumpy().tolist() == [0, 0]
    written = x.grad
    for turn in range(1, 4):
        with nd.record():
            loss = gk.reduce_sum(x * y * z)
        loss.backward()
        assert x.grad is written
        assert x.grad.asnumpy().tolist() == [15, 24]
        assert y.grad.asnumpy().tolist() == [5 * turn, 12 * turn]
    y.grad[:] = 0
    assert y.grad.asnumpy().tolist() == [0, 0]
    with pytest.raises(UsageError, match="grad_req must be"):
        x.attach_grad("sum")
    with pytest.raises(UsageError, match="only floating-point arrays have gradients"):
        nd.arange(3, dtype="int32").attach_grad()


def test_gradients_of_halves_have_their_dtype() -> None:
    for dtype in ("float16", "bfloat16", "float64"):
        x = nd.ones((2, 2), dtype)
        x.attach_grad()
        with nd.record():
            y = gk.reduce_sum(x * x)
        y.backward()
        assert x.grad.dtype == x.dtype
        assert x.grad.astype("float32").asnumpy().tolist() == [[2, 2], [2, 2]]


def test_operations_are_recorded_within_record_alone() -> None:
    x = nd.ones(2)
    x.attach_grad()
    assert not nd.is_recording()
    with nd.record():
        assert nd.is_recording()
        y = x * 2.0
        with nd.pause():
            assert not nd.is_recording()
            constant = y * 3.0
        z = gk.reduce_sum(y * constant)
    z.backward()
    assert x.grad.asnumpy().tolist() == [12, 12]
    for outside in (x * 1.0, constant, z.detach()):
        with pytest.raises(UsageError, match="does not depend on a recorded operation"):
            outside.backward()
    with nd.record():
        stopped = gk.reduce_sum(gk.stop_gradient(x) * x + x.detach())
    stopped.backward()
    assert x.grad.asnumpy().tolist() == [1, 1]


def test_control_flow_is_that_of_python() -> None:
    x = nd.array([1.5])
    x.attach_grad()
    for start, factor in ((1.5, 8.0), (0.2, 64.0)):
        x[:] = start
        with nd.record():
            y = x * 1.0
            while y.asscalar() < 10:
                y = y * 2.0
        y.backward()
        assert x.grad.asscalar() == factor


def test_several_heads_and_their_gradients() -> None:
    x = nd.array([1.0, 2.0])
    x.attach_grad()
    with nd.record():
        y, z = x * x, gk.reduce_sum(x * 3.0)
    nd.backward([y, z], [nd.array([10.0, 1.0]), None])
    assert x.grad.asnumpy().tolist() == [23, 7]
    with nd.record():
        y = x * x
    with pytest.raises(TypeMismatch, match="its gradient must have the same type"):
        y.backward(nd.ones(3))
    with pytest.raises(UsageError, match="1 head, but 2 gradients"):
        nd.backward(y, [nd.ones(2), nd.ones(2)])


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_record_is_released_unless_it_is_retained(hybrid: bool) -> None:
    x = nd.array([2.0])
    x.attach_grad("add")
    square = nd.hybridize(lambda v: v * v) if hybrid else lambda v: v * v
    with nd.record():
        y = square(x)
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.asscalar() == 12
    with pytest.raises(UsageError, match="has released what was recorded"):
        y.backward()


def test_writes_that_would_make_gradients_wrong_are_errors() -> None:
    x, w = nd.ones(2), nd.ones(2)
    w.attach_grad()
    with nd.record():
        y = w * x
        for write in (lambda: w.__iadd__(1.0), lambda: y.__setitem__(0, 1.0), lambda: x.__iadd__(y)):
            with pytest.raises(UsageError, match="cannot be written while operations are recorded"):
                write()
        z = gk.reduce_sum(y * y)
    x += 1  # the gradient of w reads it
    with pytest.raises(UsageError, match="was written after it was recorded"):
        z.backward()
    with nd.record():
        z = gk.reduce_sum(w + 1.0)
    w += 5  # the gradient does not read it
    z.backward()
    assert w.grad.asnumpy().tolist() == [1, 1]


def test_the_gradient_of_unrelated_variables_is_an_error() -> None:
    x, y = nd.ones(2), nd.ones(2)
    x.attach_grad()
    y.attach_grad()
    with nd.record():
        z = x * 2.0
    with pytest.raises(UsageError, match="the heads do not depend on"):
        nd.autograd.grad(z, y)


def test_gradients_of_gradients() -> None:
    x = nd.array([0.5, -1.5], "float64")
    x.attach_grad()
    with nd.record():
        y = gk.reduce_sum(gk.sin(x) * x)
        first = nd.autograd.grad(y, x, create_graph=True)
        z = gk.reduce_sum(first * first)
    z.backward()
    v = x.asnumpy()
    gradient, second = np.cos(v) * v + np.sin(v), 2 * np.cos(v) - v * np.sin(v)
    np.testing.assert_allclose(first.asnumpy(), gradient)
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * gradient * second)


def test_gradients_with_respect_to_intermediate_arrays() -> None:
    x = nd.array([1.0, 2.0])
    x.attach_grad()
    with nd.record():
        h = x * 3.0
        y = gk.reduce_sum(h * h)
    for_h, for_x = nd.autograd.grad(y, [h, x])
    assert for_h.asnumpy().tolist() == [6, 12]
    assert for_x.asnumpy().tolist() == [18, 36]
    assert x.grad.asnumpy().tolist() == [0, 0]


def test_the_gradient_of_a_function() -> None:
    product = nd.grad(lambda a, b, scale: gk.reduce_sum(a * a * b) * scale, argnums=(0, 1))
    a, b = nd.array([1.0, 2.0]), nd.array([3.0, 4.0])
    for_a, for_b = product(a, b, 10.0)
    assert for_a.asnumpy().tolist() == [60, 160]
    assert for_b.asnumpy().tolist() == [10, 40]
    assert nd.grad(gk.tanh)(nd.zeros(1)).asscalar() == 1
    assert a.grad is None


def test_variables_with_gradients_of_the_caller() -> None:
    x, into = nd.ones(3), nd.zeros(3)
    nd.autograd.mark_variables(x, into)
    with gk.autograd.record():
        y = x * 4.0
    gk.autograd.backward(y)
    assert into.asnumpy().tolist() == [4, 4, 4]
    with pytest.raises(UsageError, match="cannot be written to"):
        nd.autograd.mark_variables(x, nd.zeros(2))


@declared
class _WithoutGradient(gk.Op):
    inputs = ("x",)

    def infer(self, x: Any) -> Any:
        return x

    def reference(self, xp: Any, x: Any) -> Any:
        return x + 1


def test_operators_without_a_gradient() -> None:
    x = nd.ones((2, 2))
    x.attach_grad()
    with nd.record():
        y = gk.reduce_sum(gk.floor(x) + x)
    y.backward()
    assert x.grad.asnumpy().tolist() == [[1, 1], [1, 1]]
    with nd.record():
        y = apply(_WithoutGradient(), x)
    with pytest.raises(MissingGradient, match="no gradient rule for\\n  _WithoutGradient"):
        y.backward()
    with nd.record():
        y = nd.hybridize(lambda v: apply(_WithoutGradient(), v) * v)(x)
    for _ in range(2):
        assert y.asnumpy().tolist() == [[2, 2], [2, 2]]
    with pytest.raises(MissingGradient, match="no gradient rule for\\n  _WithoutGradient"):
        y.backward()
    nd.waitall()
    with nd.record(), pytest.raises(UsageError, match="depends on elements, so the call cannot be recorded"):
        gk.compress(x, nd.array([True, False]), axis=0)


def test_random_operators_draw_the_same_numbers_in_backward() -> None:
    x = nd.ones((40, 40))
    x.attach_grad()
    for function in (gk.dropout, nd.hybridize(gk.dropout)):
        masks = []
        for _ in range(2):
            with nd.record():
                y = function(x, 0.5, True)
                y = y[0] if isinstance(y, tuple) else y
            y.backward()
            np.testing.assert_array_equal(x.grad.asnumpy(), y.asnumpy())
            masks.append(y.asnumpy())
        assert set(np.unique(masks[0])) == {0, 2}
        assert not np.array_equal(*masks)


def test_a_network_learns() -> None:
    nd.random.seed(1)
    x = nd.random.uniform(-1, 1, (200, 2))
    t = gk.cast(x[:, :1] * x[:, 1:] > 0, to="float32")
    sizes = [(2, 16), (16,), (16, 1), (1,)]
    weights = [nd.random.normal(0, 0.7, s) for s in sizes]
    for w in weights:
        w.attach_grad()
    for _ in range(300):
        with nd.record():
            w1, b1, w2, b2 = weights
            y = gk.sigmoid(gk.tanh(x @ w1 + b1) @ w2 + b2)
            loss = gk.reduce_mean((y - t) ** 2)
        loss.backward()
        for w in weights:
            w -= 3.0 * w.grad
    assert loss.asscalar() < 0.03
