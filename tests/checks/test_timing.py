"""Interleaved timing and its statistics."""

from __future__ import annotations

import gc
import math

import numpy as np
import pytest

from graphkit.checks import timing
from graphkit.checks.timing import geometric_mean, interleave, paired_ratio, quotients, resampled_medians, summarise


class Clock:
    """A clock that moves when somebody sleeps. Until `busy_until` a thread of the process uses the processor."""

    def __init__(self) -> None:
        self.now = self.used = self.busy_until = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.used

    def sleep(self, seconds: float) -> None:
        self.used += max(min(self.now + seconds, self.busy_until) - self.now, 0.0)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_rounds_are_interleaved_in_changing_orders(clock: Clock) -> None:
    order: list[str] = []
    calls = {name: lambda name=name: (order.append(name), clock.sleep(2 * timing.WARM_SECONDS)) for name in "abc"}
    times = interleave(calls, 6, runs=1)
    assert order[::2] == order[1::2], "one untimed run before the timed one"
    rounds = ["".join(order[i : i + 6 : 2]) for i in range(0, len(order), 6)]
    assert [sorted(r) for r in rounds] == [["a", "b", "c"]] * 6
    assert len(set(rounds)) > 1
    assert {name: [len(r) for r in t] for name, t in times.items()} == {name: [1] * 6 for name in "abc"}
    again = order.copy()
    order.clear()
    interleave(calls, 6, runs=1)
    assert order == again


def test_a_turn_waits_until_threads_of_the_one_before_rest(clock: Clock) -> None:
    """A call leaves a thread that spins for 60 ms. The next turn begins after that."""

    def leaves_a_thread() -> None:
        clock.sleep(2 * timing.WARM_SECONDS)
        clock.busy_until = clock.now + 0.06

    busy: list[bool] = []

    def another() -> None:
        busy.append(clock.now < clock.busy_until)
        clock.sleep(2 * timing.WARM_SECONDS)

    interleave({"a": leaves_a_thread, "b": another}, 4, runs=1)
    assert clock.busy_until > 0
    assert len(busy) == 8
    assert not any(busy)


def test_threads_that_never_rest_are_not_waited_for(clock: Clock) -> None:
    clock.busy_until = math.inf
    times = interleave({"a": lambda: clock.sleep(0.01)}, 2, runs=1)
    assert times["a"] == [[pytest.approx(0.01)], [pytest.approx(0.01)]]


def test_a_turn_takes_its_time_or_its_runs(clock: Clock) -> None:
    slow = {"slow": lambda: clock.sleep(0.002)}
    (by_time,) = interleave(slow, 1, seconds=0.0199)["slow"]
    assert by_time == [pytest.approx(0.002)] * 10
    (once,) = interleave(slow, 1, seconds=0)["slow"]
    assert len(once) == 1
    (by_runs,) = interleave(slow, 1, runs=4)["slow"]
    assert len(by_runs) == 4


def test_the_collector_is_off_in_a_turn_and_on_again_after_an_error() -> None:
    seen: list[bool] = []

    def fails() -> None:
        seen.append(gc.isenabled())
        raise ValueError("from the call")

    with pytest.raises(ValueError, match="from the call"):
        interleave({"x": fails}, 1)
    assert seen == [False]
    assert gc.isenabled()


def test_percentiles_over_all_rounds() -> None:
    s = summarise([[float(n) for n in range(1, 51)], [float(n) for n in range(51, 102)]])
    assert (s.runs, s.best, s.p50, s.p90, s.p99) == (101, 1.0, 51.0, 91.0, 100.0)
    assert s.as_dict()["p90"] == 91.0


def test_quotients_pair_rounds() -> None:
    assert quotients([[2.0, 9.0, 2.0], [4.0]], [[1.0], [2.0, 2.0]]) == [2.0, 2.0]
    with pytest.raises(ValueError, match="longer"):
        quotients([[1.0]], [[1.0], [1.0]])


def test_equal_quotients_have_no_interval() -> None:
    ratio = paired_ratio([[1.5, 1.5], [1.5, 1.5]])
    assert (ratio.median, ratio.low, ratio.high) == (1.5, 1.5, 1.5)
    assert str(ratio) == "1.50 (1.50 to 1.50)"


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    """300 experiments of 5 processes with 8 rounds: a ratio of 1.3, noise between processes and between rounds."""
    random = np.random.default_rng(1)
    covered = 0
    for number in range(300):
        offsets = random.normal(0, 0.03, (5, 1))
        groups = 1.3 * np.exp(offsets + random.normal(0, 0.05, (5, 8)))
        ratio = paired_ratio(groups.tolist(), seed=number)
        covered += ratio.low <= 1.3 <= ratio.high
    assert 0.85 <= covered / 300 <= 0.99


def test_differences_between_processes_widen_the_interval() -> None:
    """The same 40 values give a wider interval if they are grouped by process."""
    random = np.random.default_rng(0)
    apart = (np.linspace(1, 2, 5)[:, None] + random.normal(0, 0.01, (5, 8))).tolist()
    mixed = np.asarray(apart).T.reshape(5, 8).tolist()
    wide, narrow = paired_ratio(apart), paired_ratio(mixed)
    assert wide.median == narrow.median
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_the_geometric_mean() -> None:
    mean = geometric_mean([[[2.0, 2.0]], [[0.5]], [[4.0]]])
    assert mean.median == pytest.approx(4 ** (1 / 3))
    assert mean.low == pytest.approx(mean.high)
    noisy = [[np.exp(np.random.default_rng(n).normal(0, 0.2, 9)).tolist()] for n in range(8)]
    mean = geometric_mean(noisy)
    assert mean.low < mean.median < mean.high
    widths = [math.log(r.high / r.low) for r in map(paired_ratio, noisy)]
    assert math.log(mean.high / mean.low) < np.mean(widths), "rows vary on their own, so their mean varies less"


def test_the_same_seed_gives_the_same_interval() -> None:
    groups = [[1.0, 1.1, 1.3], [0.9, 1.2, 1.0]]
    assert np.array_equal(resampled_medians(groups, 3), resampled_medians(groups, 3))
    assert not np.array_equal(resampled_medians(groups, 3), resampled_medians(groups, 4))
