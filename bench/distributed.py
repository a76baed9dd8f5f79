"""Compare data-parallel steps of several processes with PyTorch's DistributedDataParallel over gloo.

    python bench/distributed.py [--ranks 2] [--networks 0,2] [--only mlp,resnet18] [--restarts 3] [--steps 20]

Each process trains by SGD with momentum on its batch, with one thread; gradients are all-reduced. For each row, each
engine runs `--restarts` jobs. The engines take turns; one job runs at a time. Network 0 is this machine as it is. Other
numbers are the Gbit/s between network namespaces (namespaces.py; needs root), over TCP for both engines. The losses of
the first steps are compared before timing. The table is printed as Markdown: the median over the steps of a job, then
the median over jobs. Ratios are of consecutive jobs: median, smallest and largest.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from namespaces import first_host, line
from processes import log, machine
from tables import table
from training_engines import open_shared, versions
from training_workloads import WORKLOADS

from graphkit.dist.job import launch

ENGINES = ("graphkit", "torch")
_NAMES = ("mlp", "lenet", "resnet18", "lstm_lm", "transformer_lm")
_WARM = 3
_HERE = "127.0.0.1"
# Time limit of a job, in seconds.
_LIMIT = 600


def worker(options: argparse.Namespace) -> dict[str, Any]:
    """Run the steps of one rank of a job."""
    runner, meet = open_shared(options.engine, WORKLOADS[options.only[0]], 1)
    first, times = [], []
    for step in range(_WARM + options.steps):
        meet()
        start = time.perf_counter()
        loss = runner.step()
        times.append(time.perf_counter() - start)
        if step < _WARM:
            first.append(loss)
    meet()
    return {"losses": first, "step": median(times[_WARM:]), **runner.facts}


def job(engine: str, name: str, launcher: list[str], address: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a job; return the measurements of rank 0."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    words = ["--worker", "--engine", engine, "--only", name, "--steps", str(options.steps)]
    given = [f"MASTER_ADDR={address}", f"MASTER_PORT={port}", f"WORLD_SIZE={options.ranks}", "OMP_NUM_THREADS=1"]
    if address != _HERE:
        given.append("GLOO_SOCKET_IFNAME=eth0")
    command = [*launcher, "env", *given, sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[:800]}")
    found: dict[str, Any] = json.loads(next(text for text in done.stdout.splitlines() if text.startswith("{")))
    return found


def row(name: str, launcher: list[str], address: str, options: argparse.Namespace) -> list[str]:
    """Return a row of the table. Raises SystemExit if the results of the engines differ."""
    found: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for restart in range(options.restarts):
        measured = {}
        for engine in ENGINES if restart % 2 == 0 else reversed(ENGINES):
            log(f"{name}, {engine}, {restart + 1} of {options.restarts}")
            measured[engine] = job(engine, name, launcher, address, options)
            found[engine].append(measured[engine]["step"])
        for ours, theirs in zip(*(measured[engine]["losses"] for engine in ENGINES), strict=True):
            if abs(ours - theirs) > 1e-4 * abs(theirs):
                raise SystemExit(f"{name}: the losses differ: {ours} and {theirs}")
    ratios = [theirs / ours for ours, theirs in zip(*(found[engine] for engine in ENGINES), strict=True)]
    times = [f"{1e3 * median(found[engine]):.2f}" for engine in ENGINES]
    return [WORKLOADS[name].title, *times, f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--networks", type=lambda text: [float(n) for n in text.split(",")], default=[0.0, 2.0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(_NAMES))
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        found = worker(options)
        if os.environ["PMI_RANK"] == "0":
            print(json.dumps(found), flush=True)
        return 0
    facts, engines = machine(), versions()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; graphkit {engines['graphkit']}, ", end="")
    print(f"PyTorch {engines['torch']}; {options.ranks} processes of one thread; load average {facts['load']:.1f}")
    for gbit in options.networks:
        local = nullcontext([launch.find_mpiexec(), "-n", str(options.ranks)])
        with line(options.ranks, gbit) if gbit else local as launcher:
            address = first_host() if gbit else _HERE
            body = [row(name, launcher, address, options) for name in options.only]
        title = f"TCP at {gbit:g} Gbit/s" if gbit else "one machine"
        print(
            f"\n## {title}\n\n{table(['a step of each process', 'graphkit ms', 'DDP ms', 'DDP / graphkit'], body)}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
