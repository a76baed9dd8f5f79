"""Hybridized functions: one program for each combination of types, with the results of the operators one by one."""

from __future__ import annotations

import copy
import importlib
import operator as operators
import pickle
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.nd.operators import immediate

nd = gk.nd
backward: Any = importlib.import_module("graphkit.nd.backward")  # gk.nd.backward is the function


def test_functions_are_traced_once_for_argument_types() -> None:
    traced = []

    @nd.hybridize
    def scaled(x: Any, factor: float = 2.0) -> Any:
        traced.append((x.shape, factor))
        return gk.relu(x) * factor

    for shape in ((2,), (3, 2), (2,)):
        assert scaled(nd.ones(shape)).asnumpy().tolist() == np.full(shape, 2.0).tolist()
    assert scaled(nd.ones(2), factor=3.0).asnumpy().tolist() == [3, 3]
    assert scaled(nd.ones(2, "float64")).dtype == np.float64
    assert len(traced) == 4
    assert scaled.__name__ == "scaled"


def test_zeros_of_both_signs_are_different_arguments() -> None:
    divided = nd.hybridize(lambda x, divisor: x / divisor)
    for zero in (0.0, np.float32(0.0)):
        assert [divided(nd.ones(1), divisor).asscalar() for divisor in (zero, -zero)] == [np.inf, -np.inf]
    x = nd.array([-1.0])
    assert [str(gk.leaky_relu(x, alpha=alpha).asscalar()) for alpha in (0.0, -0.0)] == ["-0.0", "0.0"]


def test_trees_of_arrays_are_arguments_and_results() -> None:
    @nd.hybridize
    def step(batch: dict[str, Any], weights: list[Any], flag: bool) -> dict[str, Any]:
        h = batch["x"] @ weights[0]
        return {"h": h, "both": (h + weights[1], batch["x"]), "nothing": None if flag else h}

    x, w, b = nd.ones((2, 3)), nd.full((3, 2), 2.0), nd.arange(2)
    found = step({"x": x}, [w, b], True)
    assert found["h"].asnumpy().tolist() == [[6, 6], [6, 6]]
    assert found["nothing"] is None
    assert found["both"][0].asnumpy().tolist() == [[6, 7], [6, 7]]
    x[:] = 5  # a result is not the argument itself
    assert found["both"][1].asnumpy().tolist() == [[1, 1, 1], [1, 1, 1]]
    assert step({"x": x}, [w, b], False)["nothing"].shape == (2, 2)


def test_arrays_from_elsewhere_are_read_in_each_call() -> None:
    w = nd.ones((2, 2))
    w.attach_grad()

    @nd.hybridize
    def f(x: Any) -> Any:
        return gk.reduce_sum(x @ (w * 2.0))

    for value in (1.0, 3.0):
        w[:] = value
        with nd.record():
            y = f(nd.ones((1, 2)))
        y.backward()
        assert y.asscalar() == 8 * value
        assert w.grad.asnumpy().tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize("read_first", [False, True])
def test_a_call_is_deferred_until_it_is_needed(read_first: bool) -> None:
    """`backward` computes it with the gradients; a wait, or a write of an operand, does it before."""
    x, w = nd.array([[1.0, 2.0]]), nd.ones((2, 2))
    w.attach_grad()
    f = nd.hybridize(lambda a, b: (gk.tanh(a @ b), a * 2.0))
    with nd.record():
        y, z = f(x, w)
        loss = gk.reduce_sum(y) if read_first else y
    x[:] = 100
    if read_first:
        w[:] = 1
        assert z.asnumpy().tolist() == [[2, 4]]
        with nd.pause(), pytest.raises(UsageError, match="was written after it was recorded"):
            loss.backward()
        return
    with nd.record():
        y, z = f(nd.array([[1.0, 2.0]]), w)
    y.backward()
    expected = 1 - np.tanh(3) ** 2
    np.testing.assert_allclose(w.grad.asnumpy(), [[expected] * 2, [2 * expected] * 2], rtol=1e-3)
    np.testing.assert_allclose(y.asnumpy(), np.tanh([[3, 3]]), rtol=1e-6)
    assert z.asnumpy().tolist() == [[2, 4]]


