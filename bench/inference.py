"""Compare inference with ONNX Runtime, OpenVINO and PyTorch, on the same ONNX files in the same processes.

    python bench/inference.py                      # everything: about an hour
    python bench/inference.py --quick              # few rounds: several minutes, wide intervals
    python bench/inference.py --only mlp-1,lstm-1 --threads 1,4 --engines graphkit,onnxruntime

Writes NAME.json, NAME.md and NAME.svg into bench/results/. Engines that are not installed are left out, with a message.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import engines
from chart import Comparison, chart
from paired import means
from processes import HERE, add_choices, add_output, add_repetition, log, machine, parse, repeated, run
from report import report
from rows import all_rows, creation_row, failures, time_row
from workloads import WORKLOADS, Workload, model_file

SCHEMA, VERSION = "graphkit.bench.inference", 1
# Session creation and new batch sizes are measured on these, where they are chosen.
CREATED = ("resnet50-1", "bert-1")
PARTS = ("time", "memory", "create", "resize")
SPEED = Comparison(
    "Inference speed relative to ONNX Runtime", engines.TITLES, "onnxruntime", {"openvino": "dot", "torch": "diamond"}
)


def main() -> int:
    options = _options()
    versions = engines.versions()
    for engine in options.engines:
        if versions[engine] is None:
            log(f"{engines.TITLES[engine]} is not installed and left out")
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
    return 1 if failures(all_rows(result)) else 0


def measure(options: argparse.Namespace, used: Sequence[str]) -> dict[str, Any]:
    """Measure everything that the options select; return the content of the JSON file."""
    began = time.time()
    chosen = [WORKLOADS[name] for name in options.only]
    created = [w for w in chosen if w.name in CREATED]
    costs = {}
    for workload in chosen:
        log(f"model {workload.name}")
        counted = model_file(workload, options.models).cost
        costs[workload.name] = {"flops": counted.flops, "bytes": counted.bytes}
        if workload in created and "resize" in options.parts:
            model_file(workload, options.models, symbolic=True)
    facts = machine()
    most = max(options.threads)

    def one(task: str, workload: str, engine: str) -> dict[str, Any]:
        log(f"{task}: {workload}, {engine}")
        folder = str(options.models)
        return run({"task": task, "workload": workload, "engine": engine, "threads": most, "folder": folder})

    def each(task: str, workload: Workload, chosen_engines: Iterable[str]) -> dict[str, Any]:
        results = {engine: one(task, workload.name, engine) for engine in chosen_engines}
        return {"workload": workload.name, "title": workload.title, "engines": results}

    def creations(workload: Workload) -> dict[str, Any]:
        """Run `restarts` processes of each engine, by turns."""
        compiling = [engine for engine in used if engine != "torch"]
        results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in compiling}
        for _ in range(options.restarts):
            for engine in compiling:
                results[engine].append(one("create", workload.name, engine))
        return creation_row(workload.name, most, results)

    # The ceilings are those of the machine's best moment, so they are looked for before and after.
    before = _ceilings(options.threads)
    task = {"task": "time", "folder": str(options.models), "engines": used}
    times = repeated(options, [w.name for w in chosen], used, lambda _: task) if "time" in options.parts else {}
    resizable = [e for e in used if e in ("graphkit", "onnxruntime")]
    parts = {
        "memory": [each("memory", w, used) for w in chosen] if "memory" in options.parts else [],
        "creation": [creations(w) for w in created] if "create" in options.parts else [],
        "resize": [each("resize", w, resizable) for w in created] if "resize" in options.parts else [],
    }
    ceilings = _better(before, _ceilings(options.threads))
    rows = [
        time_row(name, threads, measured, costs[name], ceilings[threads], facts["cache_bytes"])
        for (name, threads), measured in times.items()
    ]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "date": datetime.date.today().isoformat(),
        "took_seconds": round(time.time() - began),
        "machine": facts,
        "options": {key: getattr(options, key) for key in ("restarts", "rounds", "seconds", "quick")},
        "ceilings": {str(threads): ceiling for threads, ceiling in ceilings.items()},
        "rows": rows,
        "means": list(means(rows)),
        **parts,
    }


# --- ceilings -----------------------------------------------------------------------------------------


def _ceilings(threads: Iterable[int]) -> dict[int, dict[str, Any]]:
    measured = {}
    for count in threads:
        log(f"ceilings, {count} threads")
        measured[count] = run({"task": "ceilings", "threads": count})
        if "error" in measured[count]:
            raise SystemExit(f"ceilings: {measured[count]['error']}")
    return measured


def _better(a: dict[int, dict[str, Any]], b: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the higher of two ceilings, separately for arithmetic and copies."""
    return {
        t: {
            "flops": max(a[t]["flops"], b[t]["flops"]),
            "bytes": max(a[t]["bytes"], b[t]["bytes"]),
            "found": [a[t], b[t]],
        }
        for t in a
    }


# --- command line -------------------------------------------------------------------------------------


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_choices(parser, "--only", "workload", WORKLOADS)
    add_choices(parser, "--engines", "engine", engines.TITLES)
    add_choices(parser, "--parts", "part", PARTS)
    add_repetition(parser)
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder for the ONNX files, about 1.5 GB")
    add_output(parser, "inference")
    return parse(parser)


if __name__ == "__main__":
    raise SystemExit(main())
