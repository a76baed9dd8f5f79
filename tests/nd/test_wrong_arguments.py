"""Wrong arguments of gk.nd raise errors of graphkit that name the argument, in eager, recorded and traced calls."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import GraphkitError, InputError, OutOfMemory, RuntimeFailure, TypeMismatch, UsageError

nd = gk.nd


def ones() -> gk.nd.NDArray:
    return nd.ones((3, 2))


def total(x: Any) -> Any:
    return gk.reduce_sum(x * x)


class Slots:
    __slots__ = ()

    @nd.hybridize
    def double(self, x: Any) -> Any:
        return x * 2.0


def recorded_head() -> gk.nd.NDArray:
    x = ones()
    x.attach_grad()
    with nd.record():
        return x * 2.0


# Call, error, part of the message.
WRONG: list[tuple[Callable[[], Any], type[GraphkitError], str]] = [
    (lambda: nd.zeros(None), UsageError, "shape must be integers of at least 0, not None"),
    (lambda: nd.zeros(1.5), UsageError, "shape must be integers of at least 0, not 1.5"),
    (lambda: nd.zeros((1 << 62, 1 << 10)), OutOfMemory, "zeros"),
    (lambda: nd.full((2,), "x"), UsageError, "full: value 'x'"),
    (lambda: nd.full(2, 300, "int8"), UsageError, "full: value 300"),
    (lambda: nd.eye(-1), UsageError, "eye: rows and columns must be integers"),
    (lambda: nd.arange("x"), UsageError, "arange: start, stop and step are 0, 'x' and 1"),
    (lambda: nd.arange(0, 5, 0), UsageError, "arange: .*division by zero"),
    (lambda: nd.zeros_like(3), UsageError, "zeros_like takes an NDArray, not 3"),
    (lambda: nd.from_numpy(np.zeros(2, ">f4")), InputError, "byte order of the machine"),
    (lambda: nd.random.seed("x"), UsageError, "seed: number must be an integer, not 'x'"),
    (lambda: nd.random.uniform("a", 1), UsageError, "uniform: low must be a number, not 'a'"),
    (lambda: nd.random.uniform(0, float("inf")), UsageError, "uniform: high must be finite, not inf"),
    (lambda: nd.random.normal(0, None), UsageError, "normal: scale must be a number, not None"),
    (lambda: nd.random.normal(10**400), UsageError, "normal: loc must be a number, not 1000"),
    (lambda: nd.zeros(2, "int8").__setitem__(0, 2**70), UsageError, "assignment to array: int8.*too large"),
    (lambda: nd.random.randint("a", "b"), UsageError, "randint: low must be an integer, not 'a'"),
    (lambda: nd.random.randint(0.5, 2.5), UsageError, "randint: low must be an integer, not 0.5"),
    (lambda: nd.random.randint(2**40, 2**40 + 5), UsageError, "int32 cannot store all integers"),
    (lambda: nd.random.randint(-1, 2, dtype="uint8"), UsageError, "uint8 cannot store all integers"),
    (lambda: nd.random.randint(0, 2, dtype="float32"), UsageError, "dtype must be an integer type"),
    (lambda: ones()[[[0, 1], [1]]], InputError, "an index: its nested lists have different lengths"),
    (lambda: ones()[[0, 1], [0, 1, 1]], UsageError, r"indices of shapes \[2\], \[3\] do not broadcast"),
    (lambda: ones().copyto(np.ones(2)), UsageError, "copyto writes to an NDArray, not ndarray of float64"),
    (lambda: recorded_head().backward(1.0), UsageError, "head_grads must be an NDArray for each head, not 1.0"),
    (lambda: recorded_head().backward(np.ones((3, 2), "f4")), UsageError, "head_grads must be .* not ndarray"),
    (lambda: nd.grad(total, 5)(ones()), UsageError, "argnums has position 5, but the call has 1 positional"),
    (lambda: nd.grad(total)(np.ones(2, "f4")), UsageError, "argument 0 must be an NDArray, not ndarray"),
    (lambda: nd.grad(total, "a"), UsageError, "argnums must be integers, not 'a'"),
    (lambda: nd.grad(ones()), UsageError, "nd.grad takes a function"),
    (lambda: Slots().double(ones()), UsageError, "its class Slots cannot have __slots__"),
    (lambda: gk.Model({"z": ones()}), UsageError, "outputs must be graph values, not NDArray.*gk.constant"),
    (lambda: gk.Graph([], [ones()]), UsageError, "inputs and outputs of graph .* must be graph values, not NDArray"),
    (lambda: gk.gradient([ones()], [gk.input("x", [2])]), UsageError, "must be graph values, not NDArray"),
    (lambda: gk.gradient([gk.input("x", [2])], [ones()]), UsageError, "must be graph values, not NDArray"),
    (lambda: recorded_head()["a":], UsageError, "index of array"),
    (lambda: gk.input("x", [2])["a":], UsageError, "its bounds must be integers"),
    (lambda: gk.input("x", [2])[0.5:], UsageError, "its bounds must be integers"),
    (lambda: gk.input("x", [2])[True], UsageError, "cannot be indexed by True"),
]  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong[2])
def test_wrong_arguments_are_errors_that_name_them(wrong: tuple[Callable[[], Any], type[GraphkitError], str]) -> None:
    call, error, message = wrong
    with pytest.raises(error, match=message):
        call()


AXES = [(0, 5), (0, 0), (0,), (-3, 1), ("a",), (0.0, 1)]


@in_one_item()
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("mode", ["eager", "recorded", "traced"])
def test_wrong_axes_and_sizes_are_errors_in_each_mode(mode: str, axes: tuple[Any, ...]) -> None:
    x = ones()
    x.attach_grad()
    methods = [x.transpose] if all(isinstance(axis, int) for axis in axes) else [x.transpose, x.reshape]
    for method in methods:
        function = nd.hybridize(method) if mode == "traced" else method
        scope = nd.record() if mode == "recorded" else contextlib.nullcontext()
        with scope, pytest.raises(TypeMismatch, match=rf"{method.__name__} of array: float32\[3, 2\]"):
            function(*axes)
    assert x.transpose(-1, 0).shape == x.transpose((1, -2)).shape == x.T.shape == (2, 3)


def test_random_integers_of_each_dtype_reach_its_limits() -> None:
    for dtype in ("int8", "uint8", "int32", "int64", "uint64"):
        limits = np.iinfo(dtype)
        for low in (limits.min, limits.max - 1):
            found = nd.random.randint(low, low + 2, 50, dtype)
            assert found.dtype == dtype
            assert {int(i) for i in found.asnumpy()} == {low, low + 1}


def failed(shape: tuple[int, ...]) -> gk.nd.NDArray:
    return gk.reshape(gk.tile(gk.gather(nd.ones(4), nd.array([9]), axis=0), [int(np.prod(shape))]), list(shape))


# Arrays of 6 elements that are views of numpy's memory, and an assignment to all elements.
HEALED: list[tuple[Callable[[], gk.nd.NDArray], Callable[[gk.nd.NDArray], None]]] = [
    (lambda: nd.arange(6).reshape(2, 3), lambda x: x.__setitem__(slice(None), 1)),
    (lambda: nd.from_numpy(np.zeros(6, np.float32).reshape(2, 3)), lambda x: x.__setitem__(..., 1)),
    (lambda: nd.from_numpy(np.zeros(9, np.float32)[:6]), lambda x: x.__setitem__(..., 1)),
    (lambda: nd.zeros((2, 3)), lambda x: x.T.__setitem__(slice(None), 1)),
]


@in_one_item()
@pytest.mark.parametrize("healed", HEALED, ids=["reshaped", "from numpy", "part of numpy", "written by a view"])
def test_assignment_to_all_elements_removes_the_error(healed: Any) -> None:
    make, assign = healed
    x = make()
    x[:] = failed(x.shape)
    with pytest.raises(RuntimeFailure, match="index 9"):
        x.asnumpy()
    x[:1] = 1
    with pytest.raises(RuntimeFailure, match="index 9"):
        x.asnumpy()
    assign(x)
    assert (x.asnumpy() == 1).all()


@in_one_item()
@pytest.mark.parametrize("code", [">f4", ">i8", ">f2"])
def test_operands_of_another_byte_order_are_converted(code: str) -> None:
    other = np.arange(4, dtype=code)
    native = other.astype(other.dtype.newbyteorder("="))
    x = nd.array(native)
    assert x.dtype == native.dtype
    traced = nd.hybridize(lambda v: v + other)
    v = gk.input("v", [4], str(native.dtype))
    results = [x + other, other + x, gk.add(x, other), traced(x), nd.ones(4, native.dtype) * other + x]
    results.append(gk.Model({"y": gk.add(v, other)}).run({"v": native})["y"])
    results.append(gk.Model({"y": v + gk.constant(other)}).run({"v": native})["y"])
    for result in results:
        np.testing.assert_array_equal(np.asarray(result), native * 2)


SINGLE = [True, False, np.True_, np.array(False), np.array(True), (True, [0, 2]), ([1], False), (True, False), []]


@in_one_item()
@pytest.mark.parametrize("key", SINGLE, ids=str)
def test_single_booleans_are_indices_as_in_numpy(key: Any) -> None:
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    x = nd.array(data)
    np.testing.assert_array_equal(x[key].asnumpy(), data[key])
    x[key] = 7
    data[key] = 7
    np.testing.assert_array_equal(x.asnumpy(), data)


def test_messages_show_types_and_need_no_elements() -> None:
    one = nd.array([3])
    for call, message in (
        (lambda: one - 1.5, r"with array: int64\[1\]: cast"),
        (lambda: one - np.float32([1.5]), r"with array: int64\[1\]: cast"),
        (lambda: gk.add(one, [gk.input("x", [1]), one]), r"\[x: float32\[1\], array: int64\[1\]\]"),
        (one.attach_grad, r"attach_grad of array: int64\[1\]"),
        (nd.ones(1).backward, r"backward of array: float32\[1\]"),
        (failed((1,)).astype("int32").attach_grad, r"attach_grad of array: int32\[1\]"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    with contextlib.suppress(RuntimeFailure):
        nd.waitall()


def test_grad_of_functions_has_its_own_name() -> None:
    assert nd.grad is not nd.autograd.grad
    assert (nd.grad.__module__, nd.grad.__name__) == ("graphkit.nd", "grad")
    assert pickle.loads(pickle.dumps(nd.grad)) is nd.grad