def test_readers_of_a_deferred_call_see_old_elements() -> None:
    x = nd.ones(3)
    x.attach_grad()
    double = nd.hybridize(lambda v: v * 2.0)
    for write in (lambda: x.__iadd__(1.0), lambda: x.__setitem__(slice(None), 7.0), lambda: x[1:].__imul__(3.0)):
        x[:] = 1
        with nd.record():
            y = double(x)
        write()
        assert y.asnumpy().tolist() == [2, 2, 2]
    with nd.record():
        y = double(x)
    y[:] = 0  # written before it was computed
    assert y.asnumpy().tolist() == [0, 0, 0]
    with nd.record():
        y = double(x)
    nd.waitall()
    assert y._memory.maker is None


def test_chains_of_hybridized_functions_and_operators() -> None:
    rng = np.random.default_rng(0)
    first, second = nd.hybridize(lambda x, w: gk.sigmoid(x @ w)), nd.hybridize(lambda h: gk.softmax(h * h, axis=1))
    data, weight = rng.standard_normal((4, 3)), rng.standard_normal((3, 3))
    gradients = []
    for f, g in ((first, second), (first.function, second.function)):
        w = nd.array(weight)
        w.attach_grad()
        with nd.record():
            loss = gk.reduce_sum(g(f(nd.array(data), w)) * f(nd.array(data), w))
        loss.backward()
        gradients.append(w.grad.asnumpy())
    np.testing.assert_allclose(*gradients, rtol=1e-9)


def test_control_flow_of_graphs_in_hybridized_functions() -> None:
    @nd.hybridize
    def powers(x: Any, n: Any) -> Any:
        start = (np.int64(0), gk.identity(x))
        return gk.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * x), start)[1]

    x = nd.array([2.0, 3.0])
    x.attach_grad()
    for n in (1, 3):
        with nd.record():
            y = powers(x, nd.array(n))
        assert y.asnumpy().tolist() == [2.0 ** (n + 1), 3.0 ** (n + 1)]
        y.backward()
        np.testing.assert_allclose(x.grad.asnumpy(), [(n + 1) * 2.0**n, (n + 1) * 3.0**n])


def test_methods_are_hybridized_for_each_object() -> None:
    class Scale:
        def __init__(self, factor: float):
            self.w = nd.array([factor])

        @nd.hybridize
        def apply(self, x: Any) -> Any:
            return x * self.w

    two, three = Scale(2.0), Scale(3.0)
    assert [two.apply(nd.ones(1)).asscalar(), three.apply(nd.ones(1)).asscalar()] == [2, 3]


class Scale:
    def __init__(self, factor: float):
        self.w = nd.array([factor])

    @nd.hybridize
    def apply(self, x: Any) -> Any:
        return x * self.w


class ScaleAndAdd(Scale):
    @nd.hybridize
    def apply(self, x: Any) -> Any:
        return super().apply(x) + 1


class Shared:
    w = nd.full(1, 3.0)

    @classmethod
    @nd.hybridize
    def apply(cls, x: Any) -> Any:
        return x * cls.w


class OtherShared(Shared):
    w = nd.full(1, 4.0)


def test_methods_of_classes_are_hybridized_for_each_class() -> None:
    for _ in range(2):
        assert [c.apply(nd.ones(1)).asscalar() for c in (Shared, OtherShared, Shared(), OtherShared())] == [3, 4, 3, 4]


@nd.hybridize
def doubled(x: Any) -> Any:
    return x * 2


