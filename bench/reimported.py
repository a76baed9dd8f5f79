"""Whether a network that went through an ONNX file trains as fast as the network itself.

    python bench/reimported.py [--quick] [--only resnet50,lstm_lm] [--json FILE]

Four trainers of the same step take turns in one process: of the network, of the same network once more (what the
measurement makes of equals), of the file that `graphkit export` writes of it, and of the file written of its graph in
training mode. The table is Markdown, on stdout. The exit code is 1 when a file has other steps, another first loss, or
takes more than 1.03 times as long, the whole interval above it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paired import merged, quotients
from processes import add_choices, add_repetition, parse, repeated
from tables import heading, milliseconds, table
from training_workloads import WORKLOADS

from graphkit.checks.timing import paired_ratio

WAYS = ("native", "again", "inference", "training")
FILES = ("inference", "training")
TITLES = {"again": "the network again", "inference": "its file", "training": "its file in training mode"}
# Samples in a batch; of the others as many as in the table of `training.py`.
BATCHES = {"resnet18": 4, "resnet50": 4, "mobilenetv2": 4, "transformer_lm": 2}
LIMIT = 1.03


def row(name: str, threads: int, processes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A network at a number of threads, from what `training_tasks.reimported` returned in each process.

    `ratio` is the time of a way over the native one's, paired by round.
    """
    ways = {way: merged(way, processes) for way in processes[0]}
    for way, measured in ways.items():
        if way != "native" and "error" not in measured and "error" not in ways["native"]:
            measured["ratio"] = paired_ratio(quotients(processes, way, "native")).as_dict()
    title = f"{name}, batch {BATCHES[name]}" if name in BATCHES else WORKLOADS[name].title
    return {"workload": name, "title": title, "threads": threads, "ways": ways}


def differences(measured: Mapping[str, Any]) -> list[str]:
    """Return the errors of a row as texts. The list is empty if the files train like the network."""
    native = measured["ways"]["native"]
    found = [f"{way}: {r['error']}" for way, r in measured["ways"].items() if "error" in r]
    for way in FILES if not found else ():
        file = measured["ways"][way]
        if not file["same"]:
            found.append(f"{TITLES[way]} has other steps: {file['steps']}, not {native['steps']}")
        if file["loss"] != native["loss"]:
            found.append(f"{TITLES[way]} has another first loss: {file['loss']}, not {native['loss']}")
        if file["ratio"]["low"] > LIMIT:
            found.append(f"{TITLES[way]} takes {file['ratio']['median']:.3f} times as long")
    return found


def report(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table per number of threads, and what differs."""
    head = ["step", "steps", "ms", *(f"{TITLES[way]}, of it" for way in WAYS[1:])]
    parts = []
    for threads in sorted({r["threads"] for r in rows}):
        parts += [heading(threads), table(head, [_line(r) for r in rows if r["threads"] == threads])]
    if wrong := [f"- {r['workload']}, {r['threads']} threads: {text}" for r in rows for text in differences(r)]:
        parts += ["## Differences", "\n".join(wrong)]
    return "\n\n".join(parts)


def _line(measured: Mapping[str, Any]) -> list[str]:
    native, *others = (measured["ways"][way] for way in WAYS)
    return [measured["title"], str(native.get("steps", "")), milliseconds(native), *map(_ratio, others)]


def _ratio(way: Mapping[str, Any]) -> str:
    if "ratio" not in way:
        return "error"
    return "{median:.3f} ({low:.3f} to {high:.3f})".format(**way["ratio"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, "--only", "workload", WORKLOADS)
    add_repetition(parser)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parse(parser)
    measured = repeated(options, options.only, WAYS, lambda name: {"task": "reimported", "batch": BATCHES.get(name)})
    rows = [row(name, threads, processes) for (name, threads), processes in measured.items()]
    print(report(rows))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"schema": "graphkit.bench.reimported", "version": 1, "rows": rows}, indent=1)
        )
    return int(any(differences(r) for r in rows))


if __name__ == "__main__":
    raise SystemExit(main())
