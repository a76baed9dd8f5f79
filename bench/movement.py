"""How close kernels that move data come to the speed of memory: graphkit against numpy and a copy of as many bytes.

    python bench/movement.py [--threads N] [--seconds 0.2] [NAME ...]

For each case the best time of graphkit, of numpy, and of copying as many bytes as the output has with graphkit's
threads; then the copy's time over graphkit's, and numpy's over graphkit's. Runs interleave. NAME: parts of the names of
cases.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F
from graphkit.ops.evaluate import run_node

Case = tuple[str, Callable[..., Any], list[np.ndarray]]


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return memory that is aligned like a program's arena."""
    dtype = np.dtype(dtype)
    return aligned_bytes(int(np.prod(shape)) * dtype.itemsize).view(dtype)[: int(np.prod(shape))].reshape(shape)


def floats(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    x = aligned(shape, dtype)
    x[...] = np.random.default_rng(0).integers(0, 100, shape)
    return x


def transpositions() -> Iterator[Case]:
    for name, shape, perm in (
        ("[4096, 4096]", (4096, 4096), (1, 0)),
        ("[1000, 1000]", (1000, 1000), (1, 0)),
        ("[3000, 2000]", (3000, 2000), (1, 0)),
        ("[32, 32]", (32, 32), (1, 0)),
        ("NHWC to NCHW", (8, 56, 56, 256), (0, 3, 1, 2)),
        ("NCHW to NHWC", (8, 256, 56, 56), (0, 2, 3, 1)),
        ("pictures to NCHW", (16, 224, 224, 3), (0, 3, 1, 2)),
        ("pictures to NHWC", (16, 3, 224, 224), (0, 2, 3, 1)),
        ("BLHD to BHLD", (16, 512, 12, 64), (0, 2, 1, 3)),
        ("BHLD to BLHD", (16, 12, 512, 64), (0, 2, 1, 3)),
        ("reversed, rank 4", (64, 100, 10, 20), (3, 2, 1, 0)),
    ):
        yield f"Transpose {name}", lambda x, perm=perm: F.transpose(x, perm=perm), [floats(*shape)]
    for dtype in (np.uint8, np.float16, np.float64):
        x = floats(2000, 2048, dtype=dtype)
        yield f"Transpose {np.dtype(dtype).name}[2000, 2048]", lambda x: F.transpose(x), [x]


def pieces() -> Iterator[Case]:
    parts = [floats(64, 64, 28, 28) for _ in range(4)]
    yield "Concat of 4, channels", lambda *xs: F.concat(*xs, axis=1), parts
    columns = [floats(100_000, n) for n in (8, 24)]
    yield "Concat of 2, last axis", lambda *xs: F.concat(*xs, axis=1), columns
    yield "Split into 3, last axis", lambda x: F.split(x, num_outputs=3, axis=2), [floats(8, 512, 2304)]
    x = floats(64, 128, 32, 32)
    yield "Slice, cropped", lambda x: F.slice(x, np.array([1, 1]), np.array([31, 31]), np.array([2, 3])), [x]
    yield "Slice, steps of 2", lambda x: F.slice(x, np.array([0]), np.array([32]), np.array([3]), np.array([2])), [x]
    yield "Pad, zeros", lambda x: F.pad(x, np.array([0, 0, 1, 1, 0, 0, 1, 1])), [x]
    yield "Pad, reflected", lambda x: F.pad(x, np.array([0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect"), [x]
    yield "Expand, rows", lambda x: F.expand(x, np.array([4096, 1024])), [floats(1024)]
    yield "Expand, columns", lambda x: F.expand(x, np.array([4096, 1024])), [floats(4096, 1)]
    yield "Tile", lambda x: F.tile(x, np.array([8, 4])), [floats(256, 512)]
    yield "DepthToSpace", lambda x: F.depth_to_space(x, blocksize=2), [floats(4, 256, 64, 64)]


def indexed() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 30_000, (32, 512))
    table = floats(30_000, 256)
    yield "Gather, embedding", lambda x, i: F.gather(x, i), [table, words]
    yield "Gather, last axis", lambda x, i: F.gather(x, i, axis=1), [floats(2000, 1000), rng.integers(0, 1000, 500)]
    dy = floats(32, 512, 256)
    yield "GatherGrad, embedding", lambda dy, x, i: F.gather_grad(dy, x, i), [dy, table, words]
    x, rows = floats(4000, 1000), rng.integers(0, 4000, (4000, 1000))
    yield "GatherElements", lambda x, i: F.gather_elements(x, i), [x, rows]
    yield "ScatterElements, add", lambda x, i, u: F.scatter_elements(x, i, u, reduction="add"), [x, rows, x.copy()]
    places = rng.permutation(4000)[:, None]
    yield "ScatterND", lambda x, i, u: F.scatter_nd(x, i, u), [x, places, x.copy()]
    yield "CumSum, last axis", lambda x: F.cum_sum(x, np.int64(1)), [x]
    yield "CumSum, first axis", lambda x: F.cum_sum(x, np.int64(0)), [x]
    values = np.array([0, 1], np.float32)
    yield "OneHot", lambda i, v: F.one_hot(i, np.int64(1000), v), [rng.integers(0, 1000, 4096), values]
    yield "Trilu", lambda x: F.trilu(x), [floats(12, 512, 512)]


def resized() -> Iterator[Case]:
    x, sizes = floats(8, 64, 56, 56), np.array([8, 64, 112, 112])
    for mode in ("nearest", "linear", "cubic"):
        yield f"Resize {mode}, twice", lambda x, mode=mode: F.resize(x, None, None, sizes, mode=mode), [x]
    half = np.array([8, 64, 28, 28])
    yield "Resize linear, half", lambda x: F.resize(x, None, None, half, mode="linear"), [x]


def drawn() -> Iterator[Case]:
    state = np.array([1, 2], np.uint64)
    yield "RandomUniform", lambda r: F.random_uniform(r, shape=(1 << 20,)), [state]
    yield "RandomNormal", lambda r: F.random_normal(r, shape=(1 << 20,)), [state]
    ratio, training = np.array(0.5, np.float32), np.array(True)
    yield "Dropout", lambda x, a, b, r: F.dropout(x, a, b, r), [floats(1 << 20), ratio, training, state]


def best_times(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """The best time of each call; they take turns until `seconds` have passed for each."""
    best = [float("inf")] * len(calls)
    started = time.perf_counter()
    rounds = 0
    while rounds < 3 or time.perf_counter() - started < seconds * len(calls):
        for i, call in enumerate(calls):
            before = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - before)
        rounds += 1
    return best


def measure(case: Case, threads: int, seconds: float) -> tuple[float, float, float, float]:
    """Return the seconds of graphkit, numpy and the copy, and the copy's time over graphkit's."""
    _, make, arrays = case
    given = {Value(TensorType(dtype_of(a.dtype), a.shape)): a for a in arrays}
    made = make(*given)
    node: Any = (made[0] if isinstance(made, tuple) else made).node
    given.update((v, v.node.op.value.array) for v in node.inputs if v is not None and v not in given)
    operands = [None if v is None else given[v] for v in node.inputs]
    kernel: Any = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    outputs = [aligned(v.tensor.static_shape, v.dtype.numpy) for v in node.outputs]
    size = sum(y.nbytes for y in outputs)
    source, target = aligned((size,), np.uint8), aligned((size,), np.uint8)
    source[...] = 1  # memory that was never written is one page of zeros
    copy = native.StridedView("Copy", [size], [size], [size], [1], 0, "uint8", threads)
    ours, theirs, ceiling = best_times(
        [
            lambda: kernel(operands, outputs),
            lambda: run_node(node, operands),
            lambda: copy([source], [target]),
        ],
        seconds,
    )
    return ours, theirs, ceiling, ceiling / ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    print(f"{'':32} {'graphkit':>10} {'numpy':>10} {'copy':>10}  of copy  over numpy   ({options.threads} threads)")
    for family in (transpositions, pieces, indexed, resized, drawn):
        for case in family():
            if options.names and not any(name.lower() in case[0].lower() for name in options.names):
                continue
            ours, theirs, ceiling, part = measure(case, options.threads, options.seconds)
            times = " ".join(f"{seconds * 1e6:8.1f}us" for seconds in (ours, theirs, ceiling))
            print(f"{case[0]:32} {times} {part:7.0%} {theirs / ours:8.1f} x")


if __name__ == "__main__":
    main()
