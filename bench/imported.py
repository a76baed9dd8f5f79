"""Networks that others made: differentiated, trained, exported, each compared with something that is not graphkit's.

    python bench/imported.py CASES [--only a,b] [--seconds 120] [--results FILE] [-o bench/results/imported.md]

CASES is a folder with index.json, a list of objects with "name" and "what", and for each NAME.onnx and NAME.npz, which
holds the inputs as arrays called "in:INPUT". Every case runs in a process of its own; what is in FILE already, as lines
of JSON, is not run again. Exit code 1: a case that has gradients failed a check.

- Gradient: in float64, of a random combination of all floating-point outputs, in every floating-point input and
  parameter, against central differences along a random direction; of one after another, or, where that takes longer
  than --seconds, of all together (twice).
- Training: 20 steps on the case's inputs, with the mean squared distance of all outputs to nine tenths of what the file
  computes, plus noise, as the loss; by Adam, with the rate from 1e-2 to 1e-6 that ends lowest.
- Export: the trained model in inference mode, run by ONNX Runtime on the case's inputs. It passes when each element
  differs by at most 1e-4 of itself plus 1e-5 of the largest output (or of 1), or, in networks that magnify rounding,
  when graphkit is at most twice as far from the double-precision evaluation as ONNX Runtime is.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.checks.gradcheck import check_gradient
from graphkit.checks.precision import in_float64, widened
from graphkit.errors import GraphkitError, UsageError
from graphkit.executor.run.profile import profile
from graphkit.ir.graph import Value
from graphkit.model import Model
from graphkit.onnx_io.compare import OnnxRuntimeModel, runtime_version
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.passes.core.sweep import operators
from graphkit.passes.training.to_training import is_in_training, to_inference
from graphkit.train import imported
from graphkit.train.losses import float_behind

STEPS = 20
RATES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
# Units such as max and ReLU put kinks next to almost every point of a large network: no step is free of all of them.
RTOL, ATOL = 1e-4, 1e-6
# Evaluations of the network for one central difference, about: a few step sizes of four points.
EVALUATIONS = 8
# Operators that say what kind of network it is.
NOTABLE = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM", "GRU", "If", "Loop", "Scan", "BatchNormalization",
    "InstanceNormalization", "Softmax", "Gather", "Resize", "MaxPool", "TopK",
)  # fmt: skip


def open_case(folder: Path, name: str) -> tuple[Model, dict[str, np.ndarray], list[str]]:
    """Return the model with its weights as parameters, its inputs, and notes on changes for training."""
    notes = []
    net = gk.load(folder / f"{name}.onnx")
    if not net.trainable:
        net = imported.constants_to_parameters(net)
        notes.append("weights from Constant nodes")
    if not any(t.dtype.is_float for t in net.output_types.values()):
        last = float_behind(net.graph.outputs[0])
        if last is None:
            raise UsageError(f"no output of {name} depends on floating-point numbers")
        notes.append(f"output before the cast to {net.graph.outputs[0].dtype}")
        net = Model(last, inputs=net.data_inputs, params=dict(net.params))
    with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
        feeds = {n: stored[f"in:{n}"] for n in net.inputs}
    return net, feeds, notes


def check_gradients(net: Model, feeds: Mapping[str, np.ndarray], seconds: float) -> dict[str, Any]:
    graph = in_float64(net.graph)
    named = {n: widened(np.asarray(a)) for n, a in {**net.params, **feeds}.items()}
    start = time.perf_counter()
    evaluate(graph, [named[graph.name_of(v)] for v in graph.inputs])
    once = time.perf_counter() - start
    wrt = [n for n, t in net.input_types.items() if t.dtype.is_float] + list(net.trainable)
    together = once * EVALUATIONS * len(wrt) > seconds
    report = check_gradient(
        net, feeds, of=floats(net), wrt=wrt, rtol=RTOL, atol=ATOL, directions=2 if together else 1, together=together
    )
    # Relative to the derivative, or where that is tiny to what the tolerance adds.
    error = max(e.max_abs / (abs(e.numeric) + ATOL / RTOL) for e in report.entries if e.checked)
    failed = [str(e) for e in report.entries if not e.passed]
    return {"values": len(wrt), "together": together, "error": error, "failed": failed}


def floats(net: Model) -> list[str]:
    return [n for n, t in net.output_types.items() if t.dtype.is_float]


def train(net: Model, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], Model]:
    """Return the best of the runs, and its trained model."""
    names, rng = floats(net), np.random.default_rng(0)
    before = net.run(feeds)
    targets = {
        f"target_{i}": np.asarray(0.9 * y + 0.01 * (y.std() + 0.1) * rng.standard_normal(y.shape), y.dtype)
        for i, y in enumerate(before[n] for n in names)
    }
    places = [net.outputs.index(n) for n in names]

    def loss(*values: Value) -> Value:
        outputs, wanted = values[: len(net.outputs)], values[len(net.outputs) :]
        apart = [F.sub(outputs[p], t) for p, t in zip(places, wanted, strict=True)]
        means = [F.reduce_mean(F.mul(d, d), keepdims=False) for d in apart]
        return means[0] if len(means) == 1 else F.sum(*means)

    types = {t: net.output_types[n] for t, n in zip(targets, names, strict=True)}
    best: tuple[dict[str, Any], Model] | None = None
    for rate in RATES:
        copy = Model.from_graph(net.graph, dict(net.params))
        start = time.perf_counter()
        trainer = gk.Trainer(copy, loss, gk.optim.Adam(rate), targets=types, seed=0)
        build = time.perf_counter() - start
        losses, times = [], []
        for _ in range(STEPS):
            start = time.perf_counter()
            losses.append(float(trainer.step(dict(feeds), targets)))
            times.append(time.perf_counter() - start)
        if np.isfinite(losses).all() and (best is None or losses[-1] < best[0]["last"]):
            result = {
                "rate": rate, "first": losses[0], "last": losses[-1], "trained": len(trainer.trained),
                "build": build, "first_step": times[0], "step": statistics.median(times[1:]),
            }  # fmt: skip
            best = result, copy
    if best is None:
        raise UsageError("the loss is not finite at any learning rate")
    with profile() as recorded:
        for _ in range(3):
            trainer.step(dict(feeds), targets)
    best[0]["fallbacks"] = [
        (o.operator, o.calls // 3, o.seconds / 3) for o in recorded.operators if o.kind == "interpreted"
    ]
    return best


def export(net: Model, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    if is_in_training(net.graph):
        net = Model.from_graph(to_inference(net.graph), dict(net.params))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trained.onnx"
        net.save(path)
        size = max(float(np.abs(y).max(initial=0)) for y in net.run(feeds).values())
        report = gk.verify(gk.load(path), feeds, atol=1e-5 * max(size, 1.0), against=path)
        passed = report.passed or _as_near_as_onnx_runtime(net, feeds, path)
    return {"difference": max(o.max_abs for o in report.outputs), "size": size, "passed": passed}


def _as_near_as_onnx_runtime(net: Model, feeds: Mapping[str, np.ndarray], path: Path) -> bool:
    graph = in_float64(net.graph)
    named = {n: widened(np.asarray(a)) for n, a in {**net.params, **feeds}.items()}
    exact = evaluate(graph, [named[graph.name_of(v)] for v in graph.inputs])
    ours, theirs = net.run(feeds).values(), OnnxRuntimeModel(path).run(feeds).values()
    return all(
        np.abs(a - x).max(initial=0) <= 2 * np.abs(b - x).max(initial=0)
        for x, a, b in zip(exact, ours, theirs, strict=True)
    )


def run_case(folder: Path, name: str, seconds: float) -> dict[str, Any]:
    """Return the row of the table for a case. If graphkit refuses the case, "error" contains the reason."""
    result: dict[str, Any] = {"name": name}
    try:
        net, feeds, result["notes"] = open_case(folder, name)
        counts = operators(net.graph)
        result |= {"nodes": counts.total(), "operators": {k: counts[k] for k in NOTABLE if counts[k]}}
        result["parameters"] = net.num_parameters
        result["gradient"] = check_gradients(net, feeds, seconds)
        result["training"], trained = train(net, feeds)
        result["export"] = export(trained, feeds)
    except GraphkitError as error:
        result["error"] = f"{type(error).__name__}: {error}".replace(str(folder) + "/", "")
    return result


def in_own_process(options: argparse.Namespace, name: str) -> dict[str, Any]:
    command = [sys.executable, __file__, str(options.cases), "--case", name, "--seconds", str(options.seconds)]
    # The double-precision evaluation is numpy's; its threads and graphkit's would keep each other waiting.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "GRAPHKIT_NUM_THREADS": str(options.threads)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {"name": name, "error": f"not done within {options.timeout:g} seconds"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"name": name, "error": last[0]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


# --- the table ----------------------------------------------------------------------------------------


def succeeded(result: Mapping[str, Any]) -> bool:
    return (
        "export" in result
        and not result["gradient"]["failed"]
        and result["training"]["last"] < result["training"]["first"]
        and result["export"]["passed"]
    )


def report(results: Sequence[Mapping[str, Any]], what: Mapping[str, str], threads: int = 1) -> str:
    done = [r for r in results if "export" in r]
    head = [
        "model", "operators", "parameters", "gradient error", "loss, step 1", f"loss, step {STEPS}", "rate", "step, ms",
        "difference", "largest output",
    ]  # fmt: skip
    rows = [_row(r, what.get(r["name"], "")) for r in done]
    good = sum(succeeded(r) for r in results)
    parts = [
        "# Imported networks: gradients, training, export",
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"ONNX Runtime {runtime_version()}; `python bench/imported.py CASES`. {good} of {len(results)} files pass "
        f"everything. Step times are of one batch as the case has it, on {threads} thread{'s' if threads > 1 else ''}; "
        "medians, on a machine that other programs used as well.",
        _table(head, rows),
        "*gradient error*: the largest difference of a directional derivative from central differences in float64, "
        f"relative to it (passed below {RTOL:g}); in brackets the number of inputs and parameters, each along a "
        "direction of its own unless it says together. *difference*: of the outputs of the trained and exported file, "
        "graphkit's from ONNX Runtime's; it passes unless it says failed.",
    ]
    if failed := [f"- {r['name']}: {line}" for r in done for line in _failures(r)]:
        parts += ["## Failed", "\n".join(failed)]
    if refused := [f"- {r['name']} ({what.get(r['name'], '')}): {_short(r['error'])}" for r in results if "error" in r]:
        parts += ["## Not trained", "\n".join(refused)]
    if times := _fallback_rows(done):
        parts += [
            "## Operators that are interpreted in the training programs",
            _table(["operator", "ms per step, all files", "calls", "files, by time"], times),
        ]
    return "\n\n".join(parts) + "\n"


def _row(result: Mapping[str, Any], what: str) -> list[str]:
    gradient, training, exported = result["gradient"], result["training"], result["export"]
    counts = ", ".join(f"{k} {n}" for k, n in result["operators"].items())
    notes = f" ({'; '.join(result['notes'])})" if result["notes"] else ""
    return [
        f"{result['name']}: {what}{notes}",
        f"{result['nodes']} nodes; {counts}",
        f"{result['parameters']:,}",
        f"{gradient['error']:.1e} ({gradient['values']}{' together' if gradient['together'] else ''})",
        f"{training['first']:.3g}",
        f"{training['last']:.3g}",
        f"{training['rate']:g}",
        f"{1e3 * training['step']:.1f}",
        f"{exported['difference']:.1e}" + ("" if exported["passed"] else " failed"),
        f"{exported['size']:.2g}",
    ]


def _failures(result: Mapping[str, Any]) -> Iterable[str]:
    yield from (f"gradient in {line}" for line in result["gradient"]["failed"])
    if not result["training"]["last"] < result["training"]["first"]:
        yield "the loss does not fall"
    if not result["export"]["passed"]:
        yield f"outputs of the exported file differ by {result['export']['difference']:.1e}"


def _short(message: str) -> str:
    """Return the first lines of an error, joined to one."""
    lines = [line.strip() for line in message.splitlines()]
    return " ".join(lines)[:300] + ("..." if len(" ".join(lines)) > 300 else "")


def _fallback_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    files: dict[str, Counter[str]] = {}
    for result in results:
        for operator, count, spent in result["training"]["fallbacks"]:
            seconds[operator] += spent
            calls[operator] += count
            files.setdefault(operator, Counter())[result["name"]] += spent
    rows = []
    for operator, spent in seconds.most_common():
        slowest = ", ".join(f"{name} {1e3 * t:.2f}" for name, t in files[operator].most_common(5))
        rows.append([operator, f"{1e3 * spent:.2f}", str(calls[operator]), slowest])
    return rows


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--only", help="Names, separated by commas.")
    parser.add_argument("--seconds", type=float, default=120, help="For the gradient check of one case, about.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900, help="Seconds for one case.")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--results", type=Path, help="Lines of JSON: read, and added to.")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_case(options.cases, options.case, options.seconds)))
        return 0
    index = json.loads((options.cases / "index.json").read_text())
    names = options.only.split(",") if options.only else [entry["name"] for entry in index]
    known = {}
    if options.results and options.results.exists():
        known = {r["name"]: r for r in map(json.loads, options.results.read_text().splitlines())}
    results = []
    for name in names:
        if name not in known:
            known[name] = in_own_process(options, name)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(known[name]) + "\n")
        results.append(known[name])
    page = report(results, {entry["name"]: entry["what"] for entry in index}, options.threads)
    if options.output:
        options.output.write_text(page)
    else:
        print(page)
    return 0 if all(succeeded(r) for r in results if "gradient" in r) else 1


if __name__ == "__main__":
    sys.exit(main())
