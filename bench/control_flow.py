"""Measure loops and their gradients: graph size and build time by number of steps, memory with and without blocks.

    python bench/control_flow.py [--threads 1] [--quick] [--output bench/results/2026-11-control-flow.md]

One LSTM cell is written as the LSTM operator, as a Scan, as a counted Loop that reads its input by index, as a
while_loop, and unrolled. Gradients are those of the squared norm of the last state with respect to the weights. "arena"
is the planned arena, plus results and packed weights. "peak" is the growth of resident memory during a second run,
including memory that steps without a native kernel allocate outside of the arena. Loops whose length is only known at
run time store their values outside of the arena. Exit code 1 if outputs or gradients differ, or if a graph grows with
the number of steps.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.checks.footprint import measure
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

BATCH, FEATURES, HIDDEN = 16, 64, 128
SHAPES = {"w": (4 * HIDDEN, FEATURES), "r": (4 * HIDDEN, HIDDEN), "b": (4 * HIDDEN,)}
STATE = TensorType("float32", (BATCH, HIDDEN))
TOLERANCE = 1e-5

State = tuple[Value, Value]


def cell(x: Value, state: State, w: Value, r: Value, b: Value) -> State:
    """ONNX's order of gates: input, output, forget, cell. The transposes of weights do not depend on the step."""
    h, c = state
    i, o, f, g = F.split(F.add(F.add(F.mat_mul(x, w), F.mat_mul(h, r)), b), num_outputs=4, axis=1)
    c = F.add(F.mul(F.sigmoid(f), c), F.mul(F.sigmoid(i), F.tanh(g)))
    return F.mul(F.sigmoid(o), F.tanh(c)), c


def by_operator(x: Value, w: Value, r: Value, b: Value, steps: int, recompute: Any) -> Value:
    lead = lambda v: F.unsqueeze(v, np.array([0]))  # noqa: E731
    zeros = np.zeros(4 * HIDDEN, np.float32)
    return F.squeeze(F.lstm(x, lead(w), lead(r), lead(F.concat(b, zeros, axis=0)))[1], np.array([0]))


def by_scan(x: Value, w: Value, r: Value, b: Value, steps: int, recompute: Any) -> Value:
    w, r = F.transpose(w), F.transpose(r)
    start = np.zeros((BATCH, HIDDEN), np.float32)
    last: State = gk.fold(lambda s, v: cell(v, s, w, r, b), (start, start), x, recompute=recompute)
    return last[0]


def by_loop(x: Value, w: Value, r: Value, b: Value, steps: int, recompute: Any) -> Value:
    number, going = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "going")
    states, captures = [Value(STATE, n) for n in "hc"], [Value(v.type, v.name) for v in (x, w, r, b)]
    xs, ws, rs, bs = captures
    after = cell(F.gather(xs, number, axis=0), (states[0], states[1]), F.transpose(ws), F.transpose(rs), bs)
    body = Graph([number, going, *states, *captures], [going, *after])
    start = np.zeros((BATCH, HIDDEN), np.float32)
    return F.loop(np.int64(steps), None, start, start, x, w, r, b, body=body, captures=4)[0]


def by_while_loop(x: Value, w: Value, r: Value, b: Value, steps: int, recompute: Any) -> Value:
    w, r, start = F.transpose(w), F.transpose(r), np.zeros((BATCH, HIDDEN), np.float32)

    def body(s: Any) -> Any:
        return F.add(s[0], np.int64(1)), cell(F.gather(x, s[0], axis=0), s[1], w, r, b)

    length = F.squeeze(F.shape(x, start=0, end=1))
    end = gk.while_loop(lambda s: F.less(s[0], length), body, (np.int64(0), (start, start)), recompute=recompute)
    return end[1][0]


def by_hand(x: Value, w: Value, r: Value, b: Value, steps: int, recompute: Any) -> Value:
    w, r, start = F.transpose(w), F.transpose(r), F.constant(value=np.zeros((BATCH, HIDDEN), np.float32))
    state: State = (start, start)
    for t in range(steps):
        state = cell(F.gather(x, np.int64(t), axis=0), state, w, r, b)
    return state[0]


WAYS: dict[str, Callable[..., Value]] = {
    "LSTM operator": by_operator, "Scan": by_scan, "Loop": by_loop, "while_loop": by_while_loop, "unrolled": by_hand,
}  # fmt: skip
# Steps beyond which one run takes too long: unrolled graphs are planned node by node, LSTMGrad has no native kernel.
LIMITS = {"LSTM operator": 256, "while_loop": 1024, "unrolled": 256}


def training_graph(way: str, steps: int, recompute: Any = None) -> gk.Model:
    x, *weights = (gk.input(n, s) for n, s in {"x": (steps, BATCH, FEATURES), **SHAPES}.items())
    last = WAYS[way](x, *weights, steps, recompute)
    net = gk.Model({"loss": F.reduce_sum(F.mul(last, last), keepdims=False)}, inputs=[x, *weights])
    return gk.grad(net, of="loss", wrt=list(SHAPES), with_outputs=True)


