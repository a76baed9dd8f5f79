"""Arenas and results that programs of one executor take turns on."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.executor.memory import packing, pools
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.executor.memory.pools import Arenas, RecycledResults

FLOATS = np.dtype(np.float32)


def test_a_run_has_an_arena_for_itself() -> None:
    arenas = Arenas()
    first, second = arenas.take(100), arenas.take(100)
    assert not np.shares_memory(first, second)
    assert first.nbytes >= 100
    arenas.give(first)
    assert np.shares_memory(arenas.take(150), first)


def test_smaller_runs_use_the_same_arena() -> None:
    arenas = Arenas()
    large = arenas.take(1 << 20)
    address = large.ctypes.data
    arenas.give(large)
    for size in (1 << 20, 10, 0, 1 << 19):
        arena = arenas.take(size)
        assert arena.ctypes.data == address
        arenas.give(arena)


def test_an_arena_that_is_too_large_for_long_is_let_go() -> None:
    arenas = Arenas()
    arenas.give(arenas.take(1 << 20))
    for _ in range(2 * pools._SHRINK_RUNS):
        arena = arenas.take(1 << 10)
        arenas.give(arena)
    assert arenas.take(1 << 10).nbytes < 1 << 20  # not much more than requested


def test_idle_arenas_are_few() -> None:
    arenas = Arenas()
    for arena in [arenas.take(64) for _ in range(3 * pools.IDLE)]:
        arenas.give(arena)
    assert len(arenas._free) == pools.IDLE


def test_a_result_is_given_out_again_when_nobody_sees_it() -> None:
    results = RecycledResults()
    first = results.array(0, (8, 1000), FLOATS, 32000)
    address = first.ctypes.data
    view = first[1:]
    del first
    second = results.array(0, (8, 1000), FLOATS, 32000)
    assert not np.shares_memory(view, second)
    del view
    assert results.array(0, (7, 1000), FLOATS, 28000).ctypes.data == address


def test_a_small_result_does_not_keep_large_memory() -> None:
    results = RecycledResults()
    address = results.array(0, (1 << 20,), FLOATS, 4 << 20).ctypes.data
    assert results.array(0, (10,), FLOATS, 40).ctypes.data != address


def test_results_that_are_held_stay_what_they_are() -> None:
    x = gk.input("x", ["N", 1 << 14])
    executor = gk.Model(gk.exp(x)).compile(threads=1)
    rng = np.random.default_rng(0)
    held: list[tuple[np.ndarray, np.ndarray]] = []
    for number in range(40):
        array = rng.standard_normal((1 + number % 7, 1 << 14), np.float32)
        (y,) = executor.run({"x": array}).values()
        held.append((array, y))
        if number % 3 == 0:
            del held[0]
    for array, y in held:
        np.testing.assert_allclose(y, np.exp(array), rtol=1e-5)


def test_sizes_by_turns_in_several_threads() -> None:
    x = gk.input("x", ["N", "M"])
    y = gk.relu(gk.mat_mul(x, gk.transpose(x)))
    executor = gk.Model(gk.mat_mul(gk.exp(gk.tanh(y)), x)).compile(threads=2)
    failed: list[Any] = []

    def caller(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            array = rng.standard_normal(rng.integers(1, 60, 2), np.float32)
            (found,) = executor.run({"x": array}).values()
            wide = array.astype(float)
            expected = np.exp(np.tanh(np.maximum(wide @ wide.T, 0))) @ wide
            if not np.allclose(found, expected, rtol=1e-3, atol=1e-3):
                failed.append(array.shape)

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_no_memory_for_more_than_the_arena_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def scarce(size: int) -> np.ndarray:
        made.append(size)
        if size > 100:
            raise MemoryError
        return np.zeros(size, np.uint8)

    monkeypatch.setattr(packing, "aligned_bytes", scarce)
    assert Arenas().take(80).nbytes == 80
    assert made == [640, 80]
    with pytest.raises(MemoryError):
        Arenas().take(101)


def test_large_memory_begins_with_a_page() -> None:
    for size in (1 << 16, (1 << 16) + 1, 1 << 22):
        memory = aligned_bytes(size)
        assert memory.nbytes == size
        assert memory.ctypes.data % 4096 == 0
    assert aligned_bytes(100).ctypes.data % 64 == 0


def test_the_latest_released_memory_is_reused_first() -> None:
    pool = RecycledResults()
    shape, nbytes = (1 << 14,), 1 << 16

    def result() -> np.ndarray:
        return pool.array(0, shape, FLOATS, nbytes)

    first, second = result(), result()
    latest = second.ctypes.data
    assert first.ctypes.data != latest
    del first, second
    for _ in range(3):
        assert result().ctypes.data == latest
