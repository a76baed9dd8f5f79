"""The check of complete lanes reports lost cases, and accepts moved and new ones."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {"default": {"tests/a": 5, "tests/b": 2}, "full": {"tests/a": 3}}


@pytest.fixture(scope="module")
def complete() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "complete.py"))


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        ({"default": {"tests/a": 5, "tests/b": 2}, "full": {"tests/a": 3}}, []),
        ({"default": {"tests/a": 1, "tests/b": 9}, "full": {"tests/a": 7}}, []),
        ({"default": {"tests/a": 5, "tests/b": 2}, "full": {"tests/a": 2, "tests/b": 1}}, ["tests/a has 7 cases"]),
        ({"default": {"tests/a": 5, "tests/c": 2}, "full": {"tests/a": 3}}, ["tests/b has 0 cases"]),
        ({"default": {"tests/a": 5, "tests/b": 2}, "full": {}}, ["tests/a has 5 cases"]),
        ({"default": {"tests/a": 9, "tests/b": 2}}, ["the full lane did not run"]),
        ({**KNOWN, "slow": {"tests/a": 1}}, ["tests/lanes.toml has no numbers of the slow lane"]),
    ],
    ids=["same", "moved and new", "lost", "folder moved", "lane without cases", "lane missing", "lane unknown"],
)
def test_lost_cases(complete: dict[str, Any], found: dict[str, dict[str, int]], lost: list[str]) -> None:
    problems = complete["lost_cases"](KNOWN, found)
    assert [problem[: len(line)] for problem, line in zip(problems, lost, strict=True)] == lost


def test_cases_are_counted_by_folder(complete: dict[str, Any]) -> None:
    tests = {
        "tests/a/b/test_x.py::test_x[1]": (3, 0.1),
        "tests/a/test_y.py::test_y": (1, 0.0),
        "tests/test_z.py::test_z": (2, 0.0),
    }
    assert complete["counts_of"](tests) == {"tests": 2, "tests/a": 4}
