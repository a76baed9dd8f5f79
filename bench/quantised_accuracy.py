"""Measure the accuracy of trained networks before and after `graphkit quantize`, in graphkit and in ONNX Runtime.

    python bench/quantised_accuracy.py DATA [--only mobilenetv2,resnet18,bert] [--models FOLDER]

DATA is a folder with `mnist` and `rt-polarity`. mobilenetv2 and resnet18 learn the digits of MNIST, with 32 x 32
pixels. A small BERT learns the movie reviews. Training takes minutes for each; the trained files stay in --models.
Each network is quantised statically, with 256 training samples for calibration, and the accuracy may fall by half a
percentage point (`--max-drop 0.005 --search`). The accuracy is that on the held-out part. Writes NAME.json and NAME.md
into bench/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from processes import HERE, add_choices, add_output, log, machine
from quantised_trained import NAMES, Trained, trained
from tables import table

import graphkit as gk
from graphkit import data
from graphkit.checks.timing import interleave, paired_ratio, quotients
from graphkit.onnx_io.compare import OnnxRuntimeModel, runtime_version

_CALIBRATION, _MAX_DROP, _BATCH = 256, 0.005, 32


def quantise(name: str, files: Trained) -> tuple[Path, dict[str, Any]]:
    """Run the command, and return its file and its result."""
    path = files.model.with_name(f"{name}-int8.onnx")
    command = [
        sys.executable, "-P", "-m", "graphkit", "quantize", str(files.model), str(path), "--data", str(files.folder),
        "--samples", str(_CALIBRATION), "--max-drop", str(_MAX_DROP), "--search", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return path, found


def logits(run: Callable[[Any], Any], test: data.Dataset, names: list[str]) -> np.ndarray:
    """Return the scores of all held-out samples."""
    parts = []
    for inputs, _ in test.batches(_BATCH, shuffle=False):
        feeds = inputs if isinstance(inputs, dict) else {names[0]: inputs}
        parts.append(np.asarray(run(feeds)["logits"]))
    return np.concatenate(parts)


def row(name: str, sources: Path, models: Path) -> dict[str, Any]:
    files = trained(name, sources, models)
    test = data.load(files.folder).test
    log(f"{name}: quantising")
    path, found = quantise(name, files)
    nets = {"float": gk.load(files.model), "int8": gk.load(path)}
    names = list(nets["int8"].input_types)
    runs = {
        "float": nets["float"].compile(threads=1).run,
        "int8": nets["int8"].compile(threads=1).run,
        "onnxruntime": OnnxRuntimeModel(str(path), threads=1).run,
    }
    log(f"{name}: {len(test):,} held-out samples")
    scores = {engine: logits(run, test, names) for engine, run in runs.items()}
    classes = {engine: array.argmax(axis=1) for engine, array in scores.items()}
    different = np.flatnonzero(classes["int8"] != classes["onnxruntime"])
    ordered = np.sort(scores["onnxruntime"][different], axis=1)
    return {
        "row": name, "samples": len(test), "layers": len(found["layers"]), "kept": found["kept"],
        "sqnr": [d["sqnr"] for d in found["differences"]],
        "accuracy": {engine: float((c == test.targets).mean()) for engine, c in classes.items()},
        "different": len(different),
        "largest_margin": float((ordered[:, -1] - ordered[:, -2]).max(initial=0)),
        "same_scores": float((scores["int8"] == scores["onnxruntime"]).mean()),
        "bytes": {"float": files.model.stat().st_size, "int8": path.stat().st_size},
        **_times(runs, test, names),
    }  # fmt: skip


def _times(runs: dict[str, Callable[[Any], Any]], test: data.Dataset, names: list[str]) -> dict[str, Any]:
    """Return the processor time of a batch on one thread, and its ratios to that of graphkit's integers."""
    inputs, _ = next(iter(test.batches(_BATCH, shuffle=False)))
    feeds = inputs if isinstance(inputs, dict) else {names[0]: inputs}
    calls = {engine: (lambda run=run: run(feeds)) for engine, run in runs.items()}
    times = interleave(calls, 9, seconds=0.1, clock=time.process_time)
    groups = {e: [quotients(times[e], times["int8"])] for e in ("float", "onnxruntime")}
    return {
        "seconds": {e: float(np.median([t for turn in turns for t in turn])) for e, turns in times.items()},
        "ratio": {e: paired_ratio(g).as_dict() for e, g in groups.items()},
    }


def report(result: dict[str, Any]) -> str:
    body = []
    for r in result["rows"]:
        a, s = r["accuracy"], r["seconds"]
        body.append([
            r["row"], f"{r['samples']:,}", *(f"{100 * a[e]:.2f} %" for e in ("float", "int8", "onnxruntime")),
            f"{100 * (a['int8'] - a['float']):+.2f}", str(r["different"]), f"{r['largest_margin']:.2g}",
            f"{r['layers']} of {r['layers'] + len(r['kept'])}",
            f"{1e3 * s['float']:.3g}", f"{1e3 * s['int8']:.3g}", f"{r['ratio']['float']['median']:.2f}",
            f"{r['ratio']['onnxruntime']['median']:.2f}",
        ])  # fmt: skip
    head = [
        "network", "held-out samples", "float32", "int8", "int8 in ONNX Runtime", "points", "other class", "margin",
        "layers", "float32, ms", "int8, ms", "of float32", "of ONNX Runtime",
    ]  # fmt: skip
    facts = result["machine"]
    return "\n".join([
        "# Accuracy of trained networks of 8-bit integers", "",
        f"{result['date']}; {facts['cpu']}, {facts['cores']} cores, ONNX Runtime {result['runtime']}; load average",
        f"{facts['load']:.1f} at the start. `python bench/quantised_accuracy.py DATA`", "",
        "Networks trained on MNIST (32 x 32 pixels) and on movie reviews, then quantised by `graphkit quantize`",
        f"(static, {_CALIBRATION} samples for calibration). The accuracy is that on held-out data. `other class`",
        "counts samples for which graphkit and ONNX Runtime predict different classes. `margin` is the largest",
        "difference of the two best scores of such a sample. Times are processor time of a batch of",
        f"{_BATCH} on one thread, by turns. Above 1, graphkit's integers are faster.", "",
        table(head, body), "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with mnist and rt-polarity")
    add_choices(parser, "--only", "network", NAMES)
    parser.add_argument("--models", type=Path, default=HERE / "models", help="folder for the trained files")
    add_output(parser, "2026-11-quantised-accuracy")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "runtime": runtime_version(),
        "rows": [row(name, options.data, options.models) for name in options.only],
    }  # fmt: skip
    text = report(result)
    stem = options.output / options.name
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
