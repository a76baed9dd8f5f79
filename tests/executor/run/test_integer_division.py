"""Integers divided by zero are an error that names the node, wherever the division runs."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import RuntimeFailure

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DIVISIONS = {
    "div": lambda a, b: gk.div(a, b, name="quotient"),
    "mod": lambda a, b: gk.mod(a, b, name="quotient"),
    "fmod": lambda a, b: gk.mod(a, b, fmod=True, name="quotient"),
}


def operands(dtype, shape=("N",)):
    return gk.input("a", shape, dtype=dtype), gk.input("b", shape, dtype=dtype)


@in_one_item("pairs")
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("function", DIVISIONS)
def test_a_zero_divisor_anywhere_is_an_error(function, dtype, optimize):
    executor = gk.Model({"y": DIVISIONS[function](*operands(dtype))}).compile(optimize=optimize, threads=2)
    for size in (1, 3, 64, 1000, 100_001):
        a, b = np.full(size, 7, dtype), np.full(size, 3, dtype)
        assert (executor.run({"a": a, "b": b})["y"] == (2 if function == "div" else 1)).all()
        for position in (0, size // 2, size - 1):
            b[position] = 0
            with pytest.raises(RuntimeFailure, match=r"quotient.*integer division by zero"):
                executor.run({"a": a, "b": b})
            b[position] = 3
        assert (executor.run({"a": a, "b": b})["y"] == (2 if function == "div" else 1)).all()


@in_one_item()
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("optimize", [True, False])
def test_the_smallest_integer_by_minus_one_wraps_around(dtype, optimize):
    a, b = operands(dtype)
    net = gk.Model({"quotient": gk.div(a, b), "rest": gk.mod(a, b), "c_rest": gk.mod(a, b, fmod=True)})
    smallest = np.iinfo(dtype).min
    found = net.compile(optimize=optimize).run({"a": np.array([smallest, -7], dtype), "b": np.array([-1, 2], dtype)})
    assert found["quotient"].tolist() == [smallest, -3]
    assert found["rest"].tolist() == [0, 1]
    assert found["c_rest"].tolist() == [0, -1]


def test_an_empty_operand_divides_nothing():
    a, b = operands("int32", ("N", 2))
    net = gk.Model({"y": gk.div(a, b[:, :1] * 0)})
    assert net.run({"a": np.ones((0, 2), np.int32), "b": np.ones((0, 2), np.int32)})["y"].shape == (0, 2)


def test_the_division_is_named_inside_of_a_fused_region():
    a, b = operands("int32")
    net = gk.Model({"y": gk.abs(gk.div(a, b, name="quotient") + 1) * 2})
    assert any("Fused" in str(step) for step in net.compile(shapes={"a": (4,), "b": (4,)}).plan.steps)
    with pytest.raises(RuntimeFailure, match="integer division by zero in quotient"):
        net.run({"a": np.ones(4, np.int32), "b": np.zeros(4, np.int32)})


def test_errors_of_equal_divisions_name_the_node_that_failed():
    ones, zeros = np.ones(3, np.int32), np.zeros(3, np.int32)
    first, second = [[gk.input(f"{name}{i}", [3], "int32") for name in "ab"] for i in range(2)]
    net = gk.Model({"p": gk.div(*first, name="first"), "q": gk.div(*second, name="second")})
    with pytest.raises(RuntimeFailure, match=r"second.*by zero in second$"):
        net.run({"a0": ones, "b0": ones, "a1": ones, "b1": zeros})


def test_one_divisor_for_all_elements():
    a, b = gk.input("a", ["N", 3], dtype="int64"), gk.input("b", ["N", 1], dtype="int64")
    net = gk.Model({"rows": gk.div(a, b), "all": gk.mod(a, gk.reduce_sum(b))})
    feeds = {"a": np.full((5, 3), 9), "b": np.array([[1], [2], [3], [-2], [4]])}
    assert net.run(feeds)["rows"][:, 0].tolist() == [9, 4, 3, -4, 2]
    with pytest.raises(RuntimeFailure, match="integer division by zero"):
        net.run({**feeds, "b": np.array([[1], [2], [0], [-2], [4]])})
    with pytest.raises(RuntimeFailure, match="integer division by zero"):
        net.run({**feeds, "b": np.array([[1], [2], [3], [-2], [-4]])})


@in_one_item()
@pytest.mark.parametrize("function", [*DIVISIONS, "pow"])
def test_constants_are_not_folded_to_zero(function):
    """Building and compiling such a graph succeeds, because the division may never run."""

    def divided(x):
        four, zero = gk.constant(value=np.array([4, 0])), gk.constant(value=np.array([2, 0]))
        return x + (gk.pow(four, zero - 1) if function == "pow" else DIVISIONS[function](four, zero))

    x, wanted = gk.input("x", [2], dtype="int64"), gk.input("wanted", [], dtype="bool")
    net = gk.Model({"y": gk.cond(wanted, divided, lambda x: x, x)})
    feeds = {"x": np.array([1, 2])}
    assert net.run({**feeds, "wanted": np.array(False)})["y"].tolist() == [1, 2]
    with pytest.raises(RuntimeFailure, match="integer division by zero"):
        net.run({**feeds, "wanted": np.array(True)})


def test_inside_of_a_loop():
    def body(state):
        i, total = state
        return i + 1, total + gk.div(gk.constant(value=np.int64(12)), 3 - i, name="share")

    n = gk.input("n", [], dtype="int64")
    zero = gk.constant(value=np.int64(0))
    _, total = gk.while_loop(lambda state: gk.less(state[0], n), body, (zero, zero))
    net = gk.Model({"total": total})
    assert net.run({"n": np.array(3)})["total"] == 4 + 6 + 12
    with pytest.raises(RuntimeFailure, match="integer division by zero in share"):
        net.run({"n": np.array(4)})


@in_one_item()
@pytest.mark.parametrize("optimize", [True, False])
def test_powers_of_integers(optimize):
    a, b = operands("int64")
    executor = gk.Model({"y": gk.pow(a, b, name="power")}).compile(optimize=optimize)
    feeds = {"a": np.array([1, -1, -1, 2, -3, 7, 0, 0]), "b": np.array([-4, -3, -2, -1, 3, 0, 0, 2])}
    assert executor.run(feeds)["y"].tolist() == [1, -1, 1, 0, -27, 1, 1, 0]
    with pytest.raises(RuntimeFailure, match=r"power.*integer division by zero"):
        executor.run({"a": np.array([0]), "b": np.array([-1])})


def test_remainders_of_constants_have_the_sign_that_runs_give_them():
    a, b = gk.constant(value=np.array([-7, 7, -7])), gk.constant(value=np.array([2, -2, -2]))
    x = gk.input("x", [3], dtype="int64")
    for fmod, wanted in ((True, [-1, 1, -1]), (False, [1, -1, -1])):
        assert gk.Model({"y": gk.mod(a, b, fmod=fmod) + x}).run({"x": np.zeros(3, np.int64)})["y"].tolist() == wanted


def test_quotients_of_large_constants_are_exact():
    a = gk.constant(value=np.array([-(2**62) - 1, 2**62 + 1]))
    x = gk.input("x", [2], dtype="int64")
    found = gk.Model({"y": gk.div(a, gk.constant(value=np.array([2, -2]))) + x}).run({"x": np.zeros(2, np.int64)})["y"]
    assert found.tolist() == [-(2**61), -(2**61)]
