"""Curves from the logs of runs: a chart per quantity, with a series for each run and part."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from graphkit.report.runs import Run

# Maximum number of points of a series. A longer one is divided into equal parts, and the minimum and maximum of each
# part are drawn.
MOST_POINTS = 2_000

_VALID = "valid_"
# Titles and number formats of known quantities. All others are metrics.
_KNOWN = {
    "loss": ("Loss", "number"),
    "learning_rate": ("Learning rate", "number"),
    "samples_per_second": ("Samples per second", "number"),
    "epoch_seconds": ("Time per epoch", "seconds"),
    "peak_memory": ("Peak memory of the process", "bytes"),
    "waiting": ("Share of time spent waiting for other processes", "number"),
    "skipped": ("Skipped steps", "number"),
}
# Quantities in the section on speed and memory.
_COSTS = ("samples_per_second", "epoch_seconds", "peak_memory", "waiting", "skipped")
# Fields of a record that are positions, or constant over a run.
_NO_CURVES = ("epoch", "updates", "seconds", "processes")


@dataclass(frozen=True)
class Series:
    """A curve: y over three axes (updates, epochs, seconds). run: index of the run.

    part: "step" for values of single batches, "train" for means of an epoch, "valid" for the validation after it.
    """

    run: int
    part: str
    updates: np.ndarray
    epochs: np.ndarray
    seconds: np.ndarray
    y: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """Return the series for the page. NaN and infinities are text, because JSON has no such numbers."""
        kept = thinned(self.y, MOST_POINTS)
        return {
            "run": self.run,
            "part": self.part,
            "x": {
                "updates": [int(v) for v in self.updates[kept]],
                "epochs": [_short(v) for v in self.epochs[kept]],
                "seconds": [_short(v) for v in self.seconds[kept]],
            },
            "y": [_short(v) for v in self.y[kept]],
        }


@dataclass(frozen=True)
class Chart:
    """All series of one quantity. kind: "number", "seconds" or "bytes". costs: whether it is about speed or memory."""

    key: str
    title: str
    kind: str
    costs: bool
    series: tuple[Series, ...]

    @property
    def points(self) -> int:
        return max((len(s.y) for s in self.series), default=0)

    def to_json(self) -> dict[str, Any]:
        series = [s.to_json() for s in self.series]
        return {"key": self.key, "title": self.title, "kind": self.kind, "series": series}


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Return the charts of runs: loss, metrics, learning rate, then speed and memory."""
    found: dict[str, list[Series]] = {}
    for index, run in enumerate(runs):
        # Values of steps are only drawn if there are more of them than epochs.
        steps = run.steps if len(run.steps) > len(run.epochs) else ()
        for part, records in (("step", steps), ("train", _with_durations(run.epochs))):
            epochs = _epochs(run, records, within=part == "step")
            for name in _quantities(records):
                if part == "train" and name == "learning_rate" and steps:
                    continue  # it is the rate of the next step, not a mean of the epoch
                key, of = (name.removeprefix(_VALID), "valid") if name.startswith(_VALID) else (name, part)
                found.setdefault(key, []).append(_series(index, of, records, epochs, name))
    names = [n for n in found if n not in _KNOWN]
    order = [n for n in ("loss", *names, "learning_rate", *_COSTS) if n in found]
    return [Chart(n, *_KNOWN.get(n, (_title(n), "number")), n in _COSTS, tuple(found[n])) for n in order]


def _title(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def _quantities(records: Iterable[Mapping[str, float]]) -> list[str]:
    return [name for name in dict.fromkeys(n for r in records for n in r) if name not in _NO_CURVES]


def _with_durations(records: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return the records of epochs with the duration of each, if it is known."""
    before = [0.0, *(r["seconds"] for r in records)]
    # The start of an epoch is known only if the record before it is there.
    known = [r["epoch"] - last == 1 for last, r in zip([0.0, *(r["epoch"] for r in records)], records, strict=False)]
    return [
        {**record, "epoch_seconds": record["seconds"] - start} if sure and record["seconds"] >= start else record
        for record, start, sure in zip(records, before, known, strict=False)
    ]


def _series(run: int, part: str, records: Sequence[Mapping[str, float]], epochs: np.ndarray, name: str) -> Series:
    has = [i for i, record in enumerate(records) if name in record]
    columns = [np.array([records[i][n] for i in has], np.float64) for n in ("updates", "seconds", name)]
    return Series(run, part, columns[0], epochs[has], columns[1], columns[2])


def _epochs(run: Run, records: Sequence[Mapping[str, float]], within: bool) -> np.ndarray:
    """Return the position of each record in epochs, float64 [records]: fractions count updates within an epoch.

    An epoch in progress is assumed to be as long as the one before it. Its length is unknown in the first epoch: NaN.
    """
    if not within:
        return np.array([r["epoch"] for r in records], np.float64)
    ends = {0.0: 0.0, **{r["epoch"]: r["updates"] for r in run.epochs}}
    places = []
    for record in records:
        epoch, updates = record["epoch"], record["updates"]
        start, end = ends.get(epoch - 1), ends.get(epoch)
        if start is not None and end is None and epoch - 2 in ends:
            end = 2 * start - ends[epoch - 2]
        if start is None or end is None or end <= start:
            places.append(math.nan)
        else:
            places.append(epoch - 1 + min((updates - start) / (end - start), 1.0))
    return np.array(places, np.float64)


def thinned(y: np.ndarray, most: int) -> np.ndarray:
    """Return the indices of at most `most` points of y (but at least 4), int64.

    They are the first and the last point, and the minimum and maximum of equal parts, so that no peak is lost. Values
    that are not finite count as maxima.
    """
    if len(y) <= most:
        return np.arange(len(y))
    parts = max(most - 2, 2) // 2
    bounds = np.linspace(0, len(y), parts + 1).astype(np.int64)
    kept = {0, len(y) - 1}
    for low, high in pairwise(bounds):
        if low < high:
            part = y[low:high]
            finite = np.isfinite(part)
            kept.add(int(low + np.argmin(np.where(finite, part, np.inf))))
            kept.add(int(low + np.argmax(np.where(finite, part, np.inf))))
    return np.array(sorted(kept), np.int64)


def _short(value: float) -> float | str:
    """Round to six digits, which is enough for a picture. NaN and infinities become text."""
    return float(f"{value:.6g}") if math.isfinite(value) else str(float(value))


def summary(runs: Sequence[Run]) -> tuple[list[str], list[list[float | None]]]:
    """Return names of quantities, and their values in the last epoch of each run. Validation comes first."""
    names = _quantities([record for run in runs for record in run.epochs])
    valid = [n for n in names if n.startswith(_VALID)]
    order = [*valid, *(n for n in names if n not in valid and n not in (*_COSTS, "learning_rate"))]
    return order, [[run.epochs[-1].get(n) if run.epochs else None for n in order] for run in runs]
