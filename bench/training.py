"""Compare training steps with PyTorch, eager and compiled, on the same networks and weights in the same processes.

    python bench/training.py                       # everything: about two hours
    python bench/training.py --quick               # few rounds: wide intervals
    python bench/training.py --only mlp,lenet --threads 1,4 --engines graphkit,torch
    python bench/training.py --busy 1 --name training-busy  # while another process keeps a core busy

Writes NAME.json, NAME.md and NAME.svg into bench/results/. Engines that are not installed are left out, with a message.
Exit code 1 if an engine fails on a requested workload, or if its first step differs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Sequence
from typing import Any

import training_engines as engines
from chart import Comparison, chart
from paired import means
from processes import add_choices, add_output, add_repetition, busy, log, machine, parse, repeated, run
from training_report import report
from training_rows import failures, training_row
from training_workloads import WORKLOADS, Workload

SCHEMA, VERSION = "graphkit.bench.training", 1
PARTS = ("time", "memory")
SPEED = Comparison(
    "Speed of a training step relative to PyTorch eager", engines.TITLES, "torch", {"compiled": "diamond"}
)


def main() -> int:
    options = _options()
    versions = engines.versions()
    for engine in options.engines:
        if versions[engine] is None:
            log(f"{engines.TITLES[engine]} is not installed and left out")
    for name in options.only:
        if not WORKLOADS[name].available:
            log(f"{name} is left out: there is no such network")
    result = measure(options, [engine for engine in options.engines if versions[engine] is not None])
    result["engines"] = {engine: versions[engine] for engine in options.engines}
    text = report(result)
    options.output.mkdir(parents=True, exist_ok=True)
    stem = options.output / options.name
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    if result["rows"]:
        stem.with_suffix(".svg").write_text(chart(result, SPEED))
    print(text)
    log(f"wrote {stem}.json and .md" + (" and .svg" if result["rows"] else ""))
    return 1 if failures([*result["rows"], *result["memory"]]) else 0


def measure(options: argparse.Namespace, used: Sequence[str]) -> dict[str, Any]:
    """Measure everything that the options select; return the content of the JSON file."""
    began = time.time()
    chosen = [WORKLOADS[name] for name in options.only if WORKLOADS[name].available]
    facts = machine()
    task = {"task": "train", "engines": used}
    with busy(options.busy):
        times = repeated(options, [w.name for w in chosen], used, lambda _: task) if "time" in options.parts else {}
    memory = [_memory(w, max(options.threads), used) for w in chosen] if "memory" in options.parts else []
    rows = [training_row(name, threads, measured) for (name, threads), measured in times.items()]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "date": datetime.date.today().isoformat(),
        "took_seconds": round(time.time() - began),
        "machine": facts,
        "options": {key: getattr(options, key) for key in ("restarts", "rounds", "seconds", "quick", "busy")},
        "left_out": [name for name in options.only if not WORKLOADS[name].available],
        "rows": rows,
        "means": list(means(rows)),
        "memory": memory,
    }


def _memory(workload: Workload, threads: int, used: Sequence[str]) -> dict[str, Any]:
    results = {}
    for engine in used:
        log(f"memory: {workload.name}, {engine}")
        results[engine] = run({"task": "train_memory", "workload": workload.name, "engine": engine, "threads": threads})
    return {"workload": workload.name, "title": workload.title, "engines": results}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, "--only", "workload", WORKLOADS)
    add_choices(parser, "--engines", "engine", engines.TITLES)
    add_choices(parser, "--parts", "part", PARTS)
    parser.add_argument("--busy", type=int, default=0, metavar="COUNT", help="processes that keep cores busy")
    add_repetition(parser)
    add_output(parser, "training")
    return parse(parser)


if __name__ == "__main__":
    raise SystemExit(main())
