"""Measure the savings of the memory planner, as in figure 7 of Chen et al., "MXNet", 2015, at batch 64.

    python bench/memory.py [--batch 64] [--json FILE]

The graphs are not fused. Only the arena of intermediate values is measured, without parameters, inputs and outputs.
"naive": every value has its own memory. "in-place": a result overwrites an operand that is not used later. "co-share":
the memory of values that are not used any more is reused. "both": in-place and co-share. No model is run, and no arena
is allocated. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import graphkit as gk
from graphkit.executor.devices.loading import load_device
from graphkit.executor.lower.lowering import Settings
from graphkit.executor.lower.registry import lower_graph
from graphkit.executor.memory.planner import plan_memory
from graphkit.ir.graph import Graph
from graphkit.passes.core.bind import bind

PLANNERS = {"naive": (False, False), "in-place": (True, False), "co-share": (False, True), "both": (True, True)}
# The networks of the paper; GoogLeNet without and with the batch normalisation that today's has.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "AlexNet": ("alexnet", {}),
    "GoogLeNet": ("googlenet", {"batch_norm": False}),
    "GoogLeNet, batch norm": ("googlenet", {}),
    "VGG-16": ("vgg", {"layers": 16}),
}
# No kernels: every value lives in the layout of the graph, without working memory.
GRAPH_ONLY, CPU = "", "cpu"

# A training step keeps what its backward part reads, and so has less to save.
REDUCTION, TRAINING_REDUCTION, ABOVE_BOUND = 4.0, 2.0, 1.02


def plans(graph: Graph, device: str) -> dict[str, float]:
    """Return the bytes of each plan, with the lower bounds of `both` and the seconds of its planning."""
    found: dict[str, float] = {}
    for name, (inplace, share) in PLANNERS.items():
        settings = Settings(device, True, 1, False, inplace, share, optimize=False)
        memory = lower_graph(graph, {}, settings, {}).memory
        found[name] = memory.layout.arena_bytes
    found["bound"] = memory.layout.lower_bound
    found["plain bound"] = memory.plain_lower_bound
    start = time.perf_counter()
    plan_memory(memory.requests)
    found["seconds"] = time.perf_counter() - start
    return found


def prediction(batch: int) -> Iterator[tuple[str, Graph]]:
    for title, (name, options) in NETWORKS.items():
        yield title, _bound(gk.models.build(name, **options).graph, batch)


def training(batch: int) -> Iterator[tuple[str, Graph]]:
    """Return a training step of SGD with momentum as one graph."""
    for title, (name, options) in NETWORKS.items():
        net = gk.models.build(name, **options)
        yield title, _bound(gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9)).graphs[0], batch)


def _bound(graph: Graph, batch: int) -> Graph:
    data = {graph.name_of(v): v.tensor.known_shape for v in graph.inputs if v.role == "data"}
    return bind(graph, {n: tuple(d if isinstance(d, int) else batch for d in shape) for n, shape in data.items()})


def table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Markdown, in MiB."""
    head = ["network", *PLANNERS, "naive / both", "arena / bound", "bound / plain order's", "planned in"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for title, found in rows.items():
        sizes = " | ".join(f"{found[name] / 2**20:,.1f}" for name in PLANNERS)
        lines.append(
            f"| {title} | {sizes} | {found['naive'] / found['both']:.1f} | {found['both'] / found['bound']:.4f} "
            f"| {found['bound'] / found['plain bound']:.3f} | {found['seconds'] * 1e3:.1f} ms |"
        )
    return "\n".join(lines)


def missed(rows: Mapping[str, Mapping[str, float]], reduction: float) -> list[str]:
    """Return the targets that the rows miss."""
    found = []
    for title, row in rows.items():
        if row["naive"] < reduction * row["both"]:
            found.append(f"{title}: {row['naive'] / row['both']:.2f} times less than naive, not {reduction:g}")
        if row["both"] > ABOVE_BOUND * row["bound"]:
            found.append(f"{title}: {row['both'] / row['bound']:.3f} times its lower bound")
        if row["bound"] > row["plain bound"]:
            found.append(f"{title}: a bound above the plain order's")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write the numbers, in bytes, to this file")
    options = parser.parse_args()
    load_device(CPU)
    # By title: how many times less than naive is asked for, and the rows.
    sections = {
        "Prediction": (REDUCTION, {t: plans(g, GRAPH_ONLY) for t, g in prediction(options.batch)}),
        "Prediction, with the working memory of the CPU's kernels": (
            0.0,
            {t: plans(g, CPU) for t, g in prediction(options.batch)},
        ),
        "Training step": (TRAINING_REDUCTION, {t: plans(g, GRAPH_ONLY) for t, g in training(options.batch)}),
    }
    for title, (_, rows) in sections.items():
        print(f"## {title}, batch {options.batch}, MiB\n\n{table(rows)}\n")
    if options.json is not None:
        tables = {title: rows for title, (_, rows) in sections.items()}
        options.json.write_text(json.dumps({"batch": options.batch, "tables": tables}, indent=1))
    failures = [line for reduction, rows in sections.values() for line in missed(rows, reduction)]
    for failure in failures:
        print(f"above target: {failure}")
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
