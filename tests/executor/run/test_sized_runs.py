"""Native runs with new sizes: few Python calls, the results of a static program, and Python where it must choose."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from python_calls import count_calls

import graphkit as gk
from graphkit.errors import GraphkitError, InputError, LimitReached, OutOfMemory, RuntimeFailure
from graphkit.executor.memory.pools import RECYCLED_BYTES
from graphkit.executor.run import session
from graphkit.executor.run.program import Program
from graphkit.executor.run.program_choice import ProgramChoice
from graphkit.executor.run.session import Executor
from graphkit.executor.run.sized_program import RUNS_BEFORE_COMPILING
from graphkit.executor.run.sized_runs import Host
from graphkit.ir import limits
from graphkit.ops import F

# The most calls of Python functions in a run with a new size. It needs 10, for any number of nodes.
MOST_CALLS = 14


def network(layers: int = 4) -> gk.Model:
    """Layers on x [B, T, 8] that mix the rows of an example, so that they depend on each other."""
    h = gk.input("x", ["B", "T", 8])
    for number in range(layers):
        h = gk.softmax(gk.nn.linear(h, 8, name=f"layer{number}"), axis=1)
    return gk.Model({"y": h, "sum": gk.reduce_sum(h)})


def fed(length: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng([length, seed]).standard_normal((1, length, 8), dtype=np.float32)}


def ready(net: gk.Model, **options: Any) -> Executor:
    """An executor whose next runs are native."""
    executor = net.compile(threads=1, seed=0, **options)
    for length in (3, 4):
        executor.run(fed(length))
    return executor


@pytest.mark.onednn
@pytest.mark.parametrize("layers", [2, 12])
def test_new_sizes_take_few_python_calls(layers: int) -> None:
    executor = ready(network(layers))
    for length in (9, 5, 9, 17):
        feeds = fed(length)
        found, _ = count_calls(lambda feeds=feeds: executor.run(feeds))
        assert found <= MOST_CALLS


def test_results_equal_those_of_a_program_for_one_size() -> None:
    executor = ready(network())
    for length in (9, 1, 30, 9, 2):
        alone = network().compile(threads=1, seed=0)
        alone.params.update({name: executor.params[name] for name in executor.params})
        expected, found = alone.run(fed(length)), executor.run(fed(length))
        assert list(found) == ["y", "sum"]
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


def test_results_of_earlier_runs_keep_their_elements() -> None:
    executor = ready(network())
    first = executor.run(fed(6))
    kept = {name: array.copy() for name, array in first.items()}
    for length in (6, 7, 6):
        executor.run(fed(length, seed=1))
    for name, array in kept.items():
        np.testing.assert_array_equal(first[name], array)


@pytest.mark.parametrize("changed", [np.zeros((1, 5, 7), np.float32), np.zeros((1, 5, 8)), np.zeros((5, 8))])
def test_wrong_feeds_are_refused_as_before(changed: np.ndarray) -> None:
    executor = ready(network())
    with pytest.raises(InputError, match="input 'x'"):
        executor.run({"x": changed})
    assert executor.run(fed(5))["y"].shape == (1, 5, 8)


def test_sizes_that_do_not_fit_name_the_node() -> None:
    x, w = gk.input("x", ["N", 4]), gk.input("w", ["M", 4])
    executor = gk.Model({"y": F.add(x, w, name="joint")}).compile(threads=1)
    for n in (3, 4, 5):
        executor.run({"x": np.ones((n, 4), np.float32), "w": np.ones((1, 4), np.float32)})
    for _ in range(2):
        with pytest.raises(GraphkitError, match=r"'joint'.*\[6, 4\].*\[7, 4\]"):
            executor.run({"x": np.ones((6, 4), np.float32), "w": np.ones((7, 4), np.float32)})


def test_a_kernel_that_fails_is_named_and_later_runs_succeed() -> None:
    x, index = gk.input("x", ["N", 4]), gk.input("index", ["K"], "int64")
    executor = gk.Model({"y": F.gather(F.exp(x), index, name="chosen")}).compile(threads=1)
    given = {"x": np.zeros((3, 4), np.float32)}
    for n in (1, 2, 3):
        executor.run({**given, "index": np.zeros(n, np.int64)})
    for n in (4, 2, 4):
        with pytest.raises(GraphkitError, match="chosen"):
            executor.run({**given, "index": np.full(n, 9)})
        np.testing.assert_array_equal(executor.run({**given, "index": np.zeros(n, np.int64)})["y"], np.ones((n, 4)))


def test_limits_hold_for_new_sizes() -> None:
    executor = ready(network())
    with limits.limited(memory=1000), pytest.raises(OutOfMemory):
        executor.run(fed(500))
    assert executor.run(fed(500))["y"].shape == (1, 500, 8)


def test_a_time_limit_ends_a_native_run(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ready(network(12))
    found: list[Any] = []
    monkeypatch.setattr(ProgramChoice, "find_program", lambda *_, **__: found.append(1))
    assert executor.run(fed(500), timeout=60.0)["y"].shape == (1, 500, 8)
    with pytest.raises(LimitReached, match="time limit"):
        executor.run(fed(200_000), timeout=1e-9)
    assert executor.run(fed(500))["y"].shape == (1, 500, 8)
    assert not found


def test_little_memory_is_refused_after_many_small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "most_unchecked", 1 << 20)
    executor = ready(network())
    monkeypatch.setattr(limits, "_unchecked", 0)
    monkeypatch.setattr(limits, "available_memory", lambda: 1 << 10)

    def run_all() -> None:
        for length in range(2000, 2040):
            executor.run(fed(length))

    with pytest.raises(OutOfMemory):
        run_all()


def test_little_memory_is_refused_for_one_large_run(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ready(network())
    monkeypatch.setattr(limits, "available_memory", lambda: 1 << 10)
    with pytest.raises(OutOfMemory):
        executor.run({"x": np.zeros((1, limits.SMALL // 32, 8), np.float32)})


def test_large_results_use_recycled_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = network().compile(threads=1, seed=0)
    recycled: list[int] = []
    array = executor._pools.results.array

    def spy(position: int, *arguments: Any) -> np.ndarray:
        recycled.append(position)
        return array(position, *arguments)

    monkeypatch.setattr(executor._pools.results, "array", spy)
    for length in (3, 4):
        executor.run(fed(length))
    monkeypatch.setattr(ProgramChoice, "find_program", lambda *_: pytest.fail("the run is not native"))
    assert recycled == []
    executor.run(fed(RECYCLED_BYTES // 32))
    assert recycled == [0]  # "sum" is small


def test_frequent_sizes_use_the_program_compiled_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ready(network())
    for _ in range(RUNS_BEFORE_COMPILING + 1):
        executor.run(fed(5))
    program = executor._choice.latest
    assert isinstance(program, Program)
    executor.run(fed(6))
    used: list[int] = []
    run = program.run
    monkeypatch.setattr(program, "run", lambda *given: used.append(1) or run(*given))
    executor.run(fed(5))
    assert used == [1]


def test_parameters_that_change_are_read_again() -> None:
    executor = ready(network())
    before = executor.run(fed(5))["y"]
    name = next(name for name in executor.params if name.endswith("weight"))
    executor.params[name] = executor.params[name] * np.float32(2)
    after = executor.run(fed(5))["y"]
    assert abs(after - before).max() > 1e-4
    alone = network().compile(threads=1, seed=0)
    alone.params.update({name: executor.params[name] for name in executor.params})
    np.testing.assert_array_equal(alone.run(fed(5))["y"], after)


def test_runs_advance_a_generator_that_no_node_reads() -> None:
    net = gk.models.build("transformer_lm", vocab=20, width=8, heads=2, layers=1, length=64)
    executor, stepwise = net.compile(threads=1, seed=3), net.compile(threads=1, seed=3, deterministic=True)
    for length in (4, 5, 6, 7, 6):
        for each in (executor, stepwise):
            each.run({"x": np.zeros((1, length), np.int64)})
        assert executor.rng == stepwise.rng


def test_failed_runs_and_fed_states_advance_the_generator_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    net = gk.models.build("transformer_lm", vocab=20, width=8, heads=2, layers=1, length=64)

    def states() -> list[tuple[int, int]]:
        executor, found = net.compile(threads=1, seed=3), []
        for extra in ({}, {"rng": np.zeros(2, np.uint64)}):
            for length, token in ((4, 0), (5, 0), (6, 0), (7, 99), (6, 99), (6, 0)):
                try:
                    executor.run({"x": np.full((1, length), token), **extra})
                except RuntimeFailure:
                    assert token == 99
                found.append(executor.rng)
        return found

    found = states()
    monkeypatch.setattr(session, "run_natively", lambda *_: None)
    assert found == states()


def test_contradictory_batches_do_not_advance_the_generator() -> None:
    x, w = gk.input("x", ["N", 4]), gk.input("w", ["N", 4])
    net = gk.Model({"y": gk.nn.linear(gk.nn.dropout(F.add(x, w), 0.5), 4)})
    executor = net.compile(threads=1, seed=1)
    for n in (2, 3, 4):
        executor.run({"x": np.ones((n, 4), np.float32), "w": np.ones((n, 4), np.float32)})
    before = executor.rng
    with pytest.raises(InputError, match="dimension N is 6 in input 'x' and 5 in input 'w'"):
        executor.run({"x": np.ones((6, 4), np.float32), "w": np.ones((5, 4), np.float32)})
    assert executor.rng == before == (1, 3)


def test_new_sizes_from_many_threads() -> None:
    executor, alone = ready(network()), ready(network())
    alone.params.update({name: executor.params[name] for name in executor.params})
    expected = {length: alone.run(fed(length)) for length in range(1, 40)}

    def work(seed: int) -> None:
        for length in np.random.default_rng(seed).permutation(list(expected)).tolist():
            found = executor.run(fed(length))
            np.testing.assert_array_equal(found["y"], expected[length]["y"])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_the_latest_program_is_that_of_a_native_run() -> None:
    executor = ready(network())
    sizes = [executor.run(fed(length)) and executor.plan.result_bytes for length in (5, 50, 5, 3)]
    assert sizes[3] < sizes[0] == sizes[2] < sizes[1]


def test_the_latest_program_is_that_of_a_python_run_after_native_runs() -> None:
    x, scale = gk.input("x", ["N", 4]), gk.input("scale", [])
    executor = gk.Model({"y": F.mul(F.exp(x), scale)}).compile(threads=1)

    def result_bytes(length: int, factor: np.float32 | np.ndarray) -> int:
        executor.run({"x": np.ones((length, 4), np.float32), "scale": factor})
        return executor.plan.result_bytes

    array = np.array(2, np.float32)
    for length in (3, 4, 5):
        result_bytes(length, array)
    native = result_bytes(50, array)
    # Native runs do not accept numpy scalars. The latest run in Python had 4 rows.
    assert result_bytes(4, np.float32(2)) < native
