"""Inference of graphkit beside ONNX Runtime, OpenVINO and PyTorch, on the same ONNX files in the same processes.

    python bench/inference.py                      # everything: about an hour
    python bench/inference.py --quick              # few rounds: several minutes, wide intervals
    python bench/inference.py --only mlp-1,lstm-1 --threads 1,4 --engines graphkit,onnxruntime

Writes NAME.json, NAME.md and NAME.svg into bench/results/. Engines that are not installed are left out and named.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import engines
from chart import chart
from report import report
from rows import all_rows, creation_row, failures, means, time_row
from workloads import WORKLOADS, Workload, model_file

from graphkit.config import num_threads
from graphkit.errors import did_you_mean

HERE = Path(__file__).parent
SCHEMA, VERSION = "graphkit.bench.inference", 1
# Session creation and new batch sizes are measured on these, where they are chosen.
CREATED = ("resnet50-1", "bert-1")
# What runs for longer than this has hung.
TIMEOUT = 1800
PARTS = ("time", "memory", "create", "resize")


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
        stem.with_suffix(".svg").write_text(chart(result))
    print(text)
    log(f"wrote {stem}.json and .md" + (" and .svg" if result["rows"] else ""))
    return 1 if failures(all_rows(result)) else 0


def measure(options: argparse.Namespace, used: Sequence[str]) -> dict[str, Any]:
    """Everything that the options ask for, as it goes into the JSON file."""
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
    machine = _machine()
    most = max(options.threads)

    def one(task: str, workload: str, engine: str) -> dict[str, Any]:
        log(f"{task}: {workload}, {engine}")
        folder = str(options.models)
        return _run({"task": task, "workload": workload, "engine": engine, "threads": most, "folder": folder})

    def each(task: str, workload: Workload, chosen_engines: Iterable[str]) -> dict[str, Any]:
        results = {engine: one(task, workload.name, engine) for engine in chosen_engines}
        return {"workload": workload.name, "title": workload.title, "engines": results}

    def creations(workload: Workload) -> dict[str, Any]:
        """Processes of all engines in turn, `restarts` of each."""
        compiling = [engine for engine in used if engine != "torch"]
        results: dict[str, list[dict[str, Any]]] = {engine: [] for engine in compiling}
        for _ in range(options.restarts):
            for engine in compiling:
                results[engine].append(one("create", workload.name, engine))
        return creation_row(workload.name, most, results)

    # The ceilings are those of the machine's best moment, so they are looked for before and after.
    before = _ceilings(options.threads)
    times = _times(options, chosen, used) if "time" in options.parts else {}
    resizable = [e for e in used if e in ("graphkit", "onnxruntime")]
    parts = {
        "memory": [each("memory", w, used) for w in chosen] if "memory" in options.parts else [],
        "creation": [creations(w) for w in created] if "create" in options.parts else [],
        "resize": [each("resize", w, resizable) for w in created] if "resize" in options.parts else [],
    }
    ceilings = _better(before, _ceilings(options.threads))
    rows = [
        time_row(name, threads, measured, costs[name], ceilings[threads], machine["cache_bytes"])
        for (name, threads), measured in times.items()
    ]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "date": datetime.date.today().isoformat(),
        "took_seconds": round(time.time() - began),
        "machine": machine,
        "options": {key: getattr(options, key) for key in ("restarts", "rounds", "seconds", "quick")},
        "ceilings": {str(threads): ceiling for threads, ceiling in ceilings.items()},
        "rows": rows,
        "means": list(means(rows)),
        **parts,
    }


def _times(
    options: argparse.Namespace, chosen: Sequence[Workload], used: Sequence[str]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """By workload and number of threads: what each process measured. The restarts of a row lie far apart in time."""
    measured: dict[tuple[str, int], list[dict[str, Any]]] = {(w.name, t): [] for t in options.threads for w in chosen}
    for restart in range(options.restarts):
        for (name, threads), processes in measured.items():
            log(f"restart {restart + 1} of {options.restarts}: {name}, {threads} threads")
            task = {
                "task": "time", "workload": name, "folder": str(options.models), "threads": threads, "engines": used,
                "rounds": options.rounds, "seconds": options.seconds, "seed": restart,
            }  # fmt: skip
            result = _run(task)
            processes.append(dict.fromkeys(used, result) if "error" in result else result)
    return measured


# --- processes ----------------------------------------------------------------------------------------


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """The result of one worker process, or `{"error": ...}`."""
    # numpy's BLAS reads its threads when it is loaded. A copy is fastest with stores that pass the caches by.
    environment = os.environ | {"OPENBLAS_NUM_THREADS": str(task["threads"]), "MKL_NUM_THREADS": str(task["threads"])}
    if task["task"] == "ceilings":
        environment["GLIBC_TUNABLES"] = "glibc.cpu.x86_non_temporal_threshold=0x100000"
    command = [sys.executable, str(HERE / "worker.py"), json.dumps(task)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False, cwd=HERE
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result after {TIMEOUT} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"error": f"the process ended with {done.returncode}: {last[0][:300]}"}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _ceilings(threads: Iterable[int]) -> dict[int, dict[str, Any]]:
    measured = {}
    for count in threads:
        log(f"ceilings, {count} threads")
        measured[count] = _run({"task": "ceilings", "threads": count})
        if "error" in measured[count]:
            raise SystemExit(f"ceilings: {measured[count]['error']}")
    return measured


def _better(a: dict[int, dict[str, Any]], b: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The higher of two ceilings, arithmetic and copy each."""
    return {
        t: {
            "flops": max(a[t]["flops"], b[t]["flops"]),
            "bytes": max(a[t]["bytes"], b[t]["bytes"]),
            "found": [a[t], b[t]],
        }
        for t in a
    }


