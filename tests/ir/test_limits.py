"""Limits of memory, time and iterations: their sources and effects."""

from __future__ import annotations

import time

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit import config
from graphkit.errors import LimitReached, OutOfMemory, UsageError
from graphkit.ir import limits

SCALAR = {"x": np.float32(0)}


def endless(step=lambda s: s * 0.5):
    return gk.Model({"y": gk.while_loop(lambda s: s > -1.0, step, gk.input("x", []))})


def test_limits_become_narrower_inside():
    with limits.limited(memory=1000, iterations=5):
        with limits.limited(memory=5000, seconds=100.0):
            assert limits.current().memory == 1000
            assert limits.current().iterations == 5
            assert limits.current().deadline < time.monotonic() + 101
        with pytest.raises(OutOfMemory, match=r"the picture: 1001 bytes are needed, but the limit is 1000 bytes"):
            limits.require_memory(1001, "the picture")
        limits.require_memory(1000)
    assert limits.current() == limits.Limits()


def test_what_the_machine_has_left_is_the_limit_without_another():
    assert 0 < limits.available_memory() < 1 << 50
    with pytest.raises(OutOfMemory, match=r"1125899906842624 bytes .* are left"):
        limits.require_memory(1 << 50)


@pytest.mark.parametrize(
    ("line", "folder", "names"),
    [("0::/a/b", "a/b", ("memory.max", "memory.current")),
     ("4:cpu,memory:/a/b", "memory/a/b", ("memory.limit_in_bytes", "memory.usage_in_bytes"))],
)  # fmt: skip
def test_a_control_group_has_less(tmp_path, monkeypatch, line, folder, names):
    for group, most in ((tmp_path / folder, "max"), ((tmp_path / folder).parent, "3000")):
        group.mkdir(parents=True, exist_ok=True)
        for name, text in zip(names, (most, "1000"), strict=True):
            (group / name).write_text(text + "\n")
        (group / "memory.stat").write_text("anon 5\ninactive_file 200\n")
    others = limits._lines
    monkeypatch.setattr(limits, "_lines", lambda path: [line] if path == "/proc/self/cgroup" else others(path))
    assert limits._of_control_groups(tmp_path) == 3000 - 1000 + 200


def test_small_requests_are_counted(monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 0)
    monkeypatch.setattr(limits, "_unchecked", 0)
    limits.require_memory(1 << 20)
    monkeypatch.setattr(limits, "_unchecked", (1 << 28) - 1)
    with pytest.raises(OutOfMemory):
        limits.require_memory(1 << 20)


@in_one_item()
@pytest.mark.parametrize("text", ["4GB", "1.5 MiB", "100"])
def test_amounts_of_memory(text, monkeypatch):
    monkeypatch.setenv("GRAPHKIT_MAX_MEMORY", text)
    wanted = {"4GB": 4 * 10**9, "1.5 MiB": 3 << 19, "100": 100}[text]
    assert config.MAX_MEMORY.get() == wanted
    assert limits.Bounds.of() == limits.Bounds(memory=wanted)


@in_one_item()
@pytest.mark.parametrize("options", [{"max_memory": 0}, {"max_iterations": -1}, {"timeout": float("nan")}])
def test_limits_are_above_zero(options):
    with pytest.raises(UsageError, match="above 0"):
        endless().compile(**options)


def test_a_run_ends_at_the_limit_of_iterations():
    with pytest.raises(LimitReached, match=r"while_loop: more than 1000 iterations"):
        endless().compile(max_iterations=1000).run(SCALAR)
    with limits.limited(iterations=10), pytest.raises(LimitReached, match="more than 10 iterations"):
        gk.ops.evaluate.evaluate(endless().graph, [np.float32(0)])


def test_a_run_ends_in_time_and_the_next_one_has_its_own():
    executor = endless().compile(threads=1)
    started = time.monotonic()
    with pytest.raises(LimitReached, match="the time limit is over"):
        executor.run(SCALAR, timeout=0.2)
    assert time.monotonic() - started < 10
    with pytest.raises(LimitReached, match="iterations"), limits.limited(iterations=100):
        executor.run(SCALAR)
    assert executor.run({"x": np.float32(-2)})["y"] == -2


def test_work_that_must_be_completed_has_no_end():
    with limits.limited(memory=1000, seconds=-1.0, iterations=5):
        with limits.completing():
            limits.check_time()
            limits.check_iterations(5)
            assert limits.current().memory == 1000
        with pytest.raises(LimitReached, match="the time limit is over"):
            limits.check_time()
        with pytest.raises(LimitReached, match="more than 5 iterations"):
            limits.check_iterations(5)


def test_a_reference_ends_in_time():
    with limits.limited(seconds=0.1), pytest.raises(LimitReached, match=r"node .*time"):
        gk.ops.evaluate.evaluate(endless().graph, [np.float32(0)])