def draw(steps: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((steps, BATCH, FEATURES)).astype(np.float32)}
    for name, shape in SHAPES.items():
        feeds[name] = rng.uniform(-1, 1, shape).astype(np.float32) * np.float32(HIDDEN**-0.5)
    return feeds


def nodes(graph: Graph) -> int:
    """Return the number of nodes, including subgraphs."""
    return len(graph.nodes) + sum(nodes(g) for n in graph.nodes for g in n.op.subgraphs().values())


def best(call: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def difference(way: str, steps: int, recompute: Any, threads: int) -> float:
    """Return the largest error of loss and gradients against the LSTM operator, relative to each largest element."""
    feeds = draw(steps)
    wanted = training_graph("LSTM operator", steps).compile(threads=threads).run(feeds)
    found = training_graph(way, steps, recompute).compile(threads=threads).run(feeds)
    return max(float(np.abs(found[n] - a).max() / np.abs(a).max()) for n, a in wanted.items())


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


def equality(threads: int, failures: list[str]) -> list[str]:
    rows = []
    for way, recompute in [*((w, None) for w in list(WAYS)[1:]), ("Scan", "sqrt"), ("Scan", 7), ("while_loop", 8)]:
        error = difference(way, 64, recompute, threads)
        if not error <= TOLERANCE:
            failures.append(f"{way} differs from the LSTM operator by {error:.2g}")
        rows.append((way if recompute is None else f"{way}, recompute={recompute!r}", f"{error:.1e}"))
    return ["## Outputs and gradients", "", "Beside the LSTM operator, 64 steps, float32; relative to the largest "
            "element.", "", *table(("network", "largest difference"), rows)]  # fmt: skip


def sizes(lengths: Sequence[int], failures: list[str]) -> list[str]:
    rows = []
    for way in WAYS:
        cells, counts = [], set()
        for steps in lengths:
            if way == "unrolled" and steps > LIMITS[way]:
                cells.append("-")
                continue
            seconds = best(partial(training_graph, way, steps), 1 if way == "unrolled" else 3)
            count = nodes(training_graph(way, steps).graph)
            counts.add(count)
            cells.append(f"{count:,}, {seconds * 1e3:,.0f} ms")
        if way != "unrolled" and len(counts) > 1:
            failures.append(f"{way}: the graph grows with the steps: {sorted(counts)} nodes")
        rows.append((way, *cells))
    return ["## Graph size and build time", "", "Nodes of forward and backward, subgraphs included; the time builds "
            "both from nothing.", "", *table(("network", *(f"T = {n:,}" for n in lengths)), rows)]  # fmt: skip


def memory(lengths: Sequence[int], threads: int) -> list[str]:
    rows = []
    for way, label, recompute in (
        ("LSTM operator", "", None),
        ("unrolled", "", None),
        ("Scan", "", None),
        ("Scan", ", recompute=1", 1),
        ("Scan", ', recompute="sqrt"', "sqrt"),
        ("while_loop", "", None),
        ("while_loop", ", recompute=isqrt(T)", math.isqrt),
    ):
        cells = []
        for steps in lengths:
            if steps > LIMITS.get(way, steps):
                cells.append("-")
                continue
            block = recompute(steps) if callable(recompute) else recompute
            executor = training_graph(way, steps, block).compile(threads=threads)
            feeds = draw(steps)
            found = measure(executor, feeds)
            seconds = best(partial(executor.run, feeds), 1)
            planned = f"{found.planned_bytes / 2**20:,.1f}" if way != "while_loop" else "-"
            cells.append(f"{planned} / {found.measured_bytes / 2**20:,.1f} / {seconds * 1e3:,.0f} ms")
        rows.append((way + label, *cells))
    return ["## Memory of a training step", "", "arena / peak, in MiB, and the time of a run.", "",
            *table(("network", *(f"T = {n:,}" for n in lengths)), rows)]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few steps: whether it runs, not what it takes")
    parser.add_argument("--output", type=Path, help="write the tables to this Markdown file")
    options = parser.parse_args()
    failures: list[str] = []
    lines = [
        "# Loops: graph size, build time, memory",
        "",
        f"`python bench/control_flow.py --threads {options.threads}`: an LSTM cell of {HIDDEN} units over T steps of a "
        f"batch of {BATCH}, {FEATURES} features,",
        "float32, gradients by the weights. That file explains the columns.",
        "",
    ]
    print("\n".join(lines))
    for section in (
        lambda: equality(options.threads, failures),
        lambda: sizes((4, 16) if options.quick else (16, 256, 4096), failures),
        lambda: memory((16,) if options.quick else (64, 256, 1024, 4096), options.threads),
    ):
        found = section()
        print("\n".join(found), flush=True)
        lines += found
    if options.output is not None:
        options.output.write_text("\n".join(lines).rstrip() + "\n")
    for failure in failures:
        print(f"FAILED: {failure}")
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
