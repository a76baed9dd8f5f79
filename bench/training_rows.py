"""From the measurements of many processes to the rows of the report on training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from paired import merged, ratios
from training_workloads import WORKLOADS

# Largest differences of first steps; see `training_tasks.differences`.
LOSS, GRADIENTS, STATISTICS = 1e-5, 1e-4, 1e-4
# A single tensor: with batch normalisation, an element at the kink of a rectifier may count in one engine and not in
# the other, and moves the gradients of the layers before it.
TENSOR, TENSOR_AT_KINKS = 1e-4, 1e-2
# Name of the faster of the two peers of a row.
FASTEST = "fastest"


def training_row(name: str, threads: int, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One workload at one number of threads, from what `training_tasks.time_engines` returned in each process.

    `ratio` is, by peer, its time over graphkit's; under FASTEST, that of the peer with the lower median.
    """
    engines = {engine: _engine(engine, processes) for engine in processes[0]}
    ratio = ratios(processes, engines)
    if ratio:
        fastest = min(ratio, key=lambda peer: engines[peer]["seconds"]["p50"])
        ratio[FASTEST] = {**ratio[fastest], "engine": fastest}
    return {
        "workload": name,
        "title": WORKLOADS[name].title,
        "threads": threads,
        "engines": engines,
        "ratio": ratio,
    }


def _engine(name: str, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    result = merged(name, processes)
    if "difference" in result:
        result["difference"] = _largest([p[name]["difference"] for p in processes])
        result["wrong"] = _wrong(result["difference"])
    if "profile" in result:
        result["profile"] = _mean_profile([p[name]["profile"] for p in processes])
    return result


def _mean_profile(profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means over processes, and the median of `times_floor`."""
    found: dict[tuple[str, str], list[float]] = {}
    for profile in profiles:
        for operator in profile["operators"]:
            found.setdefault((operator["operator"], operator["kind"]), []).append(operator["seconds"])
    operators = [{"operator": o, "kind": k, "seconds": sum(s) / len(profiles)} for (o, k), s in found.items()]
    floors = [p["times_floor"] for p in profiles if p["times_floor"] is not None]
    return {
        "seconds": statistics.fmean(p["seconds"] for p in profiles),
        "convolutions": statistics.fmean(p["convolutions"] for p in profiles),
        "times_floor": statistics.median(floors) if floors else None,
        "operators": sorted(operators, key=lambda o: -o["seconds"]),
    }


def _largest(differences: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the largest difference of each kind. NaN counts as the largest."""
    largest: dict[str, Any] = {}
    for key in ("loss", "gradients", "gradient", "statistics"):
        values = [d[key] for d in differences if d[key] is not None]
        largest[key] = float(np.max(values)) if values else None
    largest["worst"] = differences[int(np.argmax([d["gradient"] for d in differences]))]["worst"]
    return largest


def _wrong(difference: Mapping[str, Any]) -> list[str]:
    """Return the differences that are too large, as a text."""
    normalised = difference["statistics"] is not None
    limits = {
        "loss": LOSS,
        "gradients": GRADIENTS,
        "gradient": TENSOR_AT_KINKS if normalised else TENSOR,
        "statistics": STATISTICS,
    }
    names = {"gradient": f"the gradient of {difference['worst']}"}
    return [
        f"{names.get(key, key)} differs by {difference[key]:.1e}"
        for key, limit in limits.items()
        # Not a number is wrong too.
        if difference[key] is not None and not difference[key] <= limit
    ]


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each engine that failed on a workload, or whose results differ."""
    lines: dict[str, None] = {}
    for row in rows:
        for engine, result in row["engines"].items():
            for problem in [result["error"]] if "error" in result else result.get("wrong", ()):
                lines[f"{row['workload']}, {engine}: {problem}"] = None
    return list(lines)
