"""Compare boosted trees with ONNX Runtime.

    python bench/trees.py [--threads 1 2] [--rounds 9] [--seconds 0.05] [--json FILE] [--markdown FILE]

Models are complete trees with random thresholds over 28 features, as gradient boosting makes them, with one target.
Every call gets new rows, because the processor's branch predictor would learn repeated ones. The engines take turns in
each round, and ratios are paired by round.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from engines import versions
from processes import machine

import graphkit as gk
from graphkit.checks.timing import interleave, paired_ratio, quotients, summarise

FEATURES = 28


class Workload(NamedTuple):
    trees: int
    depth: int
    rows: int
    dtype: str

    @property
    def title(self) -> str:
        return f"{self.trees} trees of depth {self.depth}, {self.rows} rows, {self.dtype}"


WORKLOADS = [
    *(Workload(t, d, n, "float32") for t, d in ((100, 6), (100, 8), (1000, 6), (1000, 8)) for n in (1, 100, 10_000)),
    *(Workload(100, 6, n, "float64") for n in (1, 100, 10_000)),
]


def boosted_trees(workload: Workload, seed: int = 0) -> gk.Model:
    """A model of one TreeEnsembleRegressor."""
    rng = np.random.default_rng(seed)
    inner = 2**workload.depth - 1
    count = 2 * inner + 1
    node = np.arange(count)
    is_leaf = np.tile(node >= inner, workload.trees)
    size = count * workload.trees
    leaves = np.flatnonzero(is_leaf)
    x = gk.input("x", ["rows", FEATURES], dtype=workload.dtype)
    thresholds = np.where(is_leaf, 0, rng.standard_normal(size)).astype(workload.dtype)
    weights = (0.1 * rng.standard_normal(len(leaves))).astype(workload.dtype)
    tree_of = np.repeat(np.arange(workload.trees), count)
    y = gk.tree_ensemble_regressor(
        x,
        nodes_treeids=tree_of.tolist(),
        nodes_nodeids=np.tile(node, workload.trees).tolist(),
        nodes_featureids=np.where(is_leaf, 0, rng.integers(0, FEATURES, size)).tolist(),
        nodes_modes=np.where(is_leaf, "LEAF", "BRANCH_LEQ").tolist(),
        nodes_values_as_tensor=thresholds,
        nodes_truenodeids=np.where(is_leaf, 0, np.tile(2 * node + 1, workload.trees)).tolist(),
        nodes_falsenodeids=np.where(is_leaf, 0, np.tile(2 * node + 2, workload.trees)).tolist(),
        target_treeids=tree_of[leaves].tolist(),
        target_nodeids=np.tile(node, workload.trees)[leaves].tolist(),
        target_ids=[0] * len(leaves),
        target_weights_as_tensor=weights,
        n_targets=1,
    )
    return gk.Model({"y": y}, name="trees")


def measure(workload: Workload, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Check that both engines have equal results; return their times and the ratio."""
    net = boosted_trees(workload)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        net.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    executor = net.compile(threads=threads)
    rng = np.random.default_rng(1)
    batches = [
        rng.standard_normal((workload.rows, FEATURES)).astype(workload.dtype)
        for _ in range(500 if workload.rows == 1 else 5)
    ]
    ours, theirs = executor.run({"x": batches[0]})["y"], session.run(None, {"x": batches[0]})[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)

    def turning(run: Callable[[dict[str, np.ndarray]], object]) -> Callable[[], object]:
        following = itertools.cycle(batches)
        return lambda: run({"x": next(following)})

    calls = {"graphkit": turning(executor.run), "onnxruntime": turning(lambda feeds: session.run(None, feeds))}
    times = interleave(calls, rounds, seconds=seconds)
    ratio = paired_ratio([quotients(times["onnxruntime"], times["graphkit"])])
    return {
        "workload": workload.title,
        "threads": threads,
        "engines": {name: summarise(found).as_dict() for name, found in times.items()},
        "ratio": ratio.as_dict(),
        "difference": float(np.abs(ours - theirs).max()),
    }


def markdown(command: str, facts: dict[str, Any], engines: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    names = ", ".join(f"{engine} {engines[engine]}" for engine in ("onnxruntime", "graphkit"))
    lines = [
        "# Boosted trees",
        "",
        f"`{command}`, {facts['cpu']}, {facts['cores']} cores, Python {facts['python']}; {names}",
        "",
        "Medians in microseconds; *ratio*: ONNX Runtime's time over graphkit's, paired by round, with its 95% "
        "interval: above 1 graphkit is faster. *difference*: the largest, of sums of as many weights as trees.",
    ]
    for threads in sorted({row["threads"] for row in rows}):
        lines += ["", f"## {threads} thread{'s' if threads > 1 else ''}", ""]
        lines += ["| workload | graphkit | ONNX Runtime | ratio | difference |", "| --- | ---: | ---: | ---: | ---: |"]
        for row in rows:
            if row["threads"] == threads:
                cells = [f"{1e6 * row['engines'][name]['p50']:.1f}" for name in ("graphkit", "onnxruntime")]
                r = row["ratio"]
                ratio = f"{r['median']:.2f} ({r['low']:.2f} to {r['high']:.2f})"
                lines.append(f"| {row['workload']} | {' | '.join(cells)} | {ratio} | {row['difference']:.0e} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    facts, engines, rows = machine(), versions(), []
    for threads in options.threads:
        for workload in WORKLOADS:
            rows.append(measure(workload, threads, options.rounds, options.seconds))
            print(f"{workload.title}, {threads} threads: {rows[-1]['ratio']}", flush=True)
    command = f"python bench/trees.py --rounds {options.rounds} --seconds {options.seconds}"
    text = markdown(command, facts, engines, rows)
    print(text)
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": facts, "engines": engines, "rows": rows}, indent=1) + "\n")
    if options.markdown is not None:
        options.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
