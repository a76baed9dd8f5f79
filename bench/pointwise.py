"""The pointwise machine against the memory's limit and against the same chain fused by hand.

    python bench/pointwise.py [--size 4000000] [--threads 4,1] [--rounds 60] [--json FILE]

The chain is x * y + 1, GELU (tanh formula), sigmoid, * y, - x in float32. The ceiling is the time of a loop that reads
two arrays and writes one, with stores past the caches. All are interleaved in one process; medians of paired ratios are
more telling than times on a busy machine. Needs g++.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.pointwise.instructions import Instructions, Term
from graphkit.executor.devices.pointwise.rules import RULES
from graphkit.ir.types import DType, TensorType
from graphkit.ops import registry

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "graphkit" / "executor" / "native"


def aligned(size: int) -> np.ndarray:
    raw = np.empty(size * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size * 4].view(np.float32)


def chain_kernel(size: int, threads: int) -> Any:
    """The chain as the engine makes it, from the rules of its operators."""
    tensor = TensorType(DType.FLOAT32, (size,))
    code = Instructions([tensor, tensor])
    x, y = code.input(0), code.input(1)

    def apply(name: str, *terms: Term, **attributes: Any) -> Term:
        term = RULES[name](code, registry.get("", name)(**attributes), *terms)
        assert term is not None
        return term

    shifted = apply("Add", apply("Mul", x, y), code.constant(1, DType.FLOAT32))
    gated = apply("Sigmoid", apply("Gelu", shifted, approximate="tanh"))
    program = code.code("chain", [apply("Sub", apply("Mul", gated, y), x)]).at([(size,)] * 2, (size,))
    return native.Pointwise(**program._asdict(), threads=threads)


def by_hand() -> Any:
    """The comparison library, compiled for this machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.so"
        flags = ["-std=c++20", "-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp", "-shared", "-fPIC"]
        subprocess.run(
            ["g++", *flags, f"-I{NATIVE}", str(HERE / "native" / "pointwise_chain.cpp"), "-o", str(path)], check=True
        )
        return ctypes.CDLL(str(path))


def measure(size: int, threads: int, rounds: int, library: Any) -> dict[str, float]:
    rng = np.random.default_rng(0)
    x, y, z = aligned(size), aligned(size), aligned(size)
    x[:], y[:] = rng.standard_normal((2, size))
    kernel = chain_kernel(size, threads)
    places = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, z)]

    def foreign(name: str, streamed: bool) -> Callable[[], None]:
        function = getattr(library, name)
        return lambda: function(*places, ctypes.c_int64(size), threads, ctypes.c_bool(streamed))

    runs: dict[str, Callable[[], None]] = {
        "machine": lambda: kernel([x, y], [z]),
        "fused by hand": foreign("chain_fused", True),
        "fused by hand, plain stores": foreign("chain_fused", False),
        "ceiling": foreign("two_reads_one_write", True),
        "ceiling, plain stores": foreign("two_reads_one_write", False),
    }
    repeats = max(1, 400_000 // size)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_number in range(rounds + 3):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            if round_number >= 3:
                times[name].append((time.perf_counter() - start) / repeats)
    fastest_by_hand = [
        min(a, b) for a, b in zip(times["fused by hand"], times["fused by hand, plain stores"], strict=True)
    ]
    result = {f"{name}, us (best)": min(values) * 1e6 for name, values in times.items()}
    result["% of the ceiling (best)"] = 100 * min(times["ceiling"]) / min(times["machine"])
    result["against fused by hand (best)"] = min(times["machine"]) / min(fastest_by_hand)
    pairs = zip(times["machine"], fastest_by_hand, strict=True)
    result["against fused by hand (median of pairs)"] = statistics.median(m / f for m, f in pairs)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs="+", default=[4_000_000])
    parser.add_argument("--threads", type=lambda text: [int(t) for t in text.split(",")], default=[4, 1])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    library = by_hand()
    report = []
    for size in options.size:
        for threads in options.threads:
            figures = measure(size // 16 * 16, threads, options.rounds, library)
            report.append({"size": size, "threads": threads, "instruction set": native.isa(), **figures})
            print(f"{size} floats, {threads} threads, {native.isa()}")
            for name, value in figures.items():
                print(f"  {name:42s} {value:10.2f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
