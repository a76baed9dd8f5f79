"""Operations run in program order, with any timing of threads: random programs are compared with numpy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphkit as gk

nd = gk.nd


def random_step(rng: np.random.Generator) -> Callable[[list[Any]], None]:
    """Return a function that changes a list of four matrices of int32 in place, of numpy or of gk.nd."""
    a, b, c = (int(i) for i in rng.choice(4, 3))
    row, other, stop = int(rng.integers(4)), int(rng.integers(4)), int(rng.integers(1, 5))
    kind, number = int(rng.integers(9)), int(rng.integers(-3, 4))

    def step(x: list[Any]) -> None:
        if kind == 0:
            x[a] = x[b] + x[c]
        elif kind == 1:
            x[a] += x[b]
        elif kind == 2:
            x[a][row] = x[b][other]
        elif kind == 3:
            x[a][:stop] -= x[b][-stop:]
        elif kind == 4:
            x[a][:] = number
        elif kind == 5:
            x[a] = x[b].T * number
        elif kind == 6:
            x[a][:, row : row + 1] = x[b][:, other : other + 1]
        elif kind == 7:
            x[a] = x[b][::-1]  # a view, or the array itself: later writes are seen through both
        else:
            x[a] *= x[a][row]

    return step


def run_program(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start = [rng.integers(-5, 5, (4, 4)).astype(np.int32) for _ in range(4)]
    steps = [random_step(rng) for _ in range(12)]
    arrays, expected = [nd.array(x) for x in start], [x.copy() for x in start]
    with np.errstate(over="ignore"):
        for step in steps:
            step(arrays)
        for step in steps:
            step(expected)
    for found, wanted in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(found.asnumpy(), wanted, err_msg=f"program {seed}")


def test_random_programs_with_writes_in_place() -> None:
    for seed in range(1000):
        run_program(seed)


@pytest.mark.full
def test_many_random_programs_with_writes_in_place() -> None:
    for seed in range(1000, 10_000):
        run_program(seed)


def test_an_operation_returns_before_it_is_done() -> None:
    x = nd.ones((70, 70))
    called, in_time = threading.Event(), []
    nd.runtime.queue().push_call("wait", lambda: in_time.append(called.wait(60)), [], [x._memory.state])
    y = x
    for _ in range(30):
        y = y @ x * (1 / 70)
    called.set()
    np.testing.assert_allclose(y.asnumpy(), np.ones((70, 70)), rtol=1e-3)
    assert in_time == [True]


def test_readers_before_a_write_see_the_old_elements() -> None:
    x = nd.zeros((400, 400))
    readers = []
    for i in range(20):
        readers.append(gk.reduce_max(x @ x + x))
        x += 1
        assert x._memory.version == i + 1
    expected = [400 * i * i + i for i in range(20)]
    assert [r.asscalar() for r in readers] == expected


def test_threads_use_arrays_at_once() -> None:
    shared = nd.ones((16, 16))
    found: dict[int, float] = {}

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        w = nd.array(rng.standard_normal((16, 16)).astype(np.float32))
        w.attach_grad()
        for _ in range(30):
            with nd.record():
                loss = gk.reduce_mean((w @ shared - 1.0) ** 2)
            loss.backward()
            w[:] = w - 0.5 * w.grad
        found[number] = loss.asscalar()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    together = dict(found)
    for number in range(4):
        work(number)
    assert found == together


def test_loops_without_waits_do_not_fill_memory() -> None:
    from graphkit.executor.run import array_queue

    x = nd.ones(8)
    pending = []
    for i in range(3 * array_queue._AHEAD_OPERATIONS):
        x = x + 1.0
        if i % 1000 == 0:
            pending.append(nd.runtime.queue().engine.pending)
    assert max(pending) <= array_queue._AHEAD_OPERATIONS + 1
    assert x.asnumpy()[0] == 1 + 3 * array_queue._AHEAD_OPERATIONS


def test_a_fork_waits_for_operations_that_are_pushed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, written, may_end = nd.runtime.queue(), nd.ones(1), threading.Event()
    settle, calls = queue.settle, []

    def settle_while_a_thread_pushes() -> None:
        if calls:
            may_end.set()
        settle()
        if not calls:
            queue.push_call("late", lambda: may_end.wait(60), [], [written._memory.state])
        calls.append(None)

    monkeypatch.setattr(queue, "settle", settle_while_a_thread_pushes)
    nd.runtime._before_fork()
    pending = queue.engine.pending
    nd.runtime._after_fork_in_parent()
    may_end.set()
    assert pending == 0


def test_a_fork_waits_for_operations_that_are_gathered_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, x, calls = nd.runtime.queue(), nd.zeros(1), []
    settle = queue.settle

    def settle_while_a_thread_gathers() -> None:
        settle()
        if not calls:
            x.__iadd__(1.0)
        calls.append(None)

    monkeypatch.setattr(queue, "settle", settle_while_a_thread_gathers)
    with queue.batch("batch"):
        nd.runtime._before_fork()
        nd.runtime._after_fork_in_parent()
        assert x._data.tolist() == [1]
    assert len(calls) > 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_child_of_a_fork_uses_earlier_arrays() -> None:
    x = nd.ones((300, 300))
    y = x @ x  # may be pending
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            y += 1
            code = 0 if (y.asnumpy() == 301).all() and gk.reduce_sum(x).asscalar() == 90000 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (y.asnumpy() == 300).all()


def test_arrays_outlive_the_threads() -> None:
    x = nd.ones((50, 50))
    y = x @ x
    nd.runtime.stop()
    assert (y.asnumpy() == 50).all()
    y += x
    nd.waitall()
    assert (y.asnumpy() == 51).all()
