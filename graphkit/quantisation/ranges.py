"""Ranges of tensors, found from their values in many batches: smallest and largest, percentiles, or entropy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from graphkit.errors import UsageError, did_you_mean
from graphkit.onnx_io.quantise.scales import Range

METHODS = ("minmax", "entropy", "percentile")

# Bins of a histogram on each side of 0.
_BINS = 2048
# Numbers that 8 bits have for magnitudes: with a sign, and without one.
_SIGNED, _UNSIGNED = 128, 256
# Candidate thresholds of the entropy method are this many bins apart.
_STRIDE = 16


class Collector(Protocol):
    """Collects finite values, and returns the range that quantisation represents."""

    def add(self, values: np.ndarray) -> None: ...

    def range(self) -> Range: ...


class MinMax:
    """The smallest and the largest value."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf

    def add(self, values: np.ndarray) -> None:
        if values.size:
            self._low = min(self._low, float(values.min()))
            self._high = max(self._high, float(values.max()))

    def range(self) -> Range:
        """Return the range; (0, 0) if there were no values."""
        return Range(self._low, self._high) if self._low <= self._high else Range(0.0, 0.0)


class Histogram:
    """Counts of values in bins of equal width around 0. If a value is beyond the last bin, the width is doubled."""

    def __init__(self) -> None:
        self._extremes = MinMax()
        self._width = 0.0
        self._counts = np.zeros(2 * _BINS, np.int64)
        self._zeros = 0  # values before the first one that is not 0

    def add(self, values: np.ndarray) -> None:
        values = values.reshape(-1).astype(np.float64)
        self._extremes.add(values)
        largest = float(np.abs(values).max(initial=0.0))
        if not largest and not self._width:
            self._zeros += values.size
            return
        if not self._width:
            # A tiny width would overflow when it is divided by.
            self._width = max(largest / _BINS, float(np.finfo(np.float64).tiny))
            self._counts[_BINS], self._zeros = self._zeros, 0
        while self._width * _BINS < largest:
            self._double()
        places = np.floor(values / self._width).astype(np.int64) + _BINS
        self._counts += np.bincount(np.clip(places, 0, 2 * _BINS - 1), minlength=2 * _BINS)

    def _double(self) -> None:
        pairs = self._counts.reshape(-1, 2).sum(1)
        self._counts = np.zeros_like(self._counts)
        self._counts[_BINS // 2 : _BINS // 2 + _BINS] = pairs
        self._width *= 2

    @property
    def edges(self) -> np.ndarray:
        """The edges of the bins, float64 [bins + 1]."""
        return np.arange(-_BINS, _BINS + 1) * self._width

    @property
    def counts(self) -> np.ndarray:
        """The number of values of each bin, int64 [bins]."""
        return self._counts

    @property
    def extremes(self) -> Range:
        """The smallest and the largest value."""
        return self._extremes.range()


class Percentile:
    """The range that contains a percentage of the values. Equally many are cut off on both sides.

    If no value is negative, or none is positive, values are cut off on the other side only.
    """

    def __init__(self, percentage: float = 99.999):
        self._share = percentage / 100
        self.histogram = Histogram()

    def add(self, values: np.ndarray) -> None:
        self.histogram.add(values)

    def range(self) -> Range:
        low, high = self.histogram.extremes
        counts, edges = self.histogram.counts, self.histogram.edges
        total = int(counts.sum())
        if not total:
            return Range(low, high)
        cut = (1 - self._share) * total / (2 if low < 0 < high else 1)
        sums = np.cumsum(counts)
        if high > 0:
            high = min(high, float(edges[int(np.searchsorted(sums, total - cut)) + 1]))
        if low < 0:
            low = max(low, float(edges[int(np.searchsorted(sums, cut, side="right"))]))
        return Range(low, high)


class Entropy:
    """The range whose quantised distribution of magnitudes has the smallest KL divergence from the original one.

    The method of TensorRT: values beyond a threshold count as the threshold. The bins below it are merged into as many
    numbers as 8 bits have. The threshold with the smallest divergence is chosen.
    """

    def __init__(self) -> None:
        self.histogram = Histogram()

    def add(self, values: np.ndarray) -> None:
        self.histogram.add(values)

    def range(self) -> Range:
        low, high = self.histogram.extremes
        counts = self.histogram.counts
        magnitudes = counts[_BINS:] + counts[:_BINS][::-1]
        # Zeros are exact for every threshold, and would outweigh all other values.
        magnitudes[0] = magnitudes[1]
        levels = _SIGNED if low < 0 < high else _UNSIGNED
        if np.count_nonzero(magnitudes) <= 1:
            return Range(low, high)
        candidates = range(levels, _BINS + 1, _STRIDE)
        best = min(candidates, key=lambda bins: _divergence(magnitudes, bins, levels))
        threshold = float(self.histogram.edges[_BINS + best])
        return Range(max(low, -threshold), min(high, threshold))


def _divergence(counts: np.ndarray, bins: int, levels: int) -> float:
    """Return the KL divergence of the first `bins` bins and their quantised form. Later bins count as the last one."""
    kept = counts[:bins].astype(np.float64)
    clipped = kept.copy()
    clipped[-1] += counts[bins:].sum()
    starts = np.arange(levels) * bins // levels
    filled = kept > 0
    sums = np.add.reduceat(kept, starts)
    sizes = np.add.reduceat(filled.astype(np.float64), starts)
    means = np.divide(sums, sizes, out=np.zeros_like(sums), where=sizes > 0)
    quantised = np.where(filled, np.repeat(means, np.diff([*starts, bins])), 0.0)
    total, quantised_total = clipped.sum(), quantised.sum()
    if not quantised_total:
        return float("inf")
    p, q = clipped / total, quantised / quantised_total
    # A bin that only contains clipped values has no quantised counterpart.
    q = np.where(q > 0, q, np.finfo(np.float64).tiny)
    inside = p > 0
    return float(np.sum(p[inside] * np.log(p[inside] / q[inside])))


def collectors(method: str, percentage: float) -> Callable[[], Collector]:
    """Return what makes a collector of a method. Raises UsageError for an unknown one."""
    if method not in METHODS:
        raise UsageError(f"method must be {', '.join(METHODS)}, not {method!r}{did_you_mean(method, METHODS)}")
    if not 50 < percentage <= 100:
        raise UsageError(f"percentile (--percentile) must be above 50 and at most 100, not {percentage:g}")
    if method == "percentile":
        return lambda: Percentile(percentage)
    return MinMax if method == "minmax" else Entropy
