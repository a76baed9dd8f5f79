"""Triangular matrices that nodes compute: a derived triangle equals all elements that numpy computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.fuse.attention import fuse_attention
from graphkit.passes.fuse.pointwise import fuse_pointwise
from graphkit.passes.fuse.triangles import triangle_of

ROWS, COLUMNS = 5, 7
LOWEST = float(np.finfo(np.float32).min)
INFINITE = np.float32(-np.inf)


def ones(kind: str = "float32", *lead: int) -> Any:
    return F.constant_of_shape(np.array([*lead, ROWS, COLUMNS]), value=np.ones(1, kind))


def compared(compare: Callable[[Any, Any], Any], shift: int, swapped: bool = False) -> Any:
    columns, rows = F.constant(value=np.arange(COLUMNS)), F.constant(value=np.arange(ROWS)[:, None] + shift)
    return compare(rows, columns) if swapped else compare(columns, rows)


def added(seen: Any) -> Any:
    return F.where(seen, np.float32(0), INFINITE)


FORMS: dict[str, Callable[[], Any]] = {
    **{
        f"{compare.__name__} {shift} {swapped}": lambda c=compare, s=shift, w=swapped: compared(c, s, w)
        for compare in (F.less, F.less_or_equal, F.greater, F.greater_or_equal)
        for shift in (-2, 0, 3)
        for swapped in (False, True)
    },
    "not": lambda: F.not_(compared(F.greater, 2)),
    "where": lambda: added(compared(F.less_or_equal, 2)),
    "lower": lambda: F.trilu(ones("bool"), np.int64(2), upper=False),
    "lower of the main diagonal": lambda: F.trilu(ones(), upper=False),
    "upper": lambda: F.trilu(F.mul(ones(), INFINITE), np.int64(3)),
    "upper of an expansion": lambda: F.trilu(F.expand(INFINITE, np.array([ROWS, COLUMNS])), np.int64(1)),
    "masked and lowest": lambda: F.mul(
        F.trilu(F.mul(ones(), np.float32(LOWEST)), np.int64(1)), F.cast(compared(F.greater, 0), to="float32")
    ),
    "one minus it, times a number": lambda: F.mul(
        F.sub(np.float32(1), F.cast(compared(F.less_or_equal, 2), to="float32")), np.float32(LOWEST)
    ),
    "axes": lambda: F.expand(
        F.unsqueeze(added(compared(F.less_or_equal, 2)), np.array([0, 1])), np.array([2, 3, ROWS, COLUMNS])
    ),
    "reshaped": lambda: F.reshape(F.trilu(ones("bool", 1), upper=False), np.array([1, 1, ROWS, COLUMNS])),
    "both": lambda: F.and_(compared(F.less_or_equal, 2), F.trilu(ones("bool"), np.int64(2), upper=False)),
    "constant": lambda: F.constant(value=np.where(np.tri(ROWS, COLUMNS, 2), 0, -np.inf).astype(np.float32)),
    "where of a constant": lambda: added(F.constant(value=np.tri(ROWS, COLUMNS, 2, dtype=bool))),
    "even places": lambda: F.less(
        F.constant(value=2 * np.arange(COLUMNS)), F.constant(value=2 * np.arange(ROWS)[:, None] + 1)
    ),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("fused", [False, True])
def test_derived_values_equal_computed_ones(name: str, fused: bool) -> None:
    graph = Graph([], [FORMS[name]()])
    (wanted,) = evaluate(graph, [])
    (value,) = (fuse_pointwise(graph) if fused else graph).outputs
    found = triangle_of(value, ROWS, COLUMNS)
    assert found is not None
    assert found.diagonal is not None
    matrix = np.where(np.tri(ROWS, COLUMNS, found.diagonal, dtype=bool), found.low, found.high)
    assert found.low.dtype == wanted.dtype
    np.testing.assert_array_equal(np.broadcast_to(matrix, wanted.shape), wanted)


def numbers(step: int = 1) -> Any:
    """The number of each column; step=-1: of the last column first."""
    return F.constant(value=np.arange(COLUMNS)[::step].copy())


def skewed() -> np.ndarray:
    matrix = np.tri(ROWS, COLUMNS, 2, dtype=np.float32)
    matrix[3, 1] = 2
    return matrix


OTHERS: dict[str, Callable[[], Any]] = {
    "an input": lambda: Value(TensorType("bool", (ROWS, COLUMNS)), "mask"),
    "two diagonals": lambda: F.and_(compared(F.less_or_equal, 2), compared(F.greater, -1)),
    "one element apart": lambda: F.constant(value=skewed()),
    "a band": lambda: F.constant(value=np.tri(ROWS, COLUMNS, 2) - np.tri(ROWS, COLUMNS, -2)),
    "steps of two": lambda: F.less(numbers(), F.constant(value=2 * np.arange(ROWS)[:, None])),
    "columns out of order": lambda: F.less(numbers(-1), F.constant(value=np.arange(ROWS)[:, None])),
    "NaN": lambda: F.less(F.constant(value=np.full(COLUMNS, np.nan)), F.constant(value=np.ones((ROWS, 1)))),
    "a triangle of a matrix": lambda: F.trilu(F.constant(value=np.arange(35.0).reshape(ROWS, COLUMNS))),
    "another number of rows": lambda: F.trilu(F.constant_of_shape(np.array([ROWS + 1, COLUMNS])), upper=False),
    "a triangle times numbers": lambda: F.mul(F.trilu(ones()), np.arange(COLUMNS, dtype=np.float32)),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("name", OTHERS)
def test_other_matrices_have_no_diagonal(name: str) -> None:
    found = triangle_of(OTHERS[name](), ROWS, COLUMNS)
    assert found is None or found.diagonal is None


def test_equal_elements_have_no_diagonal() -> None:
    found = triangle_of(F.less(ones(), np.float32(3)), ROWS, COLUMNS)
    assert found is not None
    assert (found.diagonal, bool(found.low), bool(found.high)) == (None, True, True)


def attention(mask: Any, rows: int, keys: int, boolean: bool) -> Any:
    q, k, v = (
        Value(TensorType("float32", (2, 2, n, 3)), name) for name, n in zip("qkv", (rows, keys, keys), strict=True)
    )
    scores = F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2)))
    masked = F.where(mask, scores, INFINITE) if boolean else F.add(scores, mask)
    (y,) = fuse_attention(Graph([q, k, v], [F.mat_mul(F.softmax(masked), v)])).outputs
    return y.node.op


@in_one_item()
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("boolean", [False, True])
def test_attention_under_a_computed_mask_is_causal(shift: int, boolean: bool) -> None:
    """It is causal only if its diagonal ends at the last key."""
    seen = compared(F.less_or_equal, shift)
    assert attention(seen if boolean else added(seen), ROWS, COLUMNS, boolean).causal is (shift == COLUMNS - ROWS)
    seen = compared(F.greater, shift)
    assert not attention(seen if boolean else added(seen), ROWS, COLUMNS, boolean).causal
