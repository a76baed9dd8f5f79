"""Files of others: whether graphkit computes what ONNX Runtime computed, natively, how fast, and what exports compute.

    python bench/files.py FOLDER [--only fraud,vittrack] [--threads 2] [--rounds 5] [--seconds 0.3]

FOLDER has NAME.onnx with NAME.npz: an array `in:INPUT` for each input, and `out:K`, ONNX Runtime's K-th output.
*Difference*: the largest, relative to the largest element of the same output. *Native*: it ran under GRAPHKIT_STRICT=1.
*Export*: the same difference of ONNX Runtime on what graphkit writes. Times are medians of turns in one process, with a
pause between; above 1, graphkit is faster. The table is Markdown, on stdout; the exit code is 1 when a file did not
load, or did not export.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from engines import versions
from processes import log, machine
from tables import table

import graphkit as gk
from graphkit.checks.maps import flattened
from graphkit.checks.timing import geometric_mean, interleave, paired_ratio, quotients, summarise
from graphkit.errors import GraphkitError, UnsupportedError

_STRICT = "GRAPHKIT_STRICT"


def session(model: str | bytes, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest element; infinite for other shapes, texts or maps."""
    if isinstance(found, list):
        ours, theirs = (flattened({"y": item}) for item in (found, _listed(expected)))
        return max(difference(ours[key], theirs.get(key)) for key in ours)
    if not isinstance(expected, np.ndarray) or np.shape(found) != expected.shape:
        return np.inf
    if expected.dtype == object:
        return 0.0 if found.tolist() == expected.tolist() else np.inf
    a, b = np.asarray(found).astype(np.float64), expected.astype(np.float64)
    apart = np.abs(a - b)
    if np.isnan(a).sum() != np.isnan(b).sum():
        return np.inf
    return float(np.nanmax(apart, initial=0.0) / max(np.nanmax(np.abs(b), initial=0.0), np.finfo(np.float32).tiny))


def _listed(stored: Any) -> Any:
    return stored.tolist() if isinstance(stored, np.ndarray) and stored.dtype == object else stored


def runs_natively(path: Path, feeds: Mapping[str, Any], threads: int) -> bool:
    os.environ[_STRICT] = "1"
    try:
        gk.load(path).compile(threads=threads).run(feeds)
    except UnsupportedError:
        return False
    finally:
        del os.environ[_STRICT]
    return True


def measure(path: Path, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the row of a file."""
    with np.load(path.with_suffix(".npz"), allow_pickle=True) as stored:
        arrays = {name: stored[name] for name in stored.files}
    given = {name.removeprefix("in:"): array for name, array in arrays.items() if name.startswith("in:")}
    expected = [arrays[f"out:{k}"] for k in range(sum(name.startswith("out:") for name in arrays))]
    model = gk.load(path)
    feeds = {name: given[name] for name in model.inputs if name in given}
    executor = model.compile(threads=threads)
    peer = session(str(path), threads)
    names = {i.name for i in peer.get_inputs()}
    peer_feeds = {name: array for name, array in given.items() if name in names}
    results = executor.run(feeds)
    exported = session(model.to_onnx().SerializeToString(), threads)
    again = exported.run(None, {i.name: given[i.name] for i in exported.get_inputs() if i.name in given})
    calls = {"graphkit": lambda: executor.run(feeds), "onnxruntime": lambda: peer.run(None, peer_feeds)}
    times = interleave(calls, rounds, seconds=seconds)
    return {
        "difference": max(difference(results[n], e) for n, e in zip(model.outputs, expected, strict=False)),
        "export": max(difference(y, e) for y, e in zip(again, expected, strict=False)),
        "native": runs_natively(path, feeds, threads),
        "ms": {name: summarise(r).p50 * 1e3 for name, r in times.items()},
        "quotients": quotients(times["onnxruntime"], times["graphkit"]),
    }


def row_text(name: str, row: Mapping[str, Any]) -> list[str]:
    ours, theirs = (f"{row['ms'][engine]:.3f}" for engine in ("graphkit", "onnxruntime"))
    native = "yes" if row["native"] else "no"
    return [
        name, f"{row['difference']:.1e}", native, f"{row['export']:.1e}", ours, theirs,
        str(paired_ratio([row["quotients"]])),
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args(arguments)
    wanted = set(filter(None, options.only.split(",")))
    rows: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for path in sorted(options.folder.glob("*.onnx")):
        if wanted and path.stem not in wanted:
            continue
        log(path.stem)
        try:
            rows[path.stem] = measure(path, options.threads, options.rounds, options.seconds)
        except GraphkitError as error:
            failed.append(f"- {path.stem}: {type(error).__name__}: {str(error).splitlines()[0]}")
    found = machine()
    print(f"{found['cpu']}, {options.threads} threads of {found['cores']} cores; Python {found['python']}, ", end="")
    print(", ".join(f"{name} {version}" for name, version in versions().items() if version), end=". ")
    print(f"Load average {found['load']:.1f} at the start.\n")
    head = ("file", "difference", "native", "export", "graphkit, ms", "ONNX Runtime, ms", "ratio")
    print(table(head, [row_text(name, row) for name, row in rows.items()]))
    if rows:
        print(f"\nGeometric mean: {geometric_mean([[row['quotients']] for row in rows.values()])}.")
    print("\n".join(["", *failed]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
