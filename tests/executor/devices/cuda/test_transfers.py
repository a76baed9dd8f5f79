"""Transfers between host and GPU: small inputs in one copy, small results with one wait.

Memory is not overwritten while it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from stand_in import Card
from together import together

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.capabilities import SMALL_BYTES
from graphkit.executor.memory.pools import RECYCLED_BYTES
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

KINDS = ("float32", "int64", "bfloat16", "bool")
# Elements: none, some, as many as make it small or not.
SIZES = (5, 0, 3, 1, SMALL_BYTES // 4 - 1, SMALL_BYTES // 8, 1000, SMALL_BYTES - 1, SMALL_BYTES // 4 + 7)


def inputs_of(sizes: Sequence[int]) -> list[Value]:
    """So many elements each, in several types."""
    return [Value(TensorType(KINDS[i % 4], (n,) if n != 1 else ()), f"x{i}") for i, n in enumerate(sizes)]


def negatives(*sizes: int) -> Executor:
    """An executor on the card that negates each of its inputs."""
    inputs = inputs_of(sizes)
    outputs = [F.not_(v) if v.dtype.value == "bool" else F.neg(v) for v in inputs]
    for i, value in enumerate(outputs):
        value.name = f"y{i}"
    return Executor(Graph(inputs, outputs), ParamStore({}), device="cuda")


def filled(turn: int, *sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(turn)
    found = {}
    for value in inputs_of(sizes):
        drawn = rng.integers(0, 2 if value.dtype.value == "bool" else 99, value.tensor.static_shape)
        found[str(value.name)] = np.asarray(drawn).astype(value.dtype.numpy)
    return found


def negated(array: np.ndarray) -> np.ndarray:
    found: np.ndarray = ~array if array.dtype == bool else -array
    return found


def check(feeds: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    for fed, array in zip(feeds.values(), found.values(), strict=True):
        assert array.dtype == fed.dtype
        np.testing.assert_array_equal(array, negated(fed), strict=True)


def test_every_type_and_size(card: Card) -> None:
    executor = negatives(*SIZES)
    runs = []
    for turn in range(5):
        feeds = filled(turn, *SIZES)
        before = card.uploads
        runs.append((feeds, executor.run(feeds)))
        # The first time, what is set up is among them.
        large = sum(array.nbytes == 0 or array.nbytes >= SMALL_BYTES for array in feeds.values())
        assert card.uploads - before == 1 + large or not turn
    for feeds, found in runs:
        check(feeds, found)  # the callers' own
    assert card.replays


def test_many_that_are_small_are_not_all_in_one_copy(card: Card) -> None:
    sizes = [SMALL_BYTES // 16] * 100
    executor = negatives(*sizes)
    for turn in range(3):
        feeds = filled(turn, *sizes)
        before = card.uploads
        check(feeds, executor.run(feeds))
    assert sum(array.nbytes for array in feeds.values()) > 1 << 20
    assert 1 < card.uploads - before < 80


def test_arrays_of_the_host_that_are_no_pieces_of_memory(card: Card) -> None:
    """Scattered, read-only, of the other byte order."""
    executor = negatives(6, 6)
    wide = np.arange(24, dtype=np.float32)
    swapped = np.arange(6).astype(">i8")
    frozen = np.broadcast_to(np.float32(3), 6)
    for first in (wide[::4], wide[::-1][:6], frozen):
        found = executor.run({"x0": first, "x1": swapped})
        np.testing.assert_array_equal(found["y0"], -first)
        np.testing.assert_array_equal(found["y1"], -swapped)


@together()
@pytest.mark.parametrize("size", [7, SMALL_BYTES])
def test_results_in_arrays_of_the_caller(size: int, card: Card) -> None:
    executor = negatives(size, size)
    whole, scattered = np.zeros(size, np.float32), np.zeros((size, 2), np.int64)[:, 1]
    for turn in range(3):
        feeds = filled(turn, size, size)
        found = executor.run(feeds, out={"y0": whole, "y1": scattered})
        assert found["y0"] is whole
        assert found["y1"] is scattered
        check(feeds, found)


def test_memory_of_large_results_is_used_again_when_nobody_has_them(card: Card) -> None:
    executor = negatives(RECYCLED_BYTES)
    seen, held = set(), []
    for turn in range(6):
        feeds = filled(turn, RECYCLED_BYTES)
        array = executor.run(feeds)["y0"]
        seen.add(array.ctypes.data)
        if turn >= 4:
            held.append((feeds, {"y0": array[::2]}))
        del array
    assert len(seen) == 2
    for feeds, found in held:
        np.testing.assert_array_equal(found["y0"], -feeds["x0"][::2])


def test_behind_a_run_that_failed(card: Card) -> None:
    table, index = Value(TensorType("float32", (4, 3)), "t"), Value(TensorType("int64", (2,)), "i")
    taken = F.gather(table, index)
    taken.name = "y"
    executor = Executor(Graph([table, index], [taken]), ParamStore({}), device="cuda")
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    for turn in range(4):
        with pytest.raises(RuntimeFailure, match="index"):
            executor.run({"t": rows, "i": np.array([turn, 9])})
        at = np.array([turn % 4, 3])
        np.testing.assert_array_equal(executor.run({"t": rows + turn, "i": at})["y"], (rows + turn)[at])


def test_runs_at_one_time(card: Card) -> None:
    executor = negatives(*SIZES)
    feeds = [filled(turn, *SIZES) for turn in range(12)]
    with ThreadPoolExecutor(3) as pool:
        for given, found in zip(feeds, pool.map(executor.run, feeds), strict=True):
            check(given, found)
