"""Large batches in parts have the results of the whole batch, also with concurrent runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import InputError, RuntimeFailure, TypeMismatch
from graphkit.executor.devices.cpu import native
from graphkit.executor.lower import batch as batches
from graphkit.executor.run.batched_program import BatchedProgram
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.program import Program
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import SequenceType, TensorType
from graphkit.ops import F

IMAGE = (3, 12, 12)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three examples of `network` at a time."""
    monkeypatch.setattr(batches, "_CACHED", 3 * (3 + 16) * 144 * 4)
    return


def network(extra: Callable[[gk.Value], dict[str, gk.Value]] = lambda x: {}) -> gk.Model:
    x = gk.input("x", ["N", *IMAGE])
    hidden = gk.relu(gk.nn.conv2d(x, 16, 3, pad=1, name="a"))
    y = gk.nn.linear(gk.flatten(gk.relu(gk.nn.conv2d(hidden, 8, 3, stride=2, name="b"))), 5, name="c")
    return gk.Model({"y": y, **extra(hidden)})


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *IMAGE), np.float32)


def whole(model: gk.Model, x: np.ndarray) -> dict[str, np.ndarray]:
    """The results of the examples one by one."""
    exe = model.compile(threads=1)
    rows = [exe.run({"x": x[i : i + 1]}) for i in range(len(x))]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


def in_parts(exe: Executor) -> bool:
    return isinstance(exe._choice.latest, BatchedProgram)


