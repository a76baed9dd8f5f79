"""Many cases in one item: all of them run, each failure shows, and no lane loses one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cases
import numpy as np
import pytest
from cases import each_case
from combinations import covering, default_at, in_one_item, seeds


def items(test: Callable[..., None]) -> dict[str, tuple[Any, bool]]:
    """The cases of each item of a test by its name, and whether it belongs to the full lane."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")  # type: ignore[attr-defined]
    return {item.id: (item.values[0], any(m.name == "full" for m in item.marks)) for item in mark.args[1]}


def test_cases_behind_a_failing_one_run_and_all_failures_show() -> None:
    seen = []

    @each_case(range(9), group=lambda number: "numbers")
    def test(number: int) -> None:
        seen.append(number)
        assert number % 4 != 1, f"no {number}"

    with pytest.raises(pytest.fail.Exception, match=r"(?s)2 of 9 cases failed\n\n1\n.*no 1.*\n\n5\n.*no 5"):
        test(number=items(test)["numbers"][0])
    assert seen == [*range(9)]


def test_more_failures_than_are_printed_are_named() -> None:
    @each_case(range(8), group=lambda number: "numbers")
    def test(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(pytest.fail.Exception, match=r"(?s)8 of 8 cases failed.*also failed: 5, 6, 7$"):
        test(number=items(test)["numbers"][0])


def test_skipped_cases_are_counted_and_hide_no_failure() -> None:
    @each_case(range(3), group=lambda number: "numbers")
    def test(number: int) -> None:
        if number != 1:
            pytest.skip("not here")
        assert not fails

    members, fails = items(test)["numbers"][0], False
    test(number=members)
    assert [text.split(":")[0] for text in cases.skipped_names] == ["0", "2"]
    fails = True
    with pytest.raises(pytest.fail.Exception, match="1 of 3 cases failed"):
        test(number=members)
    with pytest.raises(pytest.skip.Exception, match="not here"):
        test(number=cases.Cases([0, 2]))


def test_a_selected_case_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @each_case(["a-1", "a-2", "b-1"], group=lambda name: "names")
    def test(name: str) -> None:
        seen.append(name)

    monkeypatch.setattr(cases, "selected_pattern", "a-*")
    test(name=items(test)["names"][0])
    assert seen == ["a-1", "a-2"]
    monkeypatch.setattr(cases, "selected_pattern", "c-*")
    with pytest.raises(pytest.skip.Exception, match="no case matches"):
        test(name=items(test)["names"][0])


def test_no_cases_and_equal_names_are_errors() -> None:
    with pytest.raises(ValueError, match="without cases"):
        each_case([], group=str)
    with pytest.raises(ValueError, match="two cases of all have one name: 1"):
        each_case([1, 2, 1], group=lambda number: "all")
    with pytest.raises(ValueError, match="below the decorator"):
        in_one_item()(lambda: None)


@in_one_item()
@pytest.mark.parametrize("default", ["all", "pairs", "values"])
def test_every_combination_runs_in_one_lane(default: Any) -> None:
    seen = []

    @in_one_item(default)
    @pytest.mark.parametrize("seed", seeds(3, default=2))
    @pytest.mark.parametrize(("kind", "size"), [("a", 1), ("b", 2)])
    @pytest.mark.parametrize("flag", [False, True])
    def test(seed: int, kind: str, size: int, flag: bool) -> None:
        seen.append((seed, kind, size, flag))

    found = items(test)
    assert {name: is_full for name, (_, is_full) in found.items()} == {"all": False, "all-full": True}
    for members, _ in found.values():
        test(case=members)
    assert sorted(seen) == sorted(
        (s, k, n, f) for s in range(3) for k, n in (("a", 1), ("b", 2)) for f in (False, True)
    )
    assert all(not case.full for case in found["all"][0])
    assert {case.arguments["seed"] for case in found["all"][0]} == {0, 1}


def test_a_value_that_is_skipped_skips_its_cases_alone() -> None:
    seen = []

    @in_one_item()
    @pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.skipif(True, reason="no 2"))])
    def test(number: int) -> None:
        seen.append(number)

    test(case=items(test)["all"][0])
    assert seen == [1]


def pairs_of(values: Sequence[Any]) -> set[Any]:
    return set(itertools.combinations(enumerate(values), 2))


@in_one_item()
@pytest.mark.parametrize("lengths", [(3,), (2, 3), (2, 3, 4, 2), (5, 8), (3, 3)])
def test_lanes_cover_all_values_and_pairs(lengths: tuple[int, ...]) -> None:
    values = [[f"{name}{number}" for number in range(length)] for name, length in zip("abcd", lengths, strict=False)]
    found = covering(*values)
    default = [case.values for case in found if not case.marks]
    assert len(default) == max(lengths)
    assert set().union(*default) == set().union(*values)
    assert len({case.values for case in found}) == len(found) <= len(list(itertools.product(*values)))
    every = set().union(*map(pairs_of, itertools.product(*values)))
    assert set().union(*(pairs_of(case.values) for case in found)) == every

    def test(**given: str) -> None:
        """Any arguments."""

    for name, column in zip("abcd", values, strict=False):
        test = pytest.mark.parametrize(name, column)(test)
    chosen = items(in_one_item("pairs")(test))["all"][0]
    kept = [tuple(case.arguments[name] for name in "abcd"[: len(lengths)]) for case in chosen]
    assert set().union(*map(pairs_of, kept)) == every


def test_values_at_other_places_belong_to_the_full_lane() -> None:
    @default_at(1)
    @pytest.mark.parametrize(("a", "b"), [(1, 2), (3, 4), pytest.param(5, 6, id="last")])
    def several(a: int, b: int) -> None:
        """Only its marks are read."""

    @default_at(0, 2)
    @pytest.mark.parametrize("pair", [(1, 2), (3, 4), (5, 6)], ids=["x", "y", "z"])
    def one(pair: tuple[int, int]) -> None:
        """Only its marks are read."""

    def lanes(test: Any) -> list[tuple[Any, bool]]:
        (mark,) = test.pytestmark
        return [
            (value.values, True) if type(value).__name__ == "ParameterSet" and value.marks else (value, False)
            for value in mark.args[1]
        ]

    assert lanes(several) == [((1, 2), True), ((3, 4), False), ((5, 6), True)]
    assert lanes(one) == [((1, 2), False), (((3, 4),), True), ((5, 6), False)]
    with pytest.raises(ValueError, match="one: no parametrize mark below has values at"):
        default_at(3)(one)


@in_one_item()
@pytest.mark.parametrize("number", [1, 2])
def test_each_combination_has_its_own_folder_and_patches(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(tmp_path.iterdir()) == []
    assert "GRAPHKIT_COMBINATION" not in os.environ
    (tmp_path / "file").touch()
    monkeypatch.setenv("GRAPHKIT_COMBINATION", str(number))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def names() -> list[str]:
    return ["first"]


@in_one_item()
@pytest.mark.parametrize("number", [0, 1])
def test_no_combination_changes_numbers_or_lists_of_the_next(
    number: int, rng: np.random.Generator, names: list[str]
) -> None:
    assert rng.random() == np.random.default_rng(0).random()
    assert names == ["first"]
    names.append("second")
