"""Arguments are checked against annotations: accepted values, and messages for others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.errors import UsageError
from graphkit.signatures import check_argument, typed


@in_one_item()
@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        ("int", [3, -1, np.int64(2), np.uint8(0)]),
        ("float", [1.5, 2, np.float32(1), np.int8(3)]),
        ("bool", [True, np.bool_(False)]),
        ("str | Path | None", ["a", Path("b"), None]),
        ("Sequence[int]", [[1, 2], (3,), [], np.arange(3)]),
        ("Sequence[str]", [["a"], ("b", "c")]),
        ("Iterable[int]", [[1], (i for i in range(3)), np.arange(2)]),
        ("tuple[float, ...]", [(), (1.0, 2)]),
        ("Mapping[str, int | None]", [{}, {"a": 1, "b": None}]),
        ("Callable[[int], int]", [len, lambda x: x]),
        ("Any", [None, object()]),
        ("SomethingElse[int]", [None, object()]),
    ],
)
def test_what_fits(annotation: str, values: list[Any]) -> None:
    for value in values:
        check_argument("f", "x", annotation, value)


@in_one_item()
@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        ("int", True, "f: x must be an integer, not True"),
        ("int | None", 1.5, "x must be an integer or None, not 1.5"),
        ("None | int", "a", "x must be an integer or None, not 'a'"),
        ("float", "1", "x must be a number, not '1'"),
        ("Sequence[int]", [1, "b"], r"x\[1\] is 'b', but x must be a list of integers"),
        ("Sequence[str]", "abc", "x must be a list of strings, not 'abc'"),
        ("Sequence[str]", (i for i in "a"), "x must be a list of strings, not a generator"),
        ("Mapping[str, float]", {"a": None}, r"x\['a'\] is None, but x must be a dict of numbers"),
        ("Mapping[str, Any]", [1], r"x must be a dict with strings as keys, not \[1\]"),
        ("str", np.ones((2, 3)), r"x must be a string, not ndarray of float64\[2, 3\]"),
        ("tuple[int, int]", (1, None), "x must be a list of integers, not"),
        ("Callable[[int], int]", 3, "x must be a function, not 3"),
        ("Value", 2.0, r"x must be a graph value, not 2.0; gk.constant\(array\)"),
    ],
)
def test_what_does_not_fit(annotation: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_argument("f", "x", annotation, value)


@typed("gk.f")
def f(x: int, *, y: Sequence[str] = (), name: str = "f", **rest: Mapping[str, int]) -> tuple[Any, ...]:
    return x, y, name, rest


def test_calls_are_checked_and_passed_on() -> None:
    assert f(3, y=["a"], other={"b": 1}) == (3, ["a"], "f", {"other": {"b": 1}})
    assert f.__name__ == "f"
    with pytest.raises(UsageError, match=r"gk.f 'n': other\['b'\] is 'c', but other must be a dict of integers"):
        f(3, name="n", other={"b": "c"})
    with pytest.raises(UsageError, match=r"gk.f: missing a required argument: 'x'; it takes \(x, \[y\], \[name\]"):
        f()
    with pytest.raises(UsageError, match=r"gk\.f: too many positional arguments"):
        f(1, 2)


def test_what_a_function_raises_is_left_alone() -> None:
    @typed("gk.g")
    def g(x: Iterable[int]) -> None:
        raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        g([1])
