"""Compare two builds of graphkit on the rows of the inference and training benchmarks.

    python bench/builds.py BEFORE/bin/python AFTER/bin/python [--quick] [--only inference/resnet50-1,training/mlp]

Each argument is the Python of an environment with one of the builds. For each row, a process of each build is started.
They take turns, and the waiting one is idle. The table is printed as Markdown: milliseconds, and the time of the first
build over that of the second, paired by round, with its interval. Exit code 1 if a whole interval is below 0.98, or if
a build fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import workloads
from engines import Model
from engines import open_engine as open_inference
from paired import merged, quotients
from processes import HERE, add_choices, add_repetition, log, machine, parse
from tables import heading, milliseconds, table
from training_engines import open_engine as open_training
from training_workloads import WORKLOADS as TRAINING

from graphkit.checks.timing import geometric_mean, interleave, paired_ratio, summarise

BUILDS = ("before", "after")
ROWS = tuple(f"inference/{name}" for name in workloads.WORKLOADS) + tuple(f"training/{name}" for name in TRAINING)
LIMIT = 0.98


# --- the process of one build -------------------------------------------------------------------------


def serve(task: dict[str, Any]) -> int:
    """For every line on stdin, run a turn and print its summary as a line."""
    call = _call(task)
    for _ in range(2):
        call()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        times = interleave({"call": call}, 1, seconds=task["seconds"])["call"]
        print(json.dumps(summarise(times).as_dict()), flush=True)
    return 0


def _call(task: dict[str, Any]) -> Callable[[], object]:
    part, name = task["row"].split("/")
    if part == "training":
        return open_training("graphkit", TRAINING[name], task["threads"]).step
    workload = workloads.WORKLOADS[name]
    file = workloads.model_file(workload, Path(task["folder"]))
    model = Model(file.path, workload.network, workload.options)
    return open_inference("graphkit", model, task["threads"], file.arrays(workload.batch)).call


# --- turns of both ------------------------------------------------------------------------------------


class _Build:
    def __init__(self, python: str, task: dict[str, Any]):
        command = [python, str(HERE / "builds.py"), "--serve", json.dumps(task)]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": str(task["threads"])}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=HERE
        )
        self._read()

    def turn(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a build ended with {self._process.wait()}: {self._process.args}")
        return json.loads(line)

    def close(self) -> None:
        self._process.communicate()


def measure(pythons: Sequence[str], task: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return the summary and the median of every round of one pair of processes, by build."""
    builds = [_Build(python, task) for python in pythons]
    turns: list[list[dict[str, Any]]] = [[], []]
    for number in range(rounds):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            turns[place].append(builds[place].turn())
    for build in builds:
        build.close()
    return {
        name: {
            "rounds": [t["p50"] for t in found],
            "seconds": {key: sorted(t[key] for t in found)[len(found) // 2] for key in ("best", "p50", "p90", "p99")}
            | {"runs": sum(t["runs"] for t in found)},
        }
        for name, found in zip(BUILDS, turns, strict=True)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs=2, metavar="PYTHON", help="of the build before and of the one after")
    add_choices(parser, "--only", "row", ROWS)
    add_repetition(parser)
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder for the ONNX files, about 1.5 GB")
    options = parse(parser)
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores; {options.restarts} pairs of processes of {options.rounds} rounds")
    slower = False
    for threads in options.threads:
        found: dict[str, list[dict[str, Any]]] = {row: [] for row in options.only}
        for restart in range(options.restarts):
            for row, processes in found.items():
                log(f"restart {restart + 1} of {options.restarts}: {row}, {threads} threads")
                task = {"row": row, "threads": threads, "seconds": options.seconds, "folder": str(options.models)}
                processes.append(measure(options.pythons, task, options.rounds))
        groups = {row: quotients(processes, *BUILDS) for row, processes in found.items()}
        body = []
        for row, processes in found.items():
            ratio = paired_ratio(groups[row])
            slower |= ratio.high < LIMIT
            times = [milliseconds(merged(build, processes)) for build in BUILDS]
            body.append([row, *times, f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"])
        mean = geometric_mean(list(groups.values()))
        body.append(["**geometric mean**", "", "", f"**{mean.median:.3f} ({mean.low:.3f} to {mean.high:.3f})**"])
        print("\n".join(["", heading(threads), "", table(["row", *BUILDS, "before over after"], body)]), flush=True)
    return int(slower)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        raise SystemExit(serve(json.loads(sys.argv[2])))
    raise SystemExit(main())
