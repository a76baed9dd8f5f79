"""Saving a model with large weights: graphkit's two formats, `onnx.save`, and a copy of the file.

    python bench/saving.py [--megabytes 512] [--restarts 3] [--folder FOLDER]

The model multiplies by square matrices of 64 MB each. Each way saves it in processes of its own, `--restarts` of them,
by turns; the model, or the file to copy, is in memory before. The table is Markdown, on stdout: medians of time and of
processor time, and the largest memory of the process beyond what it had before.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measurement import peak_bytes, reset_peak
from processes import HERE, TIMEOUT, machine
from tables import table

import graphkit as gk

_SIDE = 4096
WAYS = {"json": "graphkit, JSON and safetensors", "onnx": "graphkit, ONNX", "library": "onnx.save", "copy": "copy"}


def network(megabytes: int) -> gk.Model:
    x = gk.input("x", ["N", _SIDE])
    for number in range(max(1, round(megabytes * 1e6 / (4 * _SIDE**2)))):
        x = gk.nn.linear(x, _SIDE, bias=False, name=f"layer{number}")
    return gk.Model({"y": x}, seed=0)


def prepared(way: str, source: Path, folder: Path) -> Callable[[], object]:
    """Load what is to be saved, and return the function that saves it."""
    match way:
        case "json":
            model = gk.load(source)
            touch = [float(array.sum()) for array in model.params.values()]
            return lambda: (model.save(folder / "saved.json"), touch)
        case "onnx":
            model = gk.load(source)
            touch = [float(array.sum()) for array in model.params.values()]
            return lambda: (model.save(folder / "saved.onnx"), touch)
        case "library":
            import onnx

            proto = onnx.load(source)
            return lambda: onnx.save(proto, folder / "saved.onnx")
        case _:
            source.read_bytes()
            return lambda: shutil.copyfile(source, folder / "copy.onnx")


def measure(way: str, source: Path, folder: Path) -> dict[str, float]:
    save = prepared(way, source, folder)
    reset_peak()
    before = peak_bytes()
    wall, processor = time.perf_counter(), time.process_time()
    save()
    return {
        "seconds": time.perf_counter() - wall, "processor": time.process_time() - processor,
        "memory": float(peak_bytes() - before),
    }  # fmt: skip


def in_process(way: str, source: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        command = [sys.executable, str(HERE / "saving.py"), "--measure", way, str(source), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode:
        raise SystemExit(f"{WAYS[way]} failed:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the files are written (default: a temporary folder)")
    options = parser.parse_args()
    facts = machine()
    print(
        f"{facts['cpu']}, {facts['cores']} cores, load {facts['load']:.1f}, Python {facts['python']}; "
        f"graphkit {gk.__version__}; {options.megabytes} MB of weights; {options.restarts} processes for each row\n"
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder) / "source.onnx"
        network(options.megabytes).save(source)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for number in range(options.restarts):
            for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
                found[way].append(in_process(way, source))
    median = {way: {key: float(np.median([m[key] for m in found[way]])) for key in found[way][0]} for way in WAYS}
    body = [
        [title, f"{m['seconds']:.2f}", f"{m['processor']:.2f}", f"{m['memory'] / 1e6:.0f}",
         f"{m['seconds'] / median['copy']['seconds']:.2f}"]
        for way, title in WAYS.items() for m in [median[way]]
    ]  # fmt: skip
    print(table(["", "time, s", "processor time, s", "memory beyond the model, MB", "time / copy"], body))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))))
        raise SystemExit(0)
    raise SystemExit(main())
