"""Compare GPU kernels with the rate of a memory copy, and matrix products with those of CuPy.

    python bench/card.py [--elements 64M] [--product 8192] [--seconds 0.5] [--record FILE.json]

Each kernel runs on arrays with `--elements` float32 elements in total. Its rate is the smallest number of bytes that it
must read and write, divided by the median time of a launch. It is printed as a share of the rate of a copy in GPU
memory, from the same run. Matrix products are of two square matrices. They are compared with CuPy's products in float32
or float16, by turns: tensor cores multiply bfloat16 at the rate of float16, and tf32 at half of it. Needs a GPU, see
bench/cuda.sh. The first line shows the GPU and the versions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tables import table

import graphkit as gk
from graphkit.errors import GraphkitError
from graphkit.executor.devices import cuda
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.internal.fused import Fused

_TURNS = 9


def nodes(elements: int) -> dict[str, Node]:
    """Return the measured nodes by title. Operands and results of each have about `elements` elements together."""
    rows, wide, images = max(elements // 2048, 1), max(elements // 32768, 1), max(elements // 16384, 1)

    def x(*shape: int) -> Value:
        return Value(TensorType("float32", shape), "x")

    a, b = x(rows, 1024), x(rows, 1024)
    shifted = F.sigmoid(F.gelu(a * b + 1.0, approximate="tanh")) * b - a
    chain = Node(Fused(body=Graph([a, b], [shifted])), [Value(v.type) for v in (a, b)])
    image, border = x(images, 8, 32, 32), (1, 1, 1, 1)
    made: dict[str, Any] = {
        "chain of 7 operators": chain.output,
        "add a row": F.add(x(rows, 1024), x(1024)),
        "sum of rows of 1024": F.reduce_sum(x(2 * rows, 1024), np.array([1])),
        "sum of rows of 100": F.reduce_sum(x(20 * rows, 100), np.array([1])),
        "sum of columns": F.reduce_sum(x(2 * rows, 1024), np.array([0])),
        "sum of all": F.reduce_sum(x(2 * rows, 1024)),
        "softmax of rows of 1024": F.softmax(x(rows, 1024)),
        "softmax of rows of 16384": F.softmax(x(wide, 16384)),
        "layer normalisation of 1024": F.layer_normalization(x(rows, 1024), x(1024), x(1024))[0],
        "transpose": F.transpose(x(rows, 1024)),
        "transpose of heads": F.transpose(x(max(rows // 64, 1), 64, 16, 64), perm=(0, 2, 1, 3)),
        "rows by index": F.gather(x(rows, 1024), Value(TensorType("int64", (rows,)), "i")),
        "maxima of windows of 3 x 3": F.max_pool(image, kernel_shape=(3, 3), strides=(2, 2), pads=border)[0],
        "means of windows of 2 x 2": F.average_pool(image, kernel_shape=(2, 2), strides=(2, 2)),
        "a filter of 3 x 3 for each channel": F.conv(image, x(8, 1, 3, 3), group=8, pads=border),
        "images padded": F.pad(image, np.array([0, 0, 1, 1, 0, 0, 1, 1])),
    }
    return {title: value.node for title, value in made.items()}


def work(card: Any, node: Node, rng: np.random.Generator) -> tuple[Callable[[], None], int]:
    """Return a function that launches a node's kernel once, and the bytes that the kernel must read and write."""
    kernel = make_launched("cuda", node, KernelContext(used_outputs=(True,) + (False,) * (len(node.outputs) - 1)))
    assert kernel is not None, f"{node.op.name} has no kernel"
    launched = card.prepare(node, kernel, card.xp.zeros((1,), np.uint32) if kernel.fault else None)
    arrays: list[np.ndarray] = []
    for value in node.operands:
        shape = value.tensor.static_shape
        if value.tensor.constants is not None:  # axes
            arrays.append(np.array(value.tensor.constants, np.int64))
        else:
            is_index = value.dtype is DType.INT64
            arrays.append(rng.permutation(shape[0]) if is_index else rng.random(shape, np.float32))
    inputs = [card.copy_in(a) for a in arrays]
    result = node.outputs[0].tensor
    outputs = [card.view(card.alloc(result.nbytes), 0, result.static_shape, result.dtype.numpy)]
    outputs += [None] * (len(node.outputs) - 1)
    scratch = card.alloc(kernel.scratch_bytes)
    return lambda: launched(inputs, outputs, scratch), sum(a.nbytes for a in arrays) + result.nbytes


# By title: the type of the operands, whether tf32 may round them, the type for CuPy, and the share of CuPy's rate that
# tensor cores reach with the type of the operands.
PRODUCTS: dict[str, tuple[DType, bool, type, float]] = {
    "float32": (DType.FLOAT32, False, np.float32, 1.0),
    "tf32": (DType.FLOAT32, True, np.float16, 0.5),
    "float16": (DType.FLOAT16, False, np.float16, 1.0),
    "bfloat16": (DType.BFLOAT16, False, np.float16, 1.0),
}


def product(card: Any, size: int, kind: DType, tf32: bool, rng: np.random.Generator) -> Callable[[], None]:
    """Return a function that multiplies two matrices of size x size once, as a network does."""
    a, b = (Value(TensorType(kind, (size, size)), name) for name in "ab")
    node = F.mat_mul(a, b).node
    kernel = make_launched("cuda", node, KernelContext(tf32=tf32))
    assert kernel is not None, f"products of {kind} have no kernel"
    launched, stored = card.prepare(node, kernel, None), card.stored(kind)
    arrays = [rng.random((size, size), np.float32).astype(kind.numpy) for _ in range(2)]
    inputs = [card.copy_in(array.view(stored)) for array in arrays]
    outputs = [card.view(card.alloc(arrays[0].nbytes), 0, (size, size), stored)]
    scratch = card.alloc(kernel.scratch_bytes)
    return lambda: launched(inputs, outputs, scratch)


