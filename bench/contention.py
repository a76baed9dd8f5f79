"""Compare graphkit and ONNX Runtime on a shared machine: with busy processes, and by turns in one process.

    python bench/contention.py [--busy 0,1,2,4] [--only mlp-1,bert-1] [--files FOLDER] [--quick]

Rows are those of the inference benchmark and the files of a folder: NAME.onnx with NAME.npz, an array for each input
(`exported.py` writes some). With `--busy N`, N counting processes keep the cores busy while a row is measured. Each
engine has a process, the processes take turns, and the waiting one is idle. `alternation` is one process that calls the
engines alternately; their threads spin for a while after each call. The table is printed as Markdown: mean and
percentiles of all calls, and ONNX Runtime's time over graphkit's (above 1, graphkit is faster). The interval is that of
the means, paired by turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import workloads
from engines import TITLES, Model, Runner, load, open_engine, versions
from processes import HERE, add_choices, add_repetition, busy, log, machine, parse
from tables import heading, table

from graphkit.checks.timing import Groups, geometric_mean, paired_ratio

ENGINES = ("onnxruntime", "graphkit")
ALTERNATION = "alternation"


# --- the process of one engine, or of both ------------------------------------------------------------


def serve(task: dict[str, Any]) -> int:
    """For every line on stdin, run a turn and print its times by engine as a line."""
    calls = {}
    for name in task["engines"]:
        load(name)
        calls[name] = runner(name, task).call
    for call in calls.values():
        for _ in range(3):
            call()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps(_turn(calls, task["seconds"])), flush=True)
    return 0


def _turn(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def runner(engine: str, task: dict[str, Any]) -> Runner:
    model, feeds = source(task)
    return open_engine(engine, model, task["threads"], feeds)


def source(task: dict[str, Any]) -> tuple[Model, dict[str, np.ndarray]]:
    """Return the file of a row, and arrays for its inputs."""
    if task["row"] in workloads.WORKLOADS:
        workload = workloads.WORKLOADS[task["row"]]
        file = workloads.model_file(workload, Path(task["models"]))
        return Model(file.path, workload.network, workload.options), file.arrays(workload.batch)
    path = Path(task["files"]) / f"{task['row']}.onnx"
    with np.load(path.with_suffix(".npz")) as arrays:
        return Model(str(path), "", {}), dict(arrays)


# --- turns --------------------------------------------------------------------------------------------


def further_rows(folder: Path | None) -> list[str]:
    """The ONNX files of a folder."""
    return [] if folder is None else sorted(path.stem for path in folder.glob("*.onnx"))


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Add the options for rows and their files."""
    add_choices(parser, "--only", "row", workloads.WORKLOADS)
    parser.add_argument("--files", type=Path, help="folder with further rows: NAME.onnx, NAME.npz")
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder for the ONNX files, about 1.5 GB")


def task_of(row: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the description of a row for a worker process."""
    return {
        "row": row, "threads": threads,
        "models": str(options.models.resolve()), "files": str((options.files or HERE).resolve()),
    }  # fmt: skip


class Server:
    """A process of `script` that runs a turn on request."""

    def __init__(self, script: str, engines: Sequence[str], task: dict[str, Any]):
        command = [sys.executable, script, "--serve", json.dumps(task | {"engines": engines})]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE)
        self._read()

    def turn(self, request: object = None) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a process ended with {self._process.wait()}: {self._process.args}")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


def measure(load_name: str, task: dict[str, Any], rounds: int) -> dict[str, list[list[float]]]:
    """Return the times of each turn, by engine."""
    together = load_name == ALTERNATION
    servers = [Server(__file__, engines, task) for engines in ([ENGINES] if together else [[e] for e in ENGINES])]
    turns: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
    with busy(0 if together else int(load_name)):
        for number in range(rounds):
            for server in servers if number % 2 == 0 else servers[::-1]:
                for engine, times in server.turn().items():
                    turns[engine].append(times)
                time.sleep(0.05)
    for server in servers:
        server.close()
    return turns


def summary(turns: list[list[float]]) -> dict[str, float]:
    times = np.concatenate([np.asarray(turn) for turn in turns])
    p50, p90, p99 = np.percentile(times, (50, 90, 99))
    return {"mean": float(times.mean()), "p50": float(p50), "p90": float(p90), "p99": float(p99)}


def row_cells(processes: Sequence[dict[str, list[list[float]]]]) -> tuple[list[str], Groups]:
    """Return the cells of a row of the table, and the ratios of the means of paired turns."""
    peer, ours = (summary([turn for p in processes for turn in p[engine]]) for engine in ENGINES)
    groups = [
        [float(np.mean(a) / np.mean(b)) for a, b in zip(*(p[engine] for engine in ENGINES), strict=True)]
        for p in processes
    ]
    ratio = paired_ratio(groups)
    times = [f"{1e3 * of['mean']:.3g}" for of in (peer, ours)]
    quotients = [f"{peer[key] / ours[key]:.2f}" for key in ("mean", "p50", "p90", "p99")]
    return [*times, *quotients, f"{ratio.low:.2f} to {ratio.high:.2f}"], groups


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = os.cpu_count() or 1
    loads = [*dict.fromkeys(["0", "1", str(cores), str(2 * cores)]), ALTERNATION]
    parser.add_argument(
        "--busy", type=lambda text: text.split(","), default=loads, metavar="COUNTS",
        help=f"processes beside, or {ALTERNATION} (default: {','.join(loads)})",
    )  # fmt: skip
    add_rows(parser)
    add_repetition(parser)
    options = parse(parser)
    facts, engines = machine(), versions()
    print(
        f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; "
        + ", ".join(f"{TITLES[engine]} {engines[engine]}" for engine in ENGINES)
        + f"; {options.restarts} processes of {options.rounds} turns of {options.seconds} s"
    )
    times = [f"{TITLES[engine]}, ms" for engine in ENGINES]
    head = ["row", *times, "mean", "p50", "p90", "p99", "interval of the mean"]
    for threads in options.threads:
        print(f"\n{heading(threads)}")
        for load_name in options.busy:
            body, all_groups = [], []
            for row in [*options.only, *further_rows(options.files)]:
                log(f"{load_name}: {row}, {threads} threads")
                task = task_of(row, threads, options) | {"seconds": options.seconds}
                processes = [measure(load_name, task, options.rounds) for _ in range(options.restarts)]
                cells, groups = row_cells(processes)
                body.append([row, *cells])
                all_groups.append(groups)
            mean = geometric_mean(all_groups)
            interval = f"{mean.low:.2f} to {mean.high:.2f}"
            body.append(["**geometric mean**", "", "", f"**{mean.median:.2f}**", "", "", "", interval])
            title = "By turns in one process" if load_name == ALTERNATION else f"Beside {load_name} busy processes"
            print("\n".join(["", f"### {title}", "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        raise SystemExit(serve(json.loads(sys.argv[2])))
    raise SystemExit(main())
