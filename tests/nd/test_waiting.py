"""A thread that waits runs operations itself; operations also run if no thread waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from graphkit.executor.run import array_queue
from graphkit.executor.run import engine as engines
from graphkit.executor.run.array_queue import ArrayQueue
from graphkit.executor.run.engine import Engine, Work

SOURCE = np.arange(6.0, dtype=np.float32)


class Copies:
    """A queue of one worker, and an array that operations write."""

    def __init__(self, workers: int = 1):
        self.engine = Engine(workers)
        self.queue = ArrayQueue(self.engine)
        self.read, self.written = self.queue.state(), self.queue.state()
        self.target = np.zeros_like(SOURCE)

    def push(self) -> None:
        self.queue.push_copy("copy", SOURCE, self.target, [self.read], [self.written])

    def push_and_wait(self) -> None:
        self.push()
        assert self.queue.wait(self.written) is None


@pytest.fixture
def copies() -> Iterator[Copies]:
    made = Copies()
    yield made
    assert made.engine.close()


@pytest.fixture
def works() -> Iterator[list[Work]]:
    found: list[Work] = []
    engines.record(found)
    yield found
    engines.record(None)


def happens(condition: Callable[[], bool]) -> bool:
    """Wait for at most a minute until the condition holds. Return whether it does."""
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def test_a_thread_that_waits_runs_the_operation(copies: Copies, works: list[Work]) -> None:
    def is_run_by_the_caller() -> bool:
        copies.target[:] = 0
        copies.push_and_wait()
        assert copies.target.tolist() == SOURCE.tolist()
        copies.engine._append_traced(works)
        return works[-1].worker == -1

    assert happens(is_run_by_the_caller)


def test_a_thread_that_waits_runs_a_chain_of_operations(copies: Copies, works: list[Work]) -> None:
    last, copied = np.zeros_like(SOURCE), copies.queue.state()

    def are_run_by_the_caller() -> bool:
        last[:] = 0
        copies.push()
        copies.queue.push_copy("second copy", copies.target, last, [copies.written], [copied])
        assert copies.queue.wait(copied) is None
        assert last.tolist() == SOURCE.tolist()
        copies.engine._append_traced(works)
        return [work.worker for work in works[-2:]] == [-1, -1]

    assert happens(are_run_by_the_caller)


def test_operations_run_without_a_wait(copies: Copies) -> None:
    for count in (1, 2, 5):
        for _ in range(30):
            copies.push_and_wait()
        copies.target[:] = 0
        for _ in range(count):
            copies.push()
        assert happens(lambda: copies.engine.pending == 0)
        assert copies.target.tolist() == SOURCE.tolist()


def test_a_wait_for_another_array_starts_the_operation(copies: Copies) -> None:
    other = copies.queue.state()
    for _ in range(50):
        copies.push_and_wait()
        copies.push()
        assert copies.queue.wait(other) is None
        assert copies.queue.wait_all() is None


def test_at_most_as_many_operations_run_as_there_are_workers(copies: Copies, works: list[Work]) -> None:
    started, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert may_end.wait(60)

    copies.queue.push_call("hold", hold, [], [copies.queue.state()])
    assert started.wait(60)
    waiting = threading.Thread(target=copies.push_and_wait)
    waiting.start()
    assert happens(lambda: copies.engine.pending == 3)  # and the place of the thread that waits
    time.sleep(0.02)
    may_end.set()
    waiting.join(60)
    copies.engine._append_traced(works)
    held, copied = sorted(works, key=lambda work: work.start)
    assert held.operation == "hold"
    assert copied.start >= held.end


@pytest.mark.parametrize("limit", ["_AHEAD_OPERATIONS", "_AHEAD_BYTES"])
def test_waits_for_computed_arrays_do_not_lift_the_limits(
    limit: str, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, computed, settled = threading.Event(), copies.queue.state(), []
    copies.queue.push_call("hold", lambda: may_end.wait(60), [], [copies.written])
    monkeypatch.setattr(array_queue, limit, 20)
    monkeypatch.setattr(copies.queue, "settle", lambda: settled.append(copies.engine.pending))
    for _ in range(21):
        copies.push()
        copies.queue._count(1)  # the bytes of another operation
        assert copies.queue.wait(computed) is None
    may_end.set()
    assert settled
    assert settled[0] <= 22


def test_operations_that_are_done_do_not_count(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_queue, "_AHEAD_OPERATIONS", 20)
    monkeypatch.setattr(copies.queue, "settle", lambda: pytest.fail("the push waited"))
    for _ in range(50):
        copies.push_and_wait()


def test_a_closed_engine_cancels_an_operation_that_is_held(copies: Copies) -> None:
    for _ in range(30):
        copies.push_and_wait()
    copies.push()
    assert copies.engine.close()
    assert copies.engine.pending == 0


def test_several_threads_wait_for_one_array() -> None:
    copies = Copies(2)
    total = np.zeros(1, np.int64)

    def add() -> None:
        total[0] += 1

    def work() -> None:
        for _ in range(50):
            copies.queue.push_call("add", add, [], [copies.written])
            copies.push_and_wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert copies.engine.close()
    assert total[0] == 200
