"""Measure how much memory recomputing activations saves, and how much time it costs, in training steps.

    python bench/recompute.py [--quick] [--only resnet50] [--json FILE]

Three versions of the same step take turns in one process: without recomputation (`plain`), with `recompute="sqrt"`, and
with half the plain arena as the limit in bytes. The table is printed as Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paired import merged, quotients
from processes import add_choices, add_repetition, parse, repeated
from tables import heading, milliseconds, ratio, table
from training_workloads import WORKLOADS

from graphkit.checks.timing import paired_ratio
from graphkit.config import num_threads

NETWORKS = ("resnet50", "transformer_lm")
TITLES = {"plain": "kept", "sqrt": '"sqrt"', "half": "half of the arena"}


def row(name: str, threads: int, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A network at a number of threads, from what `training_tasks.recomputation` returned in each process.

    `ratio` is the time of a way over that of `plain`, paired by round.
    """
    ways = {way: merged(way, processes) for way in processes[0]}
    for way, measured in ways.items():
        if way != "plain" and "error" not in measured and "error" not in ways["plain"]:
            measured["ratio"] = paired_ratio(quotients(processes, way, "plain")).as_dict()
    return {"workload": name, "title": WORKLOADS[name].title, "threads": threads, "ways": ways}


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table per number of threads."""
    head = ["step", "recomputed", "arena MiB", "of plain", "activations MiB", "of plain", "ms", "time of plain"]
    parts = []
    for threads in sorted({r["threads"] for r in rows}):
        body = [line for r in rows if r["threads"] == threads for line in _lines(r)]
        parts += [heading(threads), table(head, body)]
    return "\n\n".join(parts)


def _lines(measured: Mapping[str, Any]) -> list[list[str]]:
    plain = measured["ways"]["plain"]
    lines = []
    for way, found in measured["ways"].items():
        line = [measured["title"], TITLES[way]]
        if "error" in found:
            lines.append([*line, *["error"] * 5, found["error"]])
            continue
        for key in ("arena_bytes", "activation_bytes"):
            line += [f"{found[key] / 2**20:,.1f}", f"{found[key] / plain[key]:.2f}" if key in plain else ""]
        lines.append([*line, milliseconds(found), ratio(found.get("ratio"))])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, "--only", "workload", NETWORKS)
    add_repetition(parser)
    # Memory does not depend on them, and every row takes its time.
    parser.set_defaults(threads=[num_threads()])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parse(parser)
    measured = repeated(options, options.only, list(TITLES), lambda _: {"task": "recompute"})
    rows = [row(name, threads, processes) for (name, threads), processes in measured.items()]
    print(report(rows))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"schema": "graphkit.bench.recompute", "version": 1, "rows": rows}, indent=1)
        )
    return int(any("error" in way for r in rows for way in r["ways"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
