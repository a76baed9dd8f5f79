"""Loading ahead: order, bounds, errors, ends."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.data import Dataset, prefetch
from graphkit.errors import UsageError
from graphkit.executor.run.engine import Engine

# Longer than what the caller does itself.
SLOW = 1e-3


def slowly(count: int, made: list[int] | None = None) -> Iterator[int]:
    for i in range(count):
        time.sleep(SLOW)
        if made is not None:
            made.append(i)
        yield i


def workers_become(count: int) -> bool:
    """Wait until the process has `count` engine threads. Return False after a timeout."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        names = []
        for task in Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                names.append(task.read_text())
        if names.count("graphkit-worker\n") == count:
            return True
        time.sleep(0.005)
    return False


@in_one_item()
@pytest.mark.parametrize("depth", [0, 1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_all_items_in_their_order(depth, count):
    assert list(prefetch(slowly(count), depth)) == list(range(count))
    assert list(prefetch(iter(range(count)), depth)) == list(range(count))


def test_batches_are_those_of_the_data_set():
    data = Dataset(np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20))
    for plain, early in zip(data.batches(6, seed=1), prefetch(data.batches(6, seed=1)), strict=True):
        np.testing.assert_array_equal(plain.inputs, early.inputs)
        np.testing.assert_array_equal(plain.targets, early.targets)


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_items_are_ahead(depth):
    made: list[int] = []
    most = 0
    for taken, _ in enumerate(prefetch(slowly(20, made), depth), 1):
        time.sleep(2 * SLOW)
        most = max(most, len(made) - taken)
    assert 1 <= most <= depth


def test_slow_items_are_made_by_a_worker_and_quick_ones_by_the_caller():
    def who(pause: float) -> Iterator[int]:
        for _ in range(50):
            time.sleep(pause)
            yield threading.get_ident()

    own = threading.get_ident()
    slow = list(prefetch(who(SLOW)))
    assert slow[:2] == [own] * 2
    assert set(slow[3:]) == {slow[3]} != {own}
    quick = list(prefetch(itertools.repeat(0, 50)))
    assert quick == [0] * 50
    assert sum(i == own for i in prefetch(threading.get_ident() for _ in range(50))) > 40


@in_one_item()
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_an_error_comes_out_in_its_place(at):
    def failing() -> Iterator[int]:
        yield from slowly(at)
        raise OSError(5, "the tape is torn")

    items = prefetch(failing(), 3)
    assert [next(items) for _ in range(at)] == list(range(at))
    with pytest.raises(OSError, match="the tape is torn"):
        next(items)
    assert list(items) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_giving_up_early_ends_the_worker():
    assert workers_become(0)
    made: list[int] = []
    items = prefetch(slowly(1000, made), 2)
    assert [next(items) for _ in range(6)] == list(range(6))
    assert workers_become(1)
    items.close()
    assert workers_become(0)
    assert len(made) <= 9
    for item in prefetch(slowly(1000)):
        if item == 5:
            break
    assert workers_become(0)


def test_an_engine_of_the_callers_own():
    with Engine(workers=2) as engine:
        together = zip(prefetch(slowly(10), engine=engine), prefetch(slowly(10), engine=engine), strict=True)
        assert list(together) == [(i, i) for i in range(10)]


def test_the_worker_has_the_callers_numpy_settings():
    def settings() -> Iterator[str]:
        for _ in range(6):
            time.sleep(SLOW)
            yield np.geterr()["divide"]

    with np.errstate(divide="raise"):
        assert list(prefetch(settings())) == ["raise"] * 6


def test_a_negative_depth_is_refused():
    with pytest.raises(UsageError, match="prefetch=-1"):
        prefetch([], -1)
    net = gk.models.build("mlp", inputs=4, hidden=(2,), classes=2)
    data = np.zeros((2, 4), np.float32), np.zeros(2, np.int64)
    with pytest.raises(UsageError, match="prefetch=-1"):
        gk.Trainer(net).fit(data, prefetch=-1)
