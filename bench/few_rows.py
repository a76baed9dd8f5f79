"""Compare matrix products of few rows with ONNX Runtime, and with oneDNN in graphkit.

    python bench/few_rows.py [--threads 1,2] [--rounds 5]

Each row of the table is a shape of the constant matrices. A model multiplies its input with 100 MB of them, so that
they are read from memory, as in decoding. Outputs are compared before timing. All engines run in one process and take
turns in rounds. The table is printed as Markdown: for each number of rows, the bytes of the matrices per second in
graphkit, and the times of ONNX Runtime and oneDNN over graphkit's, paired by round (above 1, graphkit is faster).
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import onnxruntime
from processes import machine
from tables import heading, table

import graphkit as gk
from graphkit.checks.timing import interleave, paired_ratio, quotients, summarise
from graphkit.executor.devices.cpu import native

SHAPES = ((512, 256), (512, 512), (512, 1376), (1376, 512), (1024, 1024), (768, 3072), (512, 32000), (4096, 1024))
ROWS = (1, 2, 4, 8, 16)
_BYTES = 100e6


class LibraryProducts:
    """Makes oneDNN's kernels of products for all sizes."""

    def __init__(self, *, epilogue: native.Epilogue | None, has_bias: bool, vary: bool, **options: Any):
        self.options = {"epilogue": epilogue or native.Epilogue(), **options}

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> native.MatMul:
        return native.MatMul(inputs[0], inputs[1], **self.options)


def products(rows: int, shape: tuple[int, int]) -> gk.Model:
    x = gk.input("x", [rows, shape[0]])
    count = max(1, int(_BYTES / (4 * shape[0] * shape[1])))
    return gk.Model({f"y{i}": gk.mat_mul(x, gk.parameter(f"w{i}", shape)) for i in range(count)}, seed=0)


def cell(rows: int, shape: tuple[int, int], threads: int, rounds: int) -> str:
    model, rng = products(rows, shape), np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((rows, shape[0]), np.float32)}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString(), options)
    executor, library = model.compile(threads=threads), model.compile(threads=threads)
    result = executor.run(feeds)
    # Kernels are made in the first run.
    with patch("graphkit.executor.devices.cpu.matmul.native.ProductFactory", LibraryProducts):
        library.run(feeds)
    for name, expected in zip(result, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(result[name], expected, rtol=1e-3, atol=1e-3)
    engines = {
        "ours": lambda: executor.run(feeds), "library": lambda: library.run(feeds),
        "theirs": lambda: session.run(None, feeds),
    }  # fmt: skip
    times = interleave(engines, rounds)
    speed = 4 * shape[0] * shape[1] * len(result) / summarise(times["ours"]).p50 / 1e9
    ratios = [paired_ratio([quotients(times[peer], times["ours"])]).median for peer in ("theirs", "library")]
    return f"{speed:.1f}; {ratios[0]:.2f}, {ratios[1]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    about = machine()
    print(
        f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}, Python {platform.python_version()}; "
        f"graphkit {gk.__version__}, ONNX Runtime {onnxruntime.__version__}; {options.rounds} rounds."
    )
    head = ["matrix", *(f"{rows} row{'s' * (rows > 1)}: GB/s; to ONNX Runtime, oneDNN" for rows in ROWS)]
    for threads in options.threads:
        body = [[f"{k} x {n}", *(cell(rows, (k, n), threads, options.rounds) for rows in ROWS)] for k, n in SHAPES]
        print(f"\n{heading(threads)}\n\n{table(head, body)}", flush=True)


if __name__ == "__main__":
    main()
