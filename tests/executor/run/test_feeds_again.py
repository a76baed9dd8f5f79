"""Feeds like those of an earlier run, of the same or of other sizes: the program is found by them alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError
from graphkit.executor.run.session import Executor


def network() -> gk.Model:
    """Rows of x [N, 8], weighed by w [N] and added to a [8]; as many parameters as layers."""
    x, w, a = gk.input("x", ["N", 8]), gk.input("w", ["N"]), gk.input("a", [8])
    h = x
    for number in range(4):
        h = gk.tanh(gk.nn.linear(h, 8, name=f"layer{number}"))
    return gk.Model({"y": h * gk.unsqueeze(w, np.array([1])) + a})


def feeds(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([rows, seed])
    shapes: dict[str, tuple[int, ...]] = {"x": (rows, 8), "w": (rows,), "a": (8,)}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs that convert and check every input."""
    seen: list[Any] = []
    collect = Executor._collect

    def counted(self: Executor, selection: Any, given: Any) -> list[Any]:
        seen.append({name: getattr(array, "shape", None) for name, array in given.items()})
        return collect(self, selection, given)

    monkeypatch.setattr(Executor, "_collect", counted)
    return seen


@pytest.mark.onednn
def test_only_the_first_of_similar_feeds_is_converted(looked_up: list[Any]) -> None:
    executor = network().compile(threads=1, seed=0)
    first = {rows: executor.run(feeds(rows))["y"].copy() for rows in (3, 5, 1, 8)}
    for rows in (8, 3, 3, 5, 1, 8, 5, 4):
        y = executor.run(feeds(rows))["y"]
        np.testing.assert_array_equal(y, first.get(rows, y))
    assert len(looked_up) == 1


def test_the_plan_is_that_of_the_latest_run() -> None:
    executor = network().compile(threads=1, seed=0)
    plans = [executor.run(feeds(rows)) and executor.plan for rows in (3, 5, 3)]
    assert plans[0].result_bytes == plans[2].result_bytes < plans[1].result_bytes


@in_one_item()
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": np.zeros(7, np.float32)}, "input 'a'"),
        ({"x": np.zeros((3, 8), np.float64)}, "input 'x'"),
        ({"x": np.zeros((3, 8, 1), np.float32)}, "input 'x'"),
        ({"w": np.zeros(2, np.float32)}, "N"),
        ({"b": np.zeros(8, np.float32)}, "no input 'b'"),
        ({"w": None}, "'w'"),
    ],
)
def test_misfits_are_refused_after_feeds_that_fit(changed: dict[str, Any], message: str) -> None:
    executor = network().compile(threads=1, seed=0)
    for rows in (2, 3, 2):
        executor.run(feeds(rows))
    with pytest.raises(gk.GraphkitError, match=message):
        executor.run(feeds(3) | changed)
    without = feeds(3)
    del without["w"]
    with pytest.raises(InputError, match=r"not given: 'w'"):
        executor.run(without)
    assert executor.run(feeds(3))["y"].shape == (3, 8)


def test_arrays_in_any_order_and_layout(looked_up: list[Any]) -> None:
    executor = network().compile(threads=1, seed=0)
    expected = {rows: executor.run(feeds(rows))["y"].copy() for rows in (4, 6)}
    for rows in (4, 6):
        given = feeds(rows)
        moved = {**given, "x": np.asfortranarray(given["x"])}
        np.testing.assert_array_equal(executor.run(dict(reversed(moved.items())))["y"], expected[rows])
        listed = {**given, "w": given["w"].tolist()}
        np.testing.assert_array_equal(executor.run(listed)["y"], expected[rows])
    assert len(looked_up) == 5  # the first run, and what is not taken as it is


def test_parameters_that_change_or_are_fed_between_sizes() -> None:
    model = network()
    executor = model.compile(threads=1, seed=0)
    for rows in (2, 3):
        executor.run(feeds(rows))
    before = executor.run(feeds(2))["y"].copy()
    bias = next(name for name in executor.params if name.endswith("bias"))
    executor.params[bias] = executor.params[bias] + np.float32(1)
    after = executor.run(feeds(2))["y"].copy()
    assert abs(after - before).max() > 1e-3
    fed = {**feeds(2), bias: executor.params[bias] - np.float32(1)}
    np.testing.assert_allclose(executor.run(fed)["y"], before, atol=1e-6)
    np.testing.assert_array_equal(executor.run(feeds(2))["y"], after)


def test_sizes_from_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also works while programs are evicted and made again."""
    monkeypatch.setattr("graphkit.executor.run.sized_program._STEP_BYTES", 64 << 10)
    monkeypatch.setattr("graphkit.executor.run.sized_runs._STEP_BYTES", 16 << 10)
    monkeypatch.setenv("GRAPHKIT_CACHE_MB", "1")
    executor, alone = (network().compile(threads=n, seed=0) for n in (2, 1))
    expected = {rows: alone.run(feeds(rows))["y"].copy() for rows in range(1, 25)}

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for rows in rng.integers(1, 25, 300).tolist():
            np.testing.assert_allclose(executor.run(feeds(rows))["y"], expected[rows], rtol=1e-5, atol=1e-6)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert len(executor._programs) < 24
    assert executor._choice._sized_runs is not None
    assert len(executor._choice._sized_runs) < 24