def library_product(card: Any, size: int, kind: type, rng: np.random.Generator) -> Callable[[], None]:
    """Return a function that computes CuPy's product of the same size."""
    a, b, y = (card.copy_in(rng.random((size, size), np.float32).astype(kind)) for _ in range(3))
    return lambda: card.xp.matmul(a, b, out=y)


def copies(card: Any, elements: int) -> tuple[Callable[[], None], int]:
    """Return a function that copies within GPU memory once, reading and writing `elements` elements, and its bytes."""
    memory = [card.view(card.alloc(2 * elements), 0, (elements // 2,), np.dtype(np.float32)) for _ in range(2)]
    return lambda: card.xp.copyto(memory[1], memory[0]), 4 * elements


def seconds_of(card: Any, stream: Any, call: Callable[[], None], seconds: float) -> float:
    """Return the seconds of one call, measured over as many consecutive calls as take about `seconds`."""
    times = 1
    while True:
        card.synchronize(stream)
        begin = time.perf_counter()
        for _ in range(times):
            call()
        card.synchronize(stream)
        taken = time.perf_counter() - begin
        if taken >= seconds / _TURNS / 2 or times >= 1 << 20:
            return taken / times
        times *= 2


def measure(card: Any, elements: int, seconds: float) -> list[dict[str, Any]]:
    """Measure each kernel: bytes, seconds, and its rate as a share of the copy's; medians of several turns."""
    found, rng = [], np.random.default_rng(0)
    stream = card.stream()
    with card.on(stream):
        copy, copied = copies(card, elements)
        for title, node in nodes(elements).items():
            call, size = work(card, node, rng)
            call()
            copy()
            turns = [
                (seconds_of(card, stream, call, seconds), seconds_of(card, stream, copy, seconds))
                for _ in range(_TURNS)
            ]
            shares = [size / own / (copied / other) for own, other in turns]
            own = statistics.median(t for t, _ in turns)
            found.append({"kernel": title, "bytes": size, "seconds": own, "share": statistics.median(shares),
                          "least": min(shares), "most": max(shares)})  # fmt: skip
    return found


def measure_products(card: Any, size: int, seconds: float) -> list[dict[str, Any]]:
    """Measure each kind of product: operations, seconds, and its rate as a share of what CuPy's rate implies."""
    found, rng = [], np.random.default_rng(0)
    stream = card.stream()
    with card.on(stream):
        for title, (kind, tf32, other, part) in PRODUCTS.items():
            call, peer = product(card, size, kind, tf32, rng), library_product(card, size, other, rng)
            call()
            peer()
            turns = [tuple(seconds_of(card, stream, one, seconds) for one in (call, peer)) for _ in range(_TURNS)]
            shares = [its / own / part for own, its in turns]
            found.append(
                {
                    "kernel": f"product in {title}",
                    "flops": 2 * size**3,
                    "seconds": statistics.median(own for own, _ in turns),
                    "share": statistics.median(shares),
                    "least": min(shares),
                    "most": max(shares),
                }
            )
    return found


def report(found: list[dict[str, Any]], products: list[dict[str, Any]], about: str) -> str:
    def row(of: dict[str, Any], rate: float) -> tuple[str, ...]:
        share = f"{of['share']:.2f} ({of['least']:.2f} to {of['most']:.2f})"
        return of["kernel"], f"{of['seconds'] * 1e6:.1f}", f"{rate:.0f}", share

    moved = [row(of, of["bytes"] / of["seconds"] / 1e9) for of in found]
    multiplied = [row(of, of["flops"] / of["seconds"] / 1e12) for of in products]
    copied = table(("kernel", "us", "GB/s", "of a copy's rate"), moved)
    return f"{about}\n\n{copied}\n" + table(("product", "us", "TFLOP/s", "of CuPy's rate"), multiplied)


def about(card: Any) -> str:
    """Return the names of GPU and driver, and the versions."""
    facts = card.facts()
    named = ", ".join(f"{key} {value}" for key, value in facts.items())
    return f"{named}; graphkit {gk.__version__}, numpy {np.__version__}"


def on_card(run: Callable[[Any], int]) -> int:
    """Return the result of `run` for the GPU. If there is no GPU, print the error and return its exit code."""
    try:
        card = cuda.device()
    except GraphkitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return run(card)


def _count(text: str) -> int:
    number = text.upper().removesuffix("M")
    return int(number) << 20 if number != text.upper() else int(number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=_count, default=64 << 20)
    parser.add_argument("--product", type=int, default=8192, help="rows and columns of the matrices")
    parser.add_argument("--seconds", type=float, default=0.5, help="for a kernel, in all")
    parser.add_argument("--record", type=Path, help="where the figures are written as JSON")
    given = parser.parse_args()
    return on_card(lambda card: _measured(card, given))


def _measured(card: Any, given: argparse.Namespace) -> int:
    found = measure(card, given.elements, given.seconds)
    products = measure_products(card, given.product, given.seconds)
    print(report(found, products, about(card)))
    if given.record is not None:
        facts = {"about": about(card), "rows": found, "products": products}
        given.record.write_text(json.dumps(facts, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
