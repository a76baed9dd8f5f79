"""From the rounds of many processes to medians and to ratios of paired rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.checks.timing import Groups, geometric_mean, paired_ratio


def merged(name: str, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge an engine's results of all processes: medians over their rounds. Other values are those of the first one.

    An engine that failed in one process failed.
    """
    results = [p[name] for p in processes]
    failed = next((r for r in results if "error" in r), None)
    if failed is not None:
        return {"error": failed["error"]}
    tails = {k: float(np.median([r["seconds"][k] for r in results])) for k in ("p90", "p99")}
    seconds = {
        "runs": sum(r["seconds"]["runs"] for r in results),
        "best": min(r["seconds"]["best"] for r in results),
        "p50": float(np.median([t for r in results for t in r["rounds"]])),
        **tails,
    }
    return {**results[0], "rounds": [r["rounds"] for r in results], "seconds": seconds}


def quotients(processes: Sequence[Mapping[str, Any]], numerator: str, denominator: str) -> Groups:
    """Per process, per round: the time of one engine over that of the other."""
    return [[a / b for a, b in zip(p[numerator]["rounds"], p[denominator]["rounds"], strict=True)] for p in processes]


def ratios(processes: Sequence[Mapping[str, Any]], engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """By peer that ran: its time over graphkit's, with interval and quotients; more than 1 means graphkit is faster."""
    ran = [engine for engine, result in engines.items() if "seconds" in result]
    found = {}
    for peer in ran if "graphkit" in ran else ():
        if peer != "graphkit":
            groups = quotients(processes, peer, "graphkit")
            found[peer] = {**paired_ratio(groups).as_dict(), "groups": groups}
    return found


def means(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Geometric means of the ratios by number of threads and peer, with the workloads that they leave out."""
    for threads in sorted({row["threads"] for row in rows}):
        chosen = [row for row in rows if row["threads"] == threads]
        for peer in dict.fromkeys(peer for row in chosen for peer in row["ratio"]):
            mean = geometric_mean([row["ratio"][peer]["groups"] for row in chosen if peer in row["ratio"]])
            left_out = [row["workload"] for row in chosen if peer not in row["ratio"]]
            yield {"threads": threads, "peer": peer, **mean.as_dict(), "left_out": left_out}