@pytest.mark.onednn
def test_instances_know_the_time_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the loop over parts counts as long as it is: see `test_short_delays_do_not_keep_helpers_from_long_loops`."""
    known: list[int] = []
    run_parts = native.run_parts

    def spy(instances: list[native.Instance], *arguments: Any) -> None:
        run_parts(instances, *arguments)
        known.append(instances[0].part_nanoseconds)

    monkeypatch.setattr(native, "run_parts", spy)
    exe = network().compile(threads=2)
    exe.run({"x": images(12)})
    assert in_parts(exe)
    assert all(time > 0 for time in known)
    assert known


@pytest.mark.onednn
@in_one_item()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_batches_of_all_sizes(threads: int) -> None:
    model = network()
    exe = model.compile(threads=threads)
    for count in (20, 1, 3, 4, 7, 13, 0, 20):
        x = images(count, count)
        got = exe.run({"x": x})["y"]
        assert in_parts(exe) is (count > 3)
        assert got.shape == (count, 5)
        if count:
            np.testing.assert_allclose(got, whole(model, x)["y"], rtol=1e-4, atol=1e-5)
    # The whole of 3, and the rest of 1 or 2, are the programs of all sizes.
    assert len([p for p in exe._programs._kept.values() if not isinstance(p, BatchedProgram)]) <= 5


@pytest.mark.onednn
def test_results_that_are_inputs_and_constants_of_a_part() -> None:
    x = gk.input("x", ["N", *IMAGE])
    hidden = gk.relu(gk.nn.conv2d(x, 16, 3, pad=1))
    model = gk.Model({"y": gk.neg(hidden), "same": gk.identity(x), "flat": gk.reshape(x, (-1, 432))})
    exe = model.compile(threads=2)
    given = images(11)
    got = exe.run({"x": given})
    assert in_parts(exe)
    np.testing.assert_array_equal(got["same"], given)
    np.testing.assert_array_equal(got["flat"], given.reshape(11, 432))
    np.testing.assert_allclose(got["y"], whole(model, given)["y"], rtol=1e-5, atol=1e-5)
    got["same"][:] = 0
    assert given.any()


@in_one_item()
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_example(wrong: float) -> None:
    exe = network().compile(threads=2)
    x = images(10)
    clean = exe.run({"x": x})["y"]
    x[4, 1, 5, 5] = wrong
    got = exe.run({"x": x})["y"]
    assert not np.isfinite(got[4]).all()
    others = np.arange(10) != 4
    np.testing.assert_array_equal(got[others], clean[others])


@pytest.mark.onednn
def test_results_go_where_the_caller_says() -> None:
    model = network(lambda h: {"hidden": gk.neg(h)})
    exe = model.compile(threads=2)
    x = images(8)
    out = {"y": np.empty((8, 5), np.float32), "hidden": np.empty((8, 32, 12, 12), np.float32)[:, ::2]}
    got = exe.run({"x": x}, out=out)
    assert in_parts(exe)
    assert got["y"] is out["y"]
    for name, expected in whole(model, x).items():
        np.testing.assert_allclose(out[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.onednn
def test_inputs_of_any_layout_and_some_of_the_outputs() -> None:
    model = network(lambda h: {"hidden": gk.neg(h)})
    exe = model.compile(threads=2)
    x = images(9).transpose(0, 1, 3, 2)
    got = exe.run({"x": x}, outputs=["hidden"])
    assert in_parts(exe)
    np.testing.assert_allclose(got["hidden"], whole(model, x)["hidden"], rtol=1e-4, atol=1e-5)


def test_parameters_that_change_between_runs() -> None:
    model = network()
    exe = model.compile(threads=2)
    x = images(10)
    before = exe.run({"x": x})["y"]
    exe.params["c_bias"] = exe.params["c_bias"] + np.float32(1)
    exe.params["a_weight"] = np.zeros_like(exe.params["a_weight"])
    after = exe.run({"x": x})["y"]
    assert not np.allclose(after, before + 1)
    np.testing.assert_allclose(after, np.repeat(after[:1], 10, axis=0), rtol=1e-6)


def test_many_threads_at_once() -> None:
    model = network()
    exe = model.compile(threads=2)
    sizes = [4, 6, 9, 10, 13, 20]
    expected = {n: whole(model, images(n, n))["y"] for n in sizes}
    wrong: list[int] = []

    def work(start: int) -> None:
        for i in range(30):
            n = sizes[(start + i) % len(sizes)]
            if not np.allclose(exe.run({"x": images(n, n)})["y"], expected[n], rtol=1e-4, atol=1e-5):
                wrong.append(n)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_an_error_in_one_part_is_the_run_s() -> None:
    table = gk.parameter("table", [4, 16])
    i = gk.input("i", ["N", 8], dtype="int64")
    model = gk.Model({"y": gk.neg(gk.softmax(gk.gather(table, i)))})
    exe = model.compile(threads=2)
    good = np.zeros((400, 8), np.int64)
    exe.run({"i": good})
    assert in_parts(exe)
    bad = good.copy()
    bad[399, 7] = 9
    with pytest.raises(RuntimeFailure, match=r"gather: Gather.*index 9"):
        exe.run({"i": bad})
    assert exe.run({"i": good})["y"].shape == (400, 8, 16)


def test_contradictions_name_the_sizes_of_the_whole() -> None:
    x, y = gk.input("x", ["N", 64]), gk.input("y", ["N", "M"])
    exe = gk.Model({"z": gk.relu(gk.softmax(gk.add(gk.exp(x), y)))}).compile(threads=1)
    with pytest.raises(InputError, match="dimension N is 900 in input 'x' and 901 in input 'y'"):
        exe.run({"x": np.ones((900, 64), np.float32), "y": np.ones((901, 64), np.float32)})
    with pytest.raises(TypeMismatch, match=r"float32\[900, 64\]"):
        exe.run({"x": np.ones((900, 64), np.float32), "y": np.ones((900, 63), np.float32)})


@pytest.mark.onednn
def test_the_plan_and_the_profile_are_those_of_a_part() -> None:
    exe = network().compile(threads=2)
    exe.run({"x": images(20)})
    plan = exe.plan
    assert plan.examples == (3, 20)
    assert plan.arenas == 2
    assert plan.result_bytes == 20 * 5 * 4
    assert "20 examples, 3 at a time" in str(plan)
    with gk.profile() as profile:
        exe.run({"x": images(20)})
    convolutions = [o for o in profile.operators if "Conv" in o.operator]
    assert sum(o.calls for o in convolutions) == 2 * 7


def test_switches_that_ask_for_the_whole() -> None:
    for options in ({"optimize": False}, {"share": False}, {"inplace": False}):
        exe = network().compile(threads=1, **options)
        exe.run({"x": images(20)})
        assert not in_parts(exe)


def test_bits_do_not_depend_on_threads_where_they_must_not() -> None:
    model = network()
    results = [model.compile(threads=n, deterministic=True).run({"x": images(23)})["y"] for n in (1, 2, 3, 5)]
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_an_input_that_nothing_reads_and_that_is_no_tensor() -> None:
    x = gk.input("x", ["N", *IMAGE])
    unread = Value(SequenceType(TensorType("float32", (2,))), "unread")
    hidden = F.relu(F.exp(x))
    exe = Executor(Graph([x, unread], [F.softmax(F.neg(hidden))]), ParamStore({}), threads=2)
    for count in (20, 20, 1, 2, 3, 20):
        feeds = {"x": images(count), "unread": [np.ones(2, np.float32)]}
        (got,) = exe.run(feeds).values()
        assert got.shape == (count, *IMAGE)


def test_all_parts_have_the_parameters_of_one_time() -> None:
    x = gk.input("x", ["N", 64])
    h = x * gk.parameter("s", [1], "ones")
    model = gk.Model({"y": gk.softmax(h) * 0 + h})
    exe = model.compile(threads=2)
    ones = np.ones((5003, 64), np.float32)
    exe.run({"x": ones})
    assert in_parts(exe)
    done = threading.Event()

    def write() -> None:
        number = 1.0
        while not done.is_set():
            number += 1
            exe.params["s"] = np.full(1, number, np.float32)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(30):
            y = exe.run({"x": ones})["y"]
            assert (y == y[0, 0]).all()
    finally:
        done.set()
        writer.join()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch keeps the programs of its parts no longer than they are kept, and keeps them in use."""
    monkeypatch.setenv("GRAPHKIT_CACHE_MB", "1")
    x = gk.input("x", ["N", 3, "H", "H"])
    h = x
    for _ in range(6):
        h = gk.relu(gk.nn.conv2d(h, 8, 3, pad=1))
    exe = gk.Model({"y": h}).compile(threads=1, deterministic=True)
    for number in range(30):
        size = 16 + number % 20
        exe.run({"x": np.ones((9, 3, size, size), np.float32)})
        kept = exe._programs._kept
        for program in kept.values():
            if isinstance(program, BatchedProgram):
                assert set(program.part_keys) <= set(kept)
        assert exe._programs._bytes == sum(p.kept_bytes for p in kept.values())
    assert exe._programs._bytes < 2 << 20


@pytest.mark.onednn
def test_a_part_that_comes_often_is_compiled() -> None:
    exe = network().compile(threads=1)
    exe.run({"x": images(1)})
    exe.run({"x": images(2)})
    for _ in range(40):
        exe.run({"x": images(6)})
    batched = exe._choice.latest
    assert isinstance(batched, BatchedProgram)
    assert isinstance(batched._parts.program, Program)
    assert not batched.needs_recompiling


def test_sizes_that_take_turns_are_compiled_as_one_that_stays_is() -> None:
    exe = network().compile(threads=1)
    for number in range(3 * 40):
        exe.run({"x": images(1 + number % 3)})
    assert [type(p) for p in exe._programs._kept.values()] == [Program] * 3


@pytest.mark.onednn
def test_instances_wait_for_the_next_run() -> None:
    exe = network().compile(threads=6)
    for _ in range(4):
        exe.run({"x": images(40)})
    batched = exe._choice.latest
    assert isinstance(batched, BatchedProgram)
    assert len(batched._parts.program._idle) == 6
