"""One measurement in a process of its own: `python bench/worker.py TASK` with a task as JSON; the result on stdout.

Tasks: `time` (engines interleaved on one workload), `memory` (peak of one engine), `create` (session creation of one
engine), `resize` (a new batch size in one engine), `ceilings` (the machine's arithmetic and copying); of training:
`train`, `train_memory`, `recompute` and `reimported`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
import training_tasks
from ceilings import ceilings
from engines import Model, Runner, open_engine
from measurement import one_line, peak_bytes, reset_peak, resident_bytes, timed
from workloads import WORKLOADS, model_file

# The batch sizes that `resize` goes to from batch 1.
BATCHES = (2, 3, 5, 4, 6)


def time_engines(task: dict[str, Any]) -> dict[str, Any]:
    """Outputs compared with those of the first peer that runs; then summaries of times and the medians of rounds."""
    workload = WORKLOADS[task["workload"]]
    file = model_file(workload, Path(task["folder"]))
    feeds = file.arrays(workload.batch)
    model = Model(file.path, workload.network, workload.options)
    runners: dict[str, Runner] = {}
    outputs: dict[str, list[np.ndarray]] = {}
    results: dict[str, dict[str, Any]] = {}
    for name in task["engines"]:
        try:
            runner = open_engine(name, model, task["threads"], feeds)
            outputs[name] = runner.fetch(runner.call())
        except Exception as error:  # noqa: BLE001 - the engines' exceptions have no common base; the row shows it
            results[name] = {"error": one_line(error, task)}
        else:
            runners[name] = runner
            results[name] = dict(runner.facts)
    reference = next((n for n in ("onnxruntime", "openvino", "torch") if n in outputs), None)
    for name in runners:
        if reference not in (None, name):
            results[name]["difference"] = _difference(outputs[name], outputs[reference])
    outputs.clear()
    calls = {name: runner.call for name, runner in runners.items()}
    for name, times in timed(calls, task).items():
        results[name] |= times
    return results


def _difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest |a - b| over all outputs, relative to the largest |b| of the output; infinite for other shapes."""
    if [a.shape for a in ours] != [b.shape for b in theirs]:
        return float("inf")
    pairs = zip(ours, theirs, strict=True)
    largest = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
    return largest if np.isfinite(largest) else float("inf")


def peak_memory(task: dict[str, Any]) -> dict[str, Any]:
    """Resident bytes before the model is opened, and at most while it is opened and run three times."""
    workload = WORKLOADS[task["workload"]]
    file = model_file(workload, Path(task["folder"]))
    feeds = file.arrays(workload.batch)
    engines.load(task["engine"])
    reset_peak()
    before = resident_bytes()
    runner = open_engine(task["engine"], Model(file.path, workload.network, workload.options), task["threads"], feeds)
    for _ in range(3):
        runner.call()
    return {"before": before, "peak": peak_bytes()}


def creation(task: dict[str, Any]) -> dict[str, Any]:
    """Return the seconds from the file to a session, and to the first outputs. The engine is imported before."""
    workload = WORKLOADS[task["workload"]]
    file = model_file(workload, Path(task["folder"]))
    feeds = file.arrays(workload.batch)
    # Not the file's first reader: the page cache is warm for every engine.
    Path(file.path).read_bytes()
    engines.load(task["engine"])
    start = time.perf_counter()
    runner = open_engine(task["engine"], Model(file.path, workload.network, workload.options), task["threads"], feeds)
    created = time.perf_counter()
    runner.call()
    return {"create": created - start, "first_result": time.perf_counter() - start}


def resizing(task: dict[str, Any]) -> dict[str, Any]:
    """Return how much longer the first run at a new batch size takes; for graphkit, also the time of `specialise`."""
    workload = WORKLOADS[task["workload"]]
    file = model_file(workload, Path(task["folder"]), symbolic=True)
    run, specialise = _resizable(task["engine"], file.path, task["threads"])
    run(file.arrays(1))
    result: dict[str, list[float]] = {"specialise": [], "extra": []}
    for batch in BATCHES:
        feeds = file.arrays(batch)
        special = _seconds(lambda feeds=feeds: specialise(feeds)) if specialise is not None else 0.0
        first = _seconds(lambda feeds=feeds: run(feeds))
        later = float(np.median([_seconds(lambda feeds=feeds: run(feeds)) for _ in range(3)]))
        result["extra"].append(special + first - later)
        if specialise is not None:
            result["specialise"].append(special)
    return result


def _resizable(engine: str, path: str, threads: int) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    if engine == "graphkit":
        import graphkit as gk

        executor = gk.load(path).compile(threads=threads)
        return executor.run, lambda feeds: executor.specialise({n: a.shape for n, a in feeds.items()})
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return (lambda feeds: session.run(None, feeds)), None


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


TASKS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "time": time_engines, "memory": peak_memory, "create": creation, "resize": resizing, "ceilings": ceilings,
    "train": training_tasks.time_engines, "train_memory": training_tasks.peak_memory,
    "recompute": training_tasks.recomputation, "reimported": training_tasks.reimported,
}  # fmt: skip


def main() -> int:
    task = json.loads(sys.argv[1])
    try:
        result = TASKS[task["task"]](task)
    except Exception as error:  # noqa: BLE001 - whatever an engine raises is this task's result
        result = {"error": one_line(error, task)}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