@pytest.mark.parametrize("made", [Scale, ScaleAndAdd])
def test_copies_of_objects_have_programs_of_their_own(made: type[Scale]) -> None:
    one, original = nd.ones(1), made(2.0)
    more = int(made is ScaleAndAdd)
    assert [original.apply(one).asscalar() for _ in range(2)] == [2 + more] * 2
    for other in (copy.copy(original), copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        other.w = nd.array([5.0])
        assert (other.apply(one).asscalar(), original.apply(one).asscalar()) == (5 + more, 2 + more)
        assert other.apply is other.apply
    assert pickle.loads(pickle.dumps(original.apply))(one).asscalar() == 2 + more
    doubled(one)
    assert pickle.loads(pickle.dumps(doubled)) is copy.deepcopy(doubled) is doubled


def test_what_a_hybridized_function_cannot_do() -> None:
    x = nd.ones((2, 2))
    for function, message in (
        (lambda v: x.__iadd__(v), "cannot write to arrays"),
        (lambda v: gk.nn.linear(v, 3), "not an array; pass the parameters"),
        (lambda v: (), "must return arrays"),
        (lambda v: 1 if v[0, 0] > 0 else 2, "truth value"),
    ):
        with pytest.raises(UsageError, match=message):
            nd.hybridize(function)(x)
    assert (x + 1.0).asnumpy().tolist() == [[2, 2], [2, 2]]
    with pytest.raises(UsageError, match="takes a function"):
        nd.hybridize(3)
    with pytest.raises(UsageError, match="must be hashable"):
        nd.hybridize(lambda v, s: v)(x, np.ones(2))


def test_random_numbers_are_drawn_in_each_call() -> None:
    @nd.hybridize
    def noise() -> Any:
        random = nd.random
        return random.uniform(shape=(64,)), random.normal(5.0, 0.1, (64,)), random.randint(3, 9, (64,), "int64")

    first, second = ([y.asnumpy() for y in noise()] for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert (a != b).any()
    assert (np.floor(first[0]) == 0).all()
    assert np.abs(first[1] - 5).max() < 1
    assert first[2].dtype == np.int64
    assert set(first[2]) == set(range(3, 9))


def test_elements_are_not_frozen_in_a_program() -> None:
    w = nd.array([1.0])
    for copied in (lambda: w.copy(), lambda: copy.copy(w)):
        f = nd.hybridize(lambda x, copied=copied: x + copied())
        for value in (1.0, 5.0):
            w[:] = value
            assert f(nd.ones(1)).asscalar() == 1 + value
    for read in (w.asnumpy, w.asscalar, w.__float__, lambda: np.asarray(w), lambda: 1.0 if w else 0.0):
        with pytest.raises(UsageError, match="cannot read elements"):
            nd.hybridize(lambda x, read=read: x * read())(nd.ones(1))
    assert nd.hybridize(lambda x: (str(w), f"{w}", x)[2])(w).asscalar() == 5


def test_control_flow_reads_arrays_from_elsewhere() -> None:
    w = nd.array([2.0, 3.0])
    w.attach_grad()

    @nd.hybridize
    def f(x: Any) -> Any:
        y = gk.cond(gk.reduce_max(x) > 0.0, lambda: x * w, lambda: x)
        y = gk.while_loop(lambda v: gk.reduce_max(v) < 20.0, lambda v: v * w, y)
        return gk.foreach(lambda e, s: (e, s + e * w), gk.tile(gk.unsqueeze(x, [0]), [2, 1]), y)[1]

    for elements, n in (([2.0, 3.0], 3), ([4.0, 6.0], 2)):
        w[:] = elements
        with nd.record():
            y = f(nd.ones(2))
        assert y.asnumpy().tolist() == [e**n + 2 * e for e in elements]
        y.backward()
        np.testing.assert_allclose(w.grad.asnumpy(), [n * e ** (n - 1) + 2 for e in elements], rtol=1e-6)


def test_control_flow_of_graphs_outside_of_hybridized_functions() -> None:
    x = nd.array([1.0, -1.0])
    x.attach_grad()
    for number in (2.0, -2.0):
        with nd.record():
            y = gk.cond(nd.array(number) > 0.0, lambda v: v * 3.0, lambda v: v * v, x)
        y.backward()
        assert x.grad.asnumpy().tolist() == ([3, 3] if number > 0 else [2, -2])
    with pytest.raises(gk.errors.TypeMismatch, match="must be a boolean"):
        gk.cond(x, lambda: x, lambda: x)
    for call in (
        lambda: gk.cond(True, lambda: x, lambda: x),
        lambda: gk.while_loop(lambda v: gk.reduce_max(v) < 9.0, lambda v: v * 2.0, x),
        lambda: gk.scan(lambda c, v: (c, v), None, x),
    ):
        with pytest.raises(UsageError, match=r"use Python's (if|while|for), or call it"):
            call()


def test_number_arguments_are_compared_by_bits() -> None:
    f = nd.hybridize(lambda x, c: x / c)
    x = nd.ones(1)
    found = [f(x, c).asscalar() for c in (0.0, -0.0, np.float32(0), -np.float32(0))]
    assert found == [np.inf, -np.inf, np.inf, -np.inf]
    for _ in range(2):
        f(x, float("nan"))
    assert len(f._traces) == 5


@in_one_item()
@pytest.mark.parametrize("operator", ["floordiv", "ne", "and_", "xor"])
def test_python_operators_of_several_nodes_run_as_one_program(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.arange(-4, 4, dtype=np.int32), np.full(8, 3, np.int32)
    compute = getattr(operators, operator)
    x, y = nd.array(a), nd.array(b)
    compute(x, y)  # compiles
    monkeypatch.setattr(immediate, "call", None)  # a call for one operator would fail
    monkeypatch.setattr(immediate, "apply", None)
    np.testing.assert_array_equal(compute(x, y).asnumpy(), compute(a, b))


def gradient_loop() -> tuple[Any, Any, Any]:
    """Return a step, which computes the gradient of sum(w * x * x) by w and x, and the arrays w and x."""
    loss = nd.hybridize(lambda w, x: gk.reduce_sum(w * x * x, keepdims=False))
    w, x = nd.array([2.0, 3.0]), nd.array([4.0, 5.0])
    for v in (w, x):
        v.attach_grad()

    def step(a: Any = w, b: Any = x) -> list[Any]:
        with nd.record():
            y = loss(a, b)
        y.backward()
        return [v.grad.tolist() if v.grad is not None else None for v in (a, b)]

    return step, w, x


def test_the_gradient_of_one_call_is_found_without_its_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    step, w, x = gradient_loop()
    expected = step()
    assert expected == [[16, 25], [16, 30]]
    with monkeypatch.context() as patch:
        patch.setattr(backward, "_Structure", None)
        assert step() == expected
        w += 1.0
        assert step() == [[16, 25], [24, 40]]
    w -= 1.0
    x.attach_grad("null")
    assert step() == [[16, 25], None]
    x.attach_grad("add")
    assert [step()[1] for _ in range(2)] == [[16, 30], [32, 60]]
    x.attach_grad()
    x.grad = w.grad  # the gradient of x is written last
    assert step()[1] == [16, 30]
    assert step(x, x)[0] == [3 * 16, 3 * 25]


def test_the_gradient_of_one_call_refuses_arrays_that_were_written() -> None:
    _, w, x = gradient_loop()
    loss = nd.hybridize(lambda a, b: gk.reduce_sum(a * b * b, keepdims=False))
    for _ in range(2):
        with nd.record():
            y = loss(w, x)
        x += 1.0
        with pytest.raises(UsageError, match="was written after it was recorded"):
            y.backward()
        with nd.record():
            y = loss(w, x)
        y.backward()
        with pytest.raises(UsageError, match="has released what was recorded"):
            y.backward()


METHODS = {
    "sum": lambda w: w.sum(0), "mean": lambda w: w.mean(), "var": lambda w: w.var(1, ddof=1), "max": lambda w: w.max(1),
    "std": lambda w: w.std(), "argmax": lambda w: w.argmax(keepdims=True), "any": lambda w: w.any(0),
    "cumsum": lambda w: w.cumsum(), "ravel": lambda w: w.ravel(), "clip": lambda w: w.clip(2, 4),
    "dot": lambda w: w.dot(w.T), "dot of three axes": lambda w: w.dot(w.T[None]),
    "squeeze": lambda w: w.squeeze(), "swapaxes": lambda w: w.swapaxes(0, 1), "round": lambda w: w.round(1),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_methods_of_arrays_from_elsewhere_in_a_hybridized_function(dtype: str) -> None:
    a = np.arange(6).reshape(2, 3).astype(dtype)
    w = nd.array(a)
    for name, method in METHODS.items():
        found = nd.hybridize(lambda method=method: method(w))()
        expected = np.asarray(method(a))
        assert found.dtype == expected.dtype, name
        np.testing.assert_allclose(found.asnumpy(), expected, rtol=2e-3, err_msg=name)