def test_a_run_takes_no_more_than_its_memory():
    n = gk.input("n", ["K"])
    wide = gk.Model({"y": gk.sin(gk.reshape(n, (-1, 1)) + gk.reshape(n, (1, -1)))})
    executor = wide.compile(max_memory=1 << 20)
    assert executor.run({"n": np.ones(100, np.float32)})["y"].shape == (100, 100)
    with pytest.raises(OutOfMemory, match=r"4000000 bytes .* limit is 1048576 bytes .*; .*result 'y', 4000000"):
        executor.run({"n": np.ones(1000, np.float32)})
    assert executor.run({"n": np.ones(3, np.float32)})["y"].shape == (3, 3)


def test_sizes_that_a_run_tells_are_within_the_limit():
    count = gk.input("n", [], dtype="int64")
    numbers = gk.range(np.array(0, np.int64), count, np.array(1, np.int64))
    executor = gk.Model({"y": numbers}).compile(max_memory=1 << 16)
    assert executor.run({"n": np.int64(8000)})["y"].shape == (8000,)
    with pytest.raises(OutOfMemory, match="no memory for 80000 bytes"):
        executor.run({"n": np.int64(10_000)})


def test_a_reference_is_refused_before_it_allocates():
    count = gk.input("n", [1], dtype="int64")
    model = gk.Model({"y": gk.constant_of_shape(count)})
    with limits.limited(memory=1 << 16), pytest.raises(OutOfMemory, match=r"ConstantOfShape.*4398046511104"):
        gk.ops.evaluate.evaluate(model.graph, [np.array([1 << 40])])


def test_a_scan_output_grows_to_the_limit_and_no_further():
    row = gk.constant(value=np.zeros(1000, np.float32))
    model = gk.Model({"y": gk.scan(lambda s, x: (s + x, row + s), gk.input("s", []), gk.input("xs", ["T"]))[1]})
    executor = model.compile(max_memory=1 << 20)
    feeds = {"s": np.float32(0), "xs": np.ones(100, np.float32)}
    assert executor.run(feeds)["y"].shape == (100, 1000)
    with pytest.raises(OutOfMemory):
        executor.run(feeds | {"xs": np.ones(1000, np.float32)})


@in_one_item()
@pytest.mark.parametrize(
    "results",
    [
        lambda x: gk.expand(x, np.array([0, 1 << 62])),
        lambda x: gk.reshape(x, np.array([0, 1 << 62]), allowzero=True),  # a view, which is not a step
        lambda x: gk.ops.F.split(gk.expand(x, np.array([0, 1 << 62])), axis=1, num_outputs=2)[0],
    ],
)
def test_shapes_that_no_array_has_are_refused_though_they_take_no_memory(results):
    net = gk.Model({"y": results(gk.input("x", (0, 1)))})
    with pytest.raises(OutOfMemory, match=r"the shape \[0, 4611686018427387904\] is too large for an array"):
        net.compile().run({"x": np.ones((0, 1), np.float32)})


def test_windows_of_references_end_in_time_and_memory():
    """A window much larger than its image meets it in as many ways as it has elements."""
    x = gk.input("x", (1, 1, 2), "float64")
    net = gk.Model({"y": gk.average_pool(x, kernel_shape=(1 << 21,), pads=(1 << 20, 1 << 20))})
    feeds = {"x": np.ones((1, 1, 2))}
    with pytest.raises(LimitReached, match="AveragePool"):
        net.compile(timeout=0.02).run(feeds)
    with pytest.raises(OutOfMemory, match="AveragePool"):
        net.compile(max_memory=1 << 23).run(feeds)


def asked_in_runs(monkeypatch, net, feeds):
    """How often the free memory of the machine is read in three runs with a time limit, after a first one."""
    asked = []
    executor = net.compile(threads=1)
    executor.run(feeds, timeout=100.0)
    monkeypatch.setattr(limits, "available_memory", lambda: asked.append(1) or 1 << 40)
    for _ in range(3):
        executor.run(feeds, timeout=100.0)
    return len(asked), executor._choice.latest.has_dynamic_memory


def test_time_limit_does_not_read_free_memory_in_each_run(monkeypatch):
    x = gk.input("x", [3])
    loop = gk.while_loop(lambda s: gk.reduce_sum(s, keepdims=False) < 9.0, lambda s: s + 1.0, x)
    feeds = {"x": np.ones(3, np.float32)}
    for net, dynamic in ((gk.sin(x), False), (loop, False), (gk.non_zero(x), True)):
        assert asked_in_runs(monkeypatch, gk.Model({"y": net}), feeds) == (0, dynamic)


@pytest.mark.parametrize("seconds", [None, 100.0])
def test_dynamic_memory_has_the_limit_of_each_run(seconds):
    executor = gk.Model({"y": gk.non_zero(gk.input("x", [100_000])) + 1}).compile(threads=1)
    few, many = np.zeros((2, 100_000), np.float32)
    few[:10] = many[:] = 1
    for _ in range(2):
        executor.run({"x": few}, timeout=seconds)
        with limits.limited(memory=700_000):
            executor.run({"x": few}, timeout=seconds)
            with pytest.raises(OutOfMemory, match="800000 bytes"):
                executor.run({"x": many}, timeout=seconds)
    assert executor.run({"x": many}, timeout=seconds)["y"].shape == (1, 100_000)
