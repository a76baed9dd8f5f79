"""Times of several calls measured side by side: interleaved rounds, percentiles, ratios of paired rounds.

The machine's speed drifts, so engines are not timed one after the other. In every round, each call has a turn, and the
quotient of two turns of the same round is compared.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

# Times of one call in seconds: a list per round.
Rounds = list[list[float]]
# One value per paired round: a sequence for each process, all of the same length.
Groups = Sequence[Sequence[float]]

# Seconds for which a call runs before it is timed, to wake its threads and fill the caches.
WARM_SECONDS = 0.003
# Worker threads of the previous call keep spinning (ONNX Runtime's for tens of milliseconds) and would take cores from
# the next call. So the next call waits until the process used less than _QUIET_SHARE of a core in two consecutive
# intervals of _QUIET_SECONDS, but at most _QUIET_LIMIT seconds.
_QUIET_SECONDS, _QUIET_SHARE, _QUIET_LIMIT = 0.005, 0.1, 0.5
CONFIDENCE = 0.95
RESAMPLES = 2000


@dataclass(frozen=True)
class Summary:
    """Times of one call in seconds; p90 and p99 are interpolated between runs."""

    runs: int
    best: float
    p50: float
    p90: float
    p99: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Ratio:
    """The median of paired quotients, with its confidence interval (probability CONFIDENCE)."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def interleave(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    seconds: float = 0.1,
    runs: int | None = None,
    seed: int = 0,
    clock: Callable[[], float] | None = None,
) -> dict[str, Rounds]:
    """Time every call in each of `rounds` rounds, in an order shuffled anew for each round.

    A turn lasts `seconds`, but at least one run; with `runs`, it has exactly that many. Untimed runs before it wake the
    call's threads. A turn begins when the threads of the previous one are idle. The cyclic garbage collector is off
    during a turn. `clock` returns seconds (default: time.perf_counter); time.process_time reduces the effect of other
    processes.
    """
    clock = clock or time.perf_counter
    names = list(calls)
    times: dict[str, Rounds] = {name: [] for name in names}
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        for place in random.permutation(len(names)):
            _wait_for_rest()
            times[names[place]].append(_turn(calls[names[place]], seconds, runs, clock))
    return times


def _wait_for_rest() -> None:
    end = time.perf_counter() + _QUIET_LIMIT
    quiet = 0
    while quiet < 2 and time.perf_counter() < end:
        used = time.process_time()
        time.sleep(_QUIET_SECONDS)
        quiet = quiet + 1 if time.process_time() - used < _QUIET_SHARE * _QUIET_SECONDS else 0


def _turn(call: Callable[[], object], seconds: float, runs: int | None, clock: Callable[[], float]) -> list[float]:
    times: list[float] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = clock()
        while True:
            call()
            if clock() - start >= WARM_SECONDS:
                break
        begin = clock()
        while True:
            start = clock()
            call()
            end = clock()
            times.append(end - start)
            if end - begin >= seconds if runs is None else len(times) >= runs:
                return times
    finally:
        if collecting:
            gc.enable()


def summarise(rounds: Sequence[Sequence[float]]) -> Summary:
    """Percentiles over all runs of all rounds."""
    times = np.concatenate([np.asarray(r, float) for r in rounds])
    p50, p90, p99 = (float(p) for p in np.percentile(times, (50, 90, 99)))
    return Summary(times.size, float(times.min()), p50, p90, p99)


def quotients(numerator: Sequence[Sequence[float]], denominator: Sequence[Sequence[float]]) -> list[float]:
    """Per round: the median time of one call over that of the other."""
    return [float(np.median(a) / np.median(b)) for a, b in zip(numerator, denominator, strict=True)]


def paired_ratio(groups: Groups, seed: int = 0) -> Ratio:
    """The median of `quotients`, one group per process, with a bootstrap interval (see `resampled_medians`)."""
    median = float(np.median(np.asarray(groups, float)))
    return _with_interval(median, resampled_medians(groups, seed))


def geometric_mean(rows: Sequence[Groups], seed: int = 0) -> Ratio:
    """The geometric mean of the rows' median quotients, with an interval. Each row is resampled independently."""
    medians = [paired_ratio(groups).median for groups in rows]
    logs = [np.log(resampled_medians(groups, seed + 1 + number)) for number, groups in enumerate(rows)]
    mean = math.exp(math.fsum(math.log(m) for m in medians) / len(medians))
    return _with_interval(mean, np.exp(np.mean(logs, axis=0)))


def resampled_medians(groups: Groups, seed: int = 0) -> np.ndarray:
    """RESAMPLES medians by the two-stage bootstrap (Davison and Hinkley 1997, section 3.8).

    Processes are drawn with replacement, then rounds inside each of them: rounds of one process share its memory
    layout and the state of its thread pools, so they say less than as many rounds of several processes.
    """
    values = np.asarray(groups, float)
    processes, rounds = values.shape
    random = np.random.default_rng(seed)
    process = random.integers(processes, size=(RESAMPLES, processes, 1))
    round_ = random.integers(rounds, size=(RESAMPLES, processes, rounds))
    medians: np.ndarray = np.median(values[process, round_], axis=(1, 2))
    return medians


def _with_interval(value: float, resampled: np.ndarray) -> Ratio:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = (float(p) for p in np.percentile(resampled, (tail, 100 - tail)))
    return Ratio(value, min(low, value), max(high, value))
