"""Recurrent layers: graphkit against ONNX Runtime, in one process, run by run in turn.

    python bench/recurrent.py [--threads 1 4] [--repeat 200] [--json FILE]

Each row is a network of equal layers (layers x units, T steps of a batch): the best time of each side, and the median
over pairs of neighbouring runs of ONNX Runtime's time through graphkit's; above 1, graphkit is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.onnx_io.compare import OnnxRuntimeModel, runtime_version
from graphkit.onnx_io.exporter import export
from graphkit.ops import F

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class Workload(NamedTuple):
    kind: str
    layers: int
    units: int
    steps: int
    batch: int
    direction: str = "forward"

    def __str__(self) -> str:
        both = " bidirectional" if self.direction == "bidirectional" else ""
        return f"{self.kind} {self.layers} x {self.units}{both}, T={self.steps}, batch {self.batch}"


WORKLOADS = (
    Workload("lstm", 2, 256, 35, 1),
    Workload("lstm", 2, 256, 35, 20),
    Workload("lstm", 1, 128, 1, 1),
    Workload("lstm", 1, 128, 50, 1, "bidirectional"),
    Workload("gru", 2, 256, 35, 1),
    Workload("gru", 2, 256, 35, 20),
    Workload("gru", 1, 16, 100, 33),
    Workload("rnn", 2, 256, 35, 1),
    Workload("rnn", 2, 256, 35, 20),
)


def network(work: Workload, rng: np.random.Generator) -> Graph:
    """Layers with random weights, each over the results of the one before. x: [T, N, units]."""
    x = Value(TensorType("float32", (work.steps, work.batch, work.units)), "x")
    directions = 2 if work.direction == "bidirectional" else 1
    columns, scale = GATES[work.kind] * work.units, work.units**-0.5
    y = x
    for _ in range(work.layers):
        shapes = (
            (directions, columns, y.tensor.static_shape[2]),
            (directions, columns, work.units),
            (directions, 2 * columns),
        )
        weights = [rng.uniform(-scale, scale, shape).astype(np.float32) for shape in shapes]
        y = getattr(F, work.kind)(y, *weights, direction=work.direction, hidden_size=work.units)[0]
        if directions == 1:
            y = F.squeeze(y, np.array([1]))
    return Graph([x], [y], name=work.kind)


def seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(work: Workload, threads: int, repeat: int) -> dict[str, Any]:
    """Return the best seconds of both sides, and the median of paired ratios. Raises AssertionError if they differ."""
    rng = np.random.default_rng(0)
    graph = network(work, rng)
    ours = Executor(graph, ParamStore({}), threads=threads)
    theirs = OnnxRuntimeModel(export(graph, {}), threads)
    feeds = {"x": rng.standard_normal((work.steps, work.batch, work.units)).astype(np.float32)}
    for a, b in zip(ours.run(feeds).values(), theirs.run(feeds).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for _ in range(3):
        ours.run(feeds)
        theirs.run(feeds)
    pairs = [(seconds(lambda: ours.run(feeds)), seconds(lambda: theirs.run(feeds))) for _ in range(repeat)]
    return {
        "workload": str(work),
        "threads": threads,
        "graphkit": min(a for a, _ in pairs),
        "onnxruntime": min(b for _, b in pairs),
        "median ratio": statistics.median(b / a for a, b in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"ONNX Runtime {runtime_version()}; milliseconds\n")
    print("| network | threads | graphkit, best | ONNX Runtime, best | best ratio | median ratio |")
    print("|---|---|---|---|---|---|")
    rows = []
    for threads in options.threads:
        for work in WORKLOADS:
            row = measure(work, threads, options.repeat)
            rows.append(row)
            ours, theirs = row["graphkit"] * 1e3, row["onnxruntime"] * 1e3
            print(
                f"| {work} | {threads} | {ours:.3f} | {theirs:.3f} | {theirs / ours:.2f} | {row['median ratio']:.2f} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
