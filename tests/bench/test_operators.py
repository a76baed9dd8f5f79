"""The benchmark of single operators: its rows, and how results are compared."""

from __future__ import annotations

import argparse
import math
from typing import Any

import gradient_rows
import gradient_rows_corners
import numpy as np
import operator_rows
import operator_rows_corners
import operators
import pytest
from combinations import in_one_item
from operator_operands import Operand, boxes, definite, divisors, given, integers, normal, positive, small, truths

ROWS = {**operator_rows.ROWS, **gradient_rows.ROWS}
OPTIONS = argparse.Namespace(only=[], rounds=1)


def test_each_row_has_two_sets_of_shapes() -> None:
    assert len(operator_rows.ROWS) > 190
    assert len(gradient_rows.ROWS) > 70
    for row in ROWS.values():
        kinds = [[(o.dtype, o.constant) for o in operands] for operands in (row.operands, row.other)]
        assert kinds[0] == kinds[1], row.name
        assert [o.shape for o in row.operands] != [o.shape for o in row.other] or row.name == "Range", row.name


def test_rows_of_corners_are_also_small() -> None:
    assert len(operator_rows_corners.CORNERS) > 200
    assert len(gradient_rows_corners.CORNERS) > 60
    for row in (*operator_rows_corners.CORNERS.values(), *gradient_rows_corners.CORNERS.values()):
        kinds = [[(o.dtype, o.constant) for o in operands] for operands in (row.operands, row.other)]
        assert kinds[0] == kinds[1], row.name
        assert sum(math.prod(o.shape) for o in row.other) <= 100_000, row.name


def test_operands_are_what_they_say() -> None:
    rng = np.random.default_rng(0)
    assert normal(2, 3).draw(rng).dtype == np.float32
    assert positive(50).draw(rng).min() >= 0.5
    assert set(divisors(2, 50).draw(rng)) == {1, 2}
    assert set(integers(2, 50).draw(rng)) == {0, 1}
    assert truths(4).draw(rng).dtype == bool
    assert np.abs(small(2, 10000).draw(rng)).max() < 0.1
    low, high = np.split(boxes(9, 20, 4).draw(rng), 2, axis=1)
    assert (low <= high).all()
    assert (np.linalg.eigvalsh(definite(3, 4, 4).draw(rng)) > 0).all()
    assert given([1, 2]).draw(rng).tolist() == [1, 2]
    assert str(normal(2, 3, dtype="float16")) == "f16[2,3]"


@in_one_item()
@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], 0),
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([True], [False], 1e6),
        ([1.0], [1.0, 2.0], np.inf),
    ],
)
def test_differences(ours: Any, theirs: Any, expected: float) -> None:
    assert operators.difference([np.array(ours)], [np.array(theirs)]) == pytest.approx(expected)


def test_a_result_that_is_not_finite_alone_differs() -> None:
    assert not operators.difference([np.array([np.nan, 1.0])], [np.array([0.0, 1.0])]) <= 1


def test_a_table_lists_rows_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(row: Any, operands: Any, threads: int, rng: Any) -> operators.Engines:
        if row.name == "refused":
            raise ValueError("no such row")
        return operators.Engines(int, int, 1.0 if row.name == "wrong" else 0.0)

    operands = [Operand("normal", (2,))]
    rows = {
        name: operator_rows.Row(name, "Relu", operands, operands, 1, 21, {}) for name in ("right", "wrong", "refused")
    }
    monkeypatch.setattr(operators, "TABLES", {"forward": ("a peer", rows, opened)})
    monkeypatch.setattr(operators, "_SECONDS", 0.001)
    page, complete = operators.measured("forward", "first", 1, OPTIONS)
    assert not complete
    assert "| right | f32[2] |" in page
    assert "- refused: ValueError: no such row" in page
    assert "- wrong: results differ by 1.0e+00 of the largest element" in page
    page, complete = operators.measured("forward", "first", 1, argparse.Namespace(only=["right"], rounds=1))
    assert complete
    assert "1 rows; geometric mean of the ratios to a peer" in page


def test_engines_agree_on_a_row() -> None:
    row = operator_rows.ROWS["Add_row"]
    engines = operators.forward(row, row.other, 1, np.random.default_rng(0))
    assert engines.difference == 0
    engines.ours()
    engines.theirs()
