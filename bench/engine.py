"""Measure the overhead of the dependency engine: operations per second, and round-trip time.

    python bench/engine.py [--operations 100000] [--repeat 5]

For each number of workers, the best repetition is printed: pushes per second, operations per second until all are
complete, and the median and 99th percentile of the time to push one operation and wait for it.
"""

from __future__ import annotations

import argparse
import time

from graphkit.executor.run.engine import Engine


def nothing() -> None:
    pass


def throughput(engine: Engine, operations: int, chains: int) -> tuple[float, float]:
    """Return pushes and operations per second. Consecutive operations use `chains` variables in turn."""
    variables = [[engine.variable()] for _ in range(chains)]
    start = time.perf_counter()
    for i in range(operations):
        engine.push(nothing, writes=variables[i % chains])
    pushed = time.perf_counter()
    engine.wait_all()
    done = time.perf_counter()
    return operations / (pushed - start), operations / (done - start)


def latency(engine: Engine, count: int) -> tuple[float, float]:
    """Return the median and 99th percentile of push and wait, in microseconds."""
    variable = engine.variable()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        engine.push(nothing, writes=[variable])
        engine.wait(variable)
        times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    return times[count // 2], times[count * 99 // 100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print(f"{'workers':>7}  {'variables':>9}  {'pushes/s':>9}  {'done/s':>9}  {'p50 us':>7}  {'p99 us':>7}")
    for workers in (1, 2, 4):
        for chains in (1, 64):
            with Engine(workers) as engine:
                rates = [throughput(engine, options.operations, chains) for _ in range(options.repeat)]
                middle, high = min(latency(engine, 2000) for _ in range(options.repeat))
            pushes, done = (max(column) for column in zip(*rates, strict=True))
            print(f"{workers:7}  {chains:9}  {pushes:9,.0f}  {done:9,.0f}  {middle:7.1f}  {high:7.1f}")


if __name__ == "__main__":
    main()
