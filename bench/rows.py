"""From the measurements of many processes to the rows of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from paired import merged, ratios
from workloads import WORKLOADS

from graphkit.checks.timing import paired_ratio

# Outputs that differ by more than this, relative to the largest element, count as wrong.
TOLERANCE = 1e-4


def time_row(
    name: str,
    threads: int,
    processes: Sequence[Mapping[str, Any]],
    cost: Mapping[str, int],
    ceiling: Mapping[str, Any],
    cache_bytes: int,
) -> dict[str, Any]:
    """One workload at one number of threads, from what `worker.time_engines` returned in each process.

    Times are medians over the rounds of all processes; `ratio` is, by peer, its time over graphkit's, so that more than
    1 means that graphkit is faster.
    """
    engines = {engine: _engine(engine, processes) for engine in processes[0]}
    limits = {"arithmetic": cost["flops"] / ceiling["flops"]}
    if cost["bytes"] > cache_bytes:
        # Data that fit into the last-level cache are not read from memory in repeated runs.
        limits["memory"] = cost["bytes"] / ceiling["bytes"]
    for result in engines.values():
        if "seconds" in result:
            result["percent"] = {limit: 100 * seconds / result["seconds"]["p50"] for limit, seconds in limits.items()}
    return {
        "workload": name, "title": WORKLOADS[name].title, "threads": threads, "cost": dict(cost), "engines": engines,
        "ratio": ratios(processes, engines), "limits": limits,
    }  # fmt: skip


def _engine(name: str, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    result = merged(name, processes)
    if "difference" in result:
        result["difference"] = max(p[name]["difference"] for p in processes)
        result["correct"] = result["difference"] <= TOLERANCE
    return result


def creation_row(name: str, threads: int, processes: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Session creation of each engine: medians over processes, and the paired ratio of graphkit to ONNX Runtime."""
    engines: dict[str, Any] = {}
    for engine, results in processes.items():
        failed = next((r for r in results if "error" in r), None)
        if failed is not None:
            engines[engine] = {"error": failed["error"]}
            continue
        engines[engine] = {k: float(np.median([r[k] for r in results])) for k in ("create", "first_result")}
    row = {"workload": name, "title": WORKLOADS[name].title, "threads": threads, "engines": engines, "ratio": {}}
    if all("create" in engines.get(e, {}) for e in ("graphkit", "onnxruntime")):
        for key in ("create", "first_result"):
            pairs = zip(processes["graphkit"], processes["onnxruntime"], strict=True)
            row["ratio"][key] = paired_ratio([[ours[key] / theirs[key]] for ours, theirs in pairs]).as_dict()
    return row


def all_rows(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of every table."""
    return [row for part in ("rows", "memory", "creation", "resize") for row in result[part]]


def failures(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Engines that did not run a workload or computed something else, one line each."""
    lines: dict[str, None] = {}
    for row in rows:
        for engine, result in row["engines"].items():
            if "error" in result:
                lines[f"{row['workload']}, {engine}: {result['error']}"] = None
            elif not result.get("correct", True):
                difference = f"{result['difference']:.1e}"
                lines[f"{row['workload']}, {engine}: outputs differ by {difference} of the largest"] = None
    return list(lines)
