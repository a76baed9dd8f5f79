"""How the time of graph operations grows with the number of nodes: a chain of 10,000 and of 100,000.

    python bench/scaling.py [--small 10000] [--large 100000] [--repeat 5]

Prints, per operation, the best time of each length and their ratio. Linear would be 10; the target is at most 12.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from graphkit.autodiff import gradient
from graphkit.ir import serialize
from graphkit.ir.graph import Graph, Value
from graphkit.ir.printing import to_dot, to_text
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.passes.core.bind import bind
from graphkit.passes.simplify.cse import cse
from graphkit.passes.simplify.fold import fold

TARGET = 12.0


def chain(length: int) -> Graph:
    """x -> tanh -> neg -> tanh -> ..., `length` nodes."""
    x = Value(TensorType("float32", ("N", 4)), "x")
    y = x
    for number in range(length):
        y = F.neg(y) if number % 2 else F.tanh(y)
    return Graph([x], [y], name="chain")


def operations(length: int, folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and call of each operation on a chain of `length` nodes."""
    yield "build", lambda: chain(length)
    graph = chain(length)
    yield "print", lambda: to_text(graph.replace())
    yield "dot", lambda: to_dot(graph.replace())
    path = folder / f"chain{length}.json"
    yield "save", lambda: serialize.save(path, graph.replace(), {})
    serialize.save(path, graph, {})
    yield "load", lambda: serialize.load(path, registry.get)
    yield "differentiate", lambda: Graph(graph.inputs, gradient(graph.outputs, graph.inputs))
    yield "bind", lambda: bind(graph, {"x": (3, 4)})
    yield "fold and cse", lambda: cse(fold(graph))


def best(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        gc.collect()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(length: int, repeat: int) -> dict[str, float]:
    """Seconds by operation."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: best(call, repeat) for name, call in operations(length, Path(folder))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    small, large = measure(options.small, options.repeat), measure(options.large, options.repeat)
    print(f"{'operation':16}{options.small:>12,}{options.large:>12,}{'ratio':>8}")
    for name, seconds in small.items():
        ratio = large[name] / seconds
        verdict = "" if ratio <= TARGET * options.large / options.small / 10 else "  above target"
        print(f"{name:16}{seconds:>10.3f} s{large[name]:>10.3f} s{ratio:>8.1f}{verdict}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
