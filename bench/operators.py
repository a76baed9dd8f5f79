"""Single operators in graphkit, compared with ONNX Runtime; and their gradients, compared with PyTorch.

    python bench/operators.py [--table forward,corners,...] [--shapes first,other] [--threads 1] [--rounds 7]
                              [--only NAME,...] [--output FILE]

A row is one node on about a million elements. In the tables `corners` and `gradient_corners`, rows have unusual shapes,
and with `--shapes other`, they have few elements: that measures the cost of a call. For a gradient, the value is
the result times a given array, summed; PyTorch computes forward and backward, and graphkit what the gradients need. All
engines are opened in one process and take turns in rounds. With one thread, times are processor times, which other
processes disturb less; otherwise they are wall times. A ratio is the median over rounds of the peer's time divided by
graphkit's: above 1, graphkit is faster.
Results are compared before. If they differ, or if an engine fails, the row says so and the exit code is 1.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gradient_rows
import gradient_rows_corners
import numpy as np
import onnx
import onnxruntime
import operator_rows
import operator_rows_corners
import operator_rows_dense  # noqa: F401 (adds rows)
from operator_operands import Operand, describe
from processes import machine
from tables import heading, table

import graphkit as gk
from graphkit.checks.timing import geometric_mean, interleave, paired_ratio, quotients, summarise

# The largest difference that is allowed, relative to the largest element of a result.
_TOLERANCE = 1e-3
_SECONDS = 0.03


class Engines(NamedTuple):
    """Two calls that compute the same, and the relative difference of their results."""

    ours: Callable[[], object]
    theirs: Callable[[], object]
    difference: float


def difference(ours: Iterable[Any], theirs: Iterable[Any]) -> float:
    """Return the largest difference, relative to the largest element of a result. Equal NaNs do not differ."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            return np.inf
        wide_a, wide_b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        with np.errstate(invalid="ignore"):
            apart = np.where((wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b)), 0, np.abs(wide_a - wide_b))
        if not np.isfinite(apart).all():
            return np.inf
        finite = np.abs(wide_b[np.isfinite(wide_b)])
        worst = max(worst, float(np.max(apart, initial=0)) / max(float(np.max(finite, initial=0)), 1e-6))
    return worst


