"""Compare inference on batches of images, computed in parts or as a whole, with ONNX Runtime.

    python bench/batches.py [--only mobilenetv2,resnet-50] [--batches 1,4,16] [--threads 1,2] [--quick]

Each row is a network on a batch. For "as a whole", graphkit runs a file whose batch size is fixed. The three run in one
process and take turns in rounds, with a pause before each, because threads spin after a call. The table is printed as
Markdown: milliseconds per image, the ratios to graphkit in parts, paired by round, with intervals (above 1, parts are
faster), and the arenas of one part and of the whole in MiB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from engines import versions
from processes import add_choices, add_repetition, log, machine, parse
from tables import heading, table

import graphkit as gk
from graphkit.checks.timing import paired_ratio

NETWORKS: dict[str, Callable[[], gk.Model]] = {
    "mobilenetv2": lambda: gk.models.build("mobilenetv2"),
    "resnet-18": lambda: gk.models.build("resnet", layers=18),
    "resnet-50": lambda: gk.models.build("resnet", layers=50),
    "googlenet": lambda: gk.models.build("googlenet"),
}
PAUSE = 0.1

Call = Callable[[], object]


def write(network: str, folder: Path) -> Path:
    """Write the network with a symbolic batch size."""
    path = folder / f"{network}.onnx"
    if not path.exists():
        NETWORKS[network]().save(path)
    return path


def with_fixed_batch(path: Path, batch: int) -> Path:
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    fixed = path.with_name(f"{path.stem}-{batch}.onnx")
    onnx.save(model, fixed)
    return fixed


def timed(call: Call, seconds: float) -> float:
    """Return the mean time of a call, over as many calls as take `seconds`. The first call is not timed."""
    time.sleep(PAUSE)
    call()
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() < start + seconds:
        call()
        count += 1
    return (time.perf_counter() - start) / count


class Measured(NamedTuple):
    """A row of one process: the cells before the ratios, and the quotients of its rounds."""

    cells: list[str]
    whole_over_parts: list[float]
    peer_over_parts: list[float]


def measure(path: Path, batch: int, threads: int, options: argparse.Namespace) -> Measured:
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), session_options, providers=["CPUExecutionProvider"])
    (spec,) = session.get_inputs()
    images = np.random.default_rng(0).standard_normal((batch, *spec.shape[1:]), np.float32)
    feeds = {spec.name: images}
    parts = gk.load(path).compile(threads=threads)
    whole = gk.load(with_fixed_batch(path, batch)).compile(threads=threads)
    calls: list[Call] = [lambda: parts.run(feeds), lambda: whole.run(feeds), lambda: session.run(None, feeds)]
    expected = session.run(None, feeds)
    for executor in (parts, whole):
        for got, wanted in zip(executor.run(feeds).values(), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    rounds = [[timed(call, options.seconds) for call in calls] for _ in range(options.rounds)]
    per_image = [f"{np.median([r[i] for r in rounds]) / batch * 1e3:.2f}" for i in range(3)]
    found, other = parts.plan, whole.plan
    at_a_time = f"{found.examples[0]} x {found.arenas}" if found.examples else "all"
    arenas = [f"{plan.arena_bytes / 2**20:.1f}" for plan in (found, other)]
    over_parts = [[r[i] / r[0] for r in rounds] for i in (1, 2)]
    return Measured([at_a_time, *per_image, *arenas], *over_parts)


def row_cells(found: Sequence[Measured]) -> list[str]:
    ratios = [
        paired_ratio([one.whole_over_parts for one in found]),
        paired_ratio([one.peer_over_parts for one in found]),
    ]
    return [*found[0].cells, *(f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" for ratio in ratios)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4, 16])
    add_choices(parser, "--only", "row", NETWORKS)
    add_repetition(parser)
    options = parse(parser)
    facts, engines = machine(), versions()
    names = ", ".join(f"{engine} {engines[engine]}" for engine in ("onnxruntime", "graphkit"))
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, float32, 224 x 224; {names}")
    head = [
        "row", "at a time", "parts, ms", "whole, ms", "ONNX Runtime, ms", "arena of a part", "of the whole",
        "whole over parts", "ONNX Runtime over parts",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for threads in options.threads:
            body = []
            for network in options.only:
                path = write(network, Path(folder))
                for batch in options.batches:
                    log(f"{network}, batch {batch}, {threads} threads")
                    found = [measure(path, batch, threads, options) for _ in range(options.restarts)]
                    body.append([f"{network}, {batch}", *row_cells(found)])
            print("\n".join(["", heading(threads), "", table(head, body)]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