def _machine() -> dict[str, Any]:
    cpu = re.search(r"^model name\s*:\s*(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    cache = re.match(r"(\d+)K", _text("/sys/devices/system/cpu/cpu0/cache/index3/size"))
    return {
        "cpu": cpu.group(1) if cpu else platform.processor(),
        "cores": num_threads(),
        "cache_bytes": int(cache.group(1)) * 1024 if cache else 32 << 20,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


# --- command line -------------------------------------------------------------------------------------


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 restarts of 3 short rounds, without intervals to trust")
    parser.add_argument("--only", type=_names("workload", WORKLOADS), default=list(WORKLOADS), metavar="NAMES",
                        help=f"workloads: {', '.join(WORKLOADS)}")  # fmt: skip
    parser.add_argument("--engines", type=_names("engine", engines.TITLES), default=list(engines.TITLES),
                        metavar="NAMES", help=f"engines: {', '.join(engines.TITLES)}")  # fmt: skip
    parser.add_argument("--parts", type=_names("part", PARTS), default=list(PARTS), metavar="NAMES",
                        help=f"measurements: {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--threads", type=_counts, default=None, metavar="COUNTS", help="default: 1 and all cores")
    parser.add_argument("--restarts", type=int, help="processes per workload and number of threads (default: 5)")
    parser.add_argument("--rounds", type=int, help="rounds per process (default: 9)")
    parser.add_argument("--seconds", type=float, help="of an engine's turn in a round, at least one run (default: 0.1)")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder for the ONNX files, about 1.5 GB")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="folder for the results")
    parser.add_argument("--name", default="inference", help="name of the files of results")
    options = parser.parse_args()
    options.threads = options.threads or sorted({1, num_threads()})
    defaults = {"restarts": 2, "rounds": 3, "seconds": 0.03} if options.quick else {
        "restarts": 5, "rounds": 9, "seconds": 0.1
    }  # fmt: skip
    for key, value in defaults.items():
        if getattr(options, key) is None:
            setattr(options, key, value)
        if getattr(options, key) <= 0:
            parser.error(f"--{key} must be positive")
    return options


def _names(kind: str, known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"no {kind} {name!r}{did_you_mean(name, known)}")
        return names

    return parse


def _counts(text: str) -> list[int]:
    counts = sorted({int(part) for part in text.split(",")})
    if counts[0] < 1:
        raise argparse.ArgumentTypeError("threads are counted from 1")
    return counts


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
