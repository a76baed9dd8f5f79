"""Sums over processes: KVStore.pushpull beside MPI's own Allreduce, in the same processes by turns.

    python bench/allreduce.py [--ranks 2,4] [--kilobytes 0,1,64,1024,16384,65536,262144] [--quick]

A call of either sums one float32 array of each process into a given one; 0 kB is one element. Times are medians over
rounds of the slowest process's mean. Processes share this machine's cores; where they are more than the cores, MPI's
own calls wait by spinning. The table is Markdown, on stdout.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from engines import versions
from processes import add_repetition, log, machine, parse
from tables import table

from graphkit.dist import kvstore, launch

# A round of one engine, in seconds, and calls in it at most.
_SECONDS, _MOST = 0.05, 2000


def measure(kilobytes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Of each size the seconds of a call, by round, of both; on every rank of a job."""
    from mpi4py import MPI

    store, world = kvstore.create("dist_sync"), MPI.COMM_WORLD
    found = []
    for size in kilobytes:
        given = np.full(max(size * 256, 1), store.rank + 1, np.float32)
        out = np.empty_like(given)
        calls: dict[str, Callable[[], object]] = {
            "mpi": lambda given=given, out=out: world.Allreduce(given, out),
            "graphkit": lambda given=given, out=out: store.pushpull("w", given, out),
        }
        for call in calls.values():
            call()
            assert (out == store.num_workers * (store.num_workers + 1) / 2).all()
        count = 1
        while True:  # as many as a round holds, the same number everywhere
            spent = world.allreduce(_timed(calls["mpi"], count, world), MPI.MAX) * count
            if spent > _SECONDS or count >= _MOST:
                break
            count = min(_MOST, 2 * count)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(world.allreduce(_timed(call, count, world), MPI.MAX))
        found.append({"kilobytes": size, **times})
    return found


def _timed(call: Callable[[], object], count: int, world: Any) -> float:
    world.Barrier()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def job(ranks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """What a job of so many processes measures."""
    log(f"{ranks} processes")
    sizes = ",".join(map(str, options.kilobytes))
    command = [launch.find_mpiexec(), "-n", str(ranks), sys.executable, __file__, "--worker", "--kilobytes", sizes]
    command += ["--rounds", str(options.rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> int:
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731 - a type of argparse
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--kilobytes", type=numbers, default=[0, 1, 64, 1024, 16384, 65536, 262144])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    add_repetition(parser)
    options = parse(parser)
    if options.worker:
        found = measure(options.kilobytes, options.rounds)
        if kvstore.create("dist_sync").rank == 0:
            print(json.dumps(found))
        return 0
    facts, engines = machine(), versions()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; graphkit {engines['graphkit']}")
    head = ["kB", "MPI, us", "graphkit, us", "beyond MPI, us", "of MPI's bandwidth", "GB/s"]
    for ranks in options.ranks:
        body = []
        for row in job(ranks, options):
            mpi, ours = (1e6 * float(np.median(row[name])) for name in ("mpi", "graphkit"))
            rate = row["kilobytes"] * 1024 / ours / 1e3
            body.append(
                [
                    str(row["kilobytes"]),
                    f"{mpi:.1f}",
                    f"{ours:.1f}",
                    f"{ours - mpi:.1f}",
                    f"{mpi / ours:.2f}",
                    f"{rate:.2f}",
                ]
            )
        print("\n".join(["", f"## {ranks} processes", "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
