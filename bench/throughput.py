"""Compare concurrent requests of several threads: one shared executor against one session of ONNX Runtime.

    python bench/throughput.py [--callers 1,2,8] [--only mlp-1,lenet-64] [--files FOLDER] [--quick]

Each caller runs the same network repeatedly on its own arrays. Both engines may use the same number of threads for one
request. Each engine has a process, and they take turns. The table is printed as Markdown: requests per second, and
graphkit's over ONNX Runtime's, paired by turn, with its interval (above 1, graphkit is faster).
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import contention
from engines import TITLES, load, versions
from processes import add_repetition, log, machine, parse
from tables import heading, table

from graphkit.checks.timing import Groups, geometric_mean, paired_ratio

ENGINES = contention.ENGINES


def serve(task: dict[str, Any]) -> int:
    """For every line on stdin, run a turn and print its requests per second as a line."""
    (engine,) = task["engines"]
    load(engine)
    call = contention.runner(engine, task).call
    for _ in range(3):
        call()
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps(_rate(call, task["callers"], task["seconds"])), flush=True)
    return 0


def _rate(call: Callable[[], object], callers: int, seconds: float) -> float:
    done = [0] * callers
    start = threading.Barrier(callers + 1)
    end = 0.0

    def caller(number: int) -> None:
        start.wait()
        while time.perf_counter() < end:
            call()
            done[number] += 1

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    begin = time.perf_counter()
    end = begin + seconds
    start.wait()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)


def measure(task: dict[str, Any], rounds: int) -> dict[str, list[float]]:
    """Return the requests per second of each turn, by engine."""
    servers = {engine: contention.Server(__file__, [engine], task) for engine in ENGINES}
    rates: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for number in range(rounds):
        for engine in ENGINES if number % 2 == 0 else ENGINES[::-1]:
            rates[engine].append(servers[engine].turn())
            time.sleep(0.05)
    for server in servers.values():
        server.close()
    return rates


def row_cells(processes: Sequence[dict[str, list[float]]]) -> tuple[list[str], Groups]:
    peer, ours = (sorted(rate for p in processes for rate in p[engine]) for engine in ENGINES)
    groups = [[b / a for a, b in zip(*(p[engine] for engine in ENGINES), strict=True)] for p in processes]
    ratio = paired_ratio(groups)
    rates = [f"{of[len(of) // 2]:.0f}" for of in (peer, ours)]
    return [*rates, f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"], groups


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--callers", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 8])
    contention.add_rows(parser)
    add_repetition(parser)
    options = parse(parser)
    facts, engines = machine(), versions()
    names = ", ".join(f"{TITLES[engine]} {engines[engine]}" for engine in ENGINES)
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; {names}")
    head = ["row", *(f"{TITLES[engine]}, requests in a second" for engine in ENGINES), "graphkit over ONNX Runtime"]
    for threads in options.threads:
        print(f"\n{heading(threads)} for one request")
        for callers in options.callers:
            body, all_groups = [], []
            for row in [*options.only, *contention.further_rows(options.files)]:
                log(f"{callers} callers: {row}, {threads} threads")
                task = contention.task_of(row, threads, options)
                task |= {"callers": callers, "seconds": options.seconds}
                cells, groups = row_cells([measure(task, options.rounds) for _ in range(options.restarts)])
                body.append([row, *cells])
                all_groups.append(groups)
            mean = geometric_mean(all_groups)
            body.append(["**geometric mean**", "", "", f"**{mean.median:.2f} ({mean.low:.2f} to {mean.high:.2f})**"])
            print("\n".join(["", f"### {callers} callers", "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        raise SystemExit(serve(json.loads(sys.argv[2])))
    raise SystemExit(main())