def forward(row: operator_rows.Row, operands: Sequence[Operand], threads: int, rng: np.random.Generator) -> Engines:
    """Open a row in graphkit and ONNX Runtime."""
    arrays = [operand.draw(rng) for operand in operands]
    # An empty constant stands for an operand that is left out.
    names = [f"x{i}" if a.size else "" for i, a in enumerate(arrays)]
    held = [
        onnx.numpy_helper.from_array(a, n) for n, a, o in zip(names, arrays, operands, strict=True) if n and o.constant
    ]
    feeds = {n: a for n, a, o in zip(names, arrays, operands, strict=True) if n and not o.constant}
    make = onnx.helper
    inputs = [make.make_tensor_value_info(n, make.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    outputs = [f"y{i}" for i in range(row.outputs)]
    attributes = dict(row.attributes)
    if row.operator in ("LSTM", "GRU", "RNN"):
        attributes["hidden_size"] = operands[2].shape[-1]
    node = make.make_node(row.operator, names, outputs, **attributes)
    graph = make.make_graph([node], row.name, inputs, [make.make_empty_tensor_value_info(n) for n in outputs], held)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", row.opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    with warnings.catch_warnings(action="ignore", category=gk.errors.DeclarationWarning):
        executor = gk.load(model).compile(threads=threads)
        result = executor.run(feeds)
    apart = difference([result[n] for n in outputs], session.run(None, feeds))
    return Engines(partial(executor.run, feeds), partial(session.run, None, feeds), apart)


def gradient(
    row: gradient_rows.Gradient, operands: Sequence[Operand], threads: int, rng: np.random.Generator
) -> Engines:
    """Open a row's gradient in graphkit and PyTorch."""
    import torch

    torch.set_num_threads(threads)
    arrays = [operand.draw(rng) for operand in operands]
    learnt = [a.dtype.kind == "f" for a in arrays]
    names = [f"x{i}" for i, wanted in enumerate(learnt) if wanted]
    values = [
        gk.input(f"x{i}", list(a.shape)) if f else gk.constant(a)
        for i, (a, f) in enumerate(zip(arrays, learnt, strict=True))
    ]
    y = row.ours(*values)
    dy = rng.standard_normal([int(n) for n in y.shape]).astype(np.float32)
    loss = gk.reduce_sum(gk.mul(y, gk.input("dy", list(dy.shape))), keepdims=0)
    executor = gk.grad(gk.Model({"loss": loss}), of="loss", wrt=names).compile(threads=threads)
    feeds = {**{f"x{i}": a for i, (a, f) in enumerate(zip(arrays, learnt, strict=True)) if f}, "dy": dy}
    result = executor.run(feeds)
    tensors = [torch.tensor(a, requires_grad=f) for a, f in zip(arrays, learnt, strict=True)]
    seed = torch.tensor(dy)

    def step() -> None:
        for tensor in tensors:
            tensor.grad = None
        row.theirs(torch, torch.nn.functional, *tensors).backward(seed)

    step()
    expected = [t.grad.numpy() for t in tensors if t.requires_grad]
    return Engines(partial(executor.run, feeds), step, difference([result[f"{n}_grad"] for n in names], expected))


TABLES: dict[str, tuple[str, Any, Any]] = {
    "forward": ("ONNX Runtime", operator_rows.ROWS, forward),
    "corners": ("ONNX Runtime", operator_rows_corners.CORNERS, forward),
    "gradients": ("PyTorch", gradient_rows.ROWS, gradient),
    "gradient_corners": ("PyTorch", gradient_rows_corners.CORNERS, gradient),
}


def measured(name: str, shapes: str, threads: int, options: argparse.Namespace) -> tuple[str, bool]:
    """Return a table in Markdown, and whether all rows ran."""
    peer, rows, open_row = TABLES[name]
    body, ratios, failures = [], [], []
    for row in rows.values():
        if options.only and row.name not in options.only:
            continue
        operands = row.other if shapes == "other" else row.operands
        try:
            engines = open_row(row, operands, threads, np.random.default_rng(0))
        except Exception as error:  # noqa: BLE001 (an engine refuses the row, in its own way)
            failures.append(f"{row.name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}")
            continue
        if not engines.difference <= _TOLERANCE:
            failures.append(f"{row.name}: results differ by {engines.difference:.1e} of the largest element")
            continue
        clock = time.process_time if threads == 1 else time.perf_counter
        calls = {"ours": engines.ours, "theirs": engines.theirs}
        times = interleave(calls, options.rounds, seconds=_SECONDS, clock=clock)
        groups = [quotients(times["theirs"], times["ours"])]
        ratio = paired_ratio(groups)
        ratios.append((ratio.median, groups))
        best = [f"{summarise(times[who]).p50 * 1e3:.3f}" for who in ("ours", "theirs")]
        body.append((ratio.median, [row.name, describe(operands), *best, str(ratio)]))
        print(f"{name} {shapes} {row.name}: {ratio}", file=sys.stderr, flush=True)
    lines = [f"### {name.capitalize()}, {shapes} shapes, {heading(threads)[3:]}", ""]
    if body:
        mean = geometric_mean([groups for _, groups in ratios])
        below = sorted((cells[-1].split(" ")[0], cells[0]) for value, cells in body if value < 1)
        lines += [
            f"{len(body)} rows; geometric mean of the ratios to {peer}: {mean}. Below 1: "
            + (", ".join(f"{who} {value}" for value, who in below) or "none") + ".",
            "",
            table(["row", "operands", "graphkit, ms", f"{peer}, ms", "ratio"], [cells for _, cells in body]),
        ]  # fmt: skip
    if failures:
        lines += ["", "Did not run:", "", *(f"- {failure}" for failure in failures)]
    return "\n".join(lines), not failures


def versions(tables: Sequence[str]) -> str:
    used = {TABLES[name][0] for name in tables}
    peers = [f"ONNX Runtime {onnxruntime.__version__}"] if "ONNX Runtime" in used else []
    if "PyTorch" in used:
        import torch

        peers.append(f"PyTorch {torch.__version__}")
    about = machine()
    return (
        f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}, Python {platform.python_version()}; "
        f"graphkit {gk.__version__}, {', '.join(peers)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=lambda text: text.split(","), default=list(TABLES))
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=["first"])
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[])
    parser.add_argument("--output", type=Path, help="a Markdown file, instead of stdout")
    options = parser.parse_args()
    parts, complete = [versions(options.table)], True
    for threads in options.threads:
        for name in options.table:
            for shapes in options.shapes:
                text, ran = measured(name, shapes, threads, options)
                parts.append(text)
                complete = complete and ran
    page = "\n\n".join(parts) + "\n"
    if options.output:
        options.output.write_text(page)
    else:
        print(page)
    sys.exit(not complete)


if __name__ == "__main__":
    main()
