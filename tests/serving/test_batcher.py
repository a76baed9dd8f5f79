"""Batches: requests that share a run, their results, failures, deadlines and full queues."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import numpy as np
import pytest

from graphkit.errors import InputError, LimitReached
from graphkit.serving.batcher import Batcher
from graphkit.serving.errors import Busy, Retired


class Runner:
    """Doubles its input. The first run waits for `go`, so that the queue fills. Rows with 13 fail."""

    def __init__(self):
        self.go = threading.Event()
        self.begun = threading.Event()
        self.shapes = []
        self.outputs = lambda x: {"y": 2 * x}

    def __call__(self, feeds, timeout):
        self.begun.set()
        assert self.go.wait(120)
        self.shapes.append(feeds["x"].shape)
        if (feeds["x"] == 13).any():
            raise InputError("13 is refused")
        return self.outputs(feeds["x"])


@pytest.fixture
def runner():
    return Runner()


@pytest.fixture
def batcher(runner):
    """`batcher(**options)`: a Batcher whose thread is busy with a first request."""
    made = []

    def start(**options):
        executed = []
        found = Batcher(runner, executed=executed.append, **{"max_batch": 8, "max_delay": 0.0, **options})
        found.executed = executed
        made.append(found)
        found.submit({"x": np.zeros((1, 99))})
        assert runner.begun.wait(120)
        return found

    yield start
    runner.go.set()
    for each in made:
        each.close()


def rows(count, first, width=2):
    return {"x": np.arange(first, first + count * width, dtype=np.float64).reshape(count, width)}


def test_requests_share_a_run_and_get_their_rows(batcher, runner):
    queue = batcher()
    given = [rows(count, 100 * place) for place, count in enumerate((1, 3, 2))]
    futures = [queue.submit(inputs) for inputs in given]
    runner.go.set()
    for inputs, future in zip(given, futures, strict=True):
        result = future.result(30)
        np.testing.assert_array_equal(result.outputs["y"], 2 * inputs["x"])
        assert result.rows == 6
    assert runner.shapes == [(1, 99), (6, 2)]
    assert [(run.requests, run.rows) for run in queue.executed] == [(1, 1), (3, 6)]


def test_a_batch_has_at_most_its_rows(batcher, runner):
    queue = batcher(max_batch=4)
    futures = [queue.submit(rows(count, 0)) for count in (3, 1, 2, 3, 6)]
    runner.go.set()
    assert [len(future.result(30).outputs["y"]) for future in futures] == [3, 1, 2, 3, 6]
    assert sorted(runner.shapes[1:]) == [(2, 2), (3, 2), (4, 2), (6, 2)]


def test_other_shapes_types_and_scalars_are_not_joined(batcher, runner):
    queue = batcher()
    given = [rows(1, 0), rows(1, 0, 3), {"x": np.zeros((1, 2), np.float32)}, {"x": np.float64(3)}, rows(0, 0)]
    futures = [queue.submit(inputs) for inputs in given]
    runner.go.set()
    for inputs, future in zip(given, futures, strict=True):
        assert np.shape(future.result(30).outputs["y"]) == inputs["x"].shape
    assert len(runner.shapes) == 6


def test_inputs_of_different_rows_are_not_joined(batcher, runner):
    queue = batcher()
    mixed = {"x": np.ones((4, 2)), "b": np.ones((1, 2))}
    futures = [queue.submit(mixed) for _ in range(2)]
    runner.go.set()
    assert all(len(future.result(30).outputs["y"]) == 4 for future in futures)
    assert runner.shapes[1:] == [(4, 2), (4, 2)]


def test_without_joining_every_request_has_its_run(batcher, runner):
    queue = batcher(joins=False)
    futures = [queue.submit(rows(1, 0)) for _ in range(3)]
    runner.go.set()
    assert [future.result(30).rows for future in futures] == [0, 0, 0]
    assert runner.shapes[1:] == [(1, 2)] * 3


@pytest.mark.parametrize(("count", "joins"), [(64, True), (5, False), (0, True)])
def test_rows_of_runs_that_are_not_shared_are_counted(batcher, runner, count, joins):
    queue = batcher(joins=joins)
    future = queue.submit(rows(count, 100))
    runner.go.set()
    assert future.result(30).rows == 0
    assert [run.rows for run in queue.executed] == [1, count]


def test_one_bad_request_does_not_fail_the_others(batcher, runner):
    queue = batcher()
    futures = [queue.submit(rows(1, first)) for first in (0, 13, 20)]
    runner.go.set()
    np.testing.assert_array_equal(futures[0].result(30).outputs["y"], [[0, 2]])
    np.testing.assert_array_equal(futures[2].result(30).outputs["y"], [[40, 42]])
    with pytest.raises(InputError, match="13 is refused"):
        futures[1].result(30)
    assert runner.shapes[1:] == [(3, 2), (1, 2), (1, 2), (1, 2)]


def test_outputs_without_rows_are_not_divided(batcher, runner):
    queue = batcher()
    runner.outputs = lambda x: {"y": x.sum(0)}
    futures = [queue.submit(rows(3, first)) for first in (0, 20)]
    runner.go.set()
    for first, future in zip((0, 20), futures, strict=True):
        np.testing.assert_array_equal(future.result(30).outputs["y"], rows(3, first)["x"].sum(0))


def test_a_full_queue_refuses(batcher, runner):
    queue = batcher(max_queue=2)
    futures = [queue.submit(rows(1, 0)) for _ in range(2)]
    with pytest.raises(Busy, match="--max-queue"):
        queue.submit(rows(1, 0))
    runner.go.set()
    assert all(future.result(30) for future in futures)


def test_a_cancelled_request_leaves_the_queue(batcher, runner):
    queue = batcher(max_queue=2)
    first, second = (queue.submit(rows(1, 7 * place)) for place in range(2))
    assert first.cancel()
    assert len(queue) == 1
    third = queue.submit(rows(1, 50))
    runner.go.set()
    np.testing.assert_array_equal(third.result(30).outputs["y"], [[100, 102]])
    assert second.result(30).rows == 2
    with pytest.raises(CancelledError):
        first.result()


def test_a_request_after_its_deadline_is_not_run(batcher, runner):
    queue = batcher()
    late = queue.submit(rows(1, 0), timeout=0.01)
    good = queue.submit(rows(1, 0))
    time.sleep(0.02)
    runner.go.set()
    with pytest.raises(LimitReached, match="--timeout"):
        late.result(30)
    assert good.result(30).rows == 1


def test_a_slow_request_does_not_end_the_others():
    """The row 13 runs as long as it may. A run without it takes no time."""

    def run(feeds, timeout):
        if (feeds["x"] == 13).any():
            time.sleep(timeout)
            raise LimitReached("--timeout")
        return {"y": feeds["x"]}

    queue = Batcher(run, max_batch=5, max_delay=30.0)
    slow, *others = [queue.submit(rows(1, first, 1), timeout=2.0) for first in (13, 20, 30, 40, 50)]
    for first, future in zip((20, 30, 40, 50), others, strict=True):
        assert future.result(30).outputs["y"].tolist() == [[first]]
    with pytest.raises(LimitReached, match="--timeout"):
        slow.result(30)
    queue.close()


def test_the_thread_survives_errors(runner, caplog):
    """A wait that no timer can hold, and an error outside of a run."""
    runner.go.set()
    counted = []

    def executed(run):
        counted.append(run)
        if len(counted) == 1:
            raise ZeroDivisionError

    queue = Batcher(runner, max_batch=2, max_delay=float("inf"), executed=executed)
    first = queue.submit(rows(1, 0))
    assert not runner.begun.wait(0.05)
    second = queue.submit(rows(1, 4))
    for future in (first, second):
        with pytest.raises(ZeroDivisionError):
            future.result(30)
    assert "batch failed" in caplog.text
    assert queue.submit(rows(2, 0)).result(30).rows == 2
    queue.close()


def test_requests_wait_for_others(runner):
    runner.go.set()
    queue = Batcher(runner, max_batch=2, max_delay=20.0)
    first = queue.submit(rows(1, 0))
    assert not runner.begun.wait(0.05)
    second = queue.submit(rows(1, 4))
    assert first.result(30).rows == second.result(30).rows == 2
    queue.close()


def test_closing_answers_what_waits(runner):
    runner.go.set()
    queue = Batcher(runner, max_delay=60.0)
    futures = [queue.submit(rows(1, 0)) for _ in range(3)]
    queue.close()
    assert [future.result(0).rows for future in futures] == [3, 3, 3]
    with pytest.raises(Retired):
        queue.submit(rows(1, 0))


def test_many_threads_get_their_own_rows():
    queue = Batcher(lambda feeds, timeout: {"y": feeds["x"] + 1}, max_batch=16, max_delay=0.001)

    def ask(number):
        x = np.full((number % 3 + 1, 2 + number % 2), float(number))
        return np.array_equal(queue.submit({"x": x}).result(30).outputs["y"], x + 1)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(400)))
    queue.close()


def test_an_event_loop_gets_a_batch_in_one_call(batcher, runner):
    """A call for each request would wake the loop, and take the interpreter from it, as often."""
    queue = batcher()
    calls = []

    async def ask():
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *arguments: (calls.append(arguments), call(*arguments))[1]
        futures = [queue.submit_from_loop(rows(1, 7 * place)) for place in range(4)]
        runner.go.set()
        return [result.outputs["y"].tolist() for result in await asyncio.gather(*futures)]

    assert asyncio.run(ask()) == [[[14 * place, 14 * place + 2]] for place in range(4)]
    assert len(calls) == 1


def test_errors_and_lost_requests_of_an_event_loop(batcher, runner):
    queue = batcher()

    async def ask():
        good, bad, cancelled, failed = [queue.submit_from_loop(rows(1, first)) for first in (0, 13, 20, 30)]
        cancelled.cancel()
        failed.set_exception(ZeroDivisionError())
        await asyncio.sleep(0)
        assert len(queue) == 2
        runner.go.set()
        return await asyncio.gather(good, bad, failed, return_exceptions=True)

    good, bad, failed = asyncio.run(ask())
    assert good.outputs["y"].tolist() == [[0, 2]]
    assert isinstance(bad, InputError)
    assert isinstance(failed, ZeroDivisionError)
    assert runner.shapes[1] == (2, 2)


def test_a_loop_that_has_ended_does_not_end_the_thread(batcher, runner):
    queue = batcher()

    async def leave():
        queue.submit_from_loop(rows(1, 0))

    asyncio.run(leave())
    runner.go.set()
    assert queue.submit(rows(1, 7)).result(30).outputs["y"].tolist() == [[14, 16]]


def test_a_busy_thread_is_not_woken(batcher, runner):
    queue = batcher()
    woken = []
    notify = queue._changed.notify
    queue._changed.notify = lambda: (woken.append(1), notify())
    futures = [queue.submit(rows(1, 0)) for _ in range(5)]
    runner.go.set()
    assert [future.result(30).rows for future in futures] == [5] * 5
    assert woken == []
