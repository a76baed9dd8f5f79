"""Compare reductions, softmax, normalisations, selections and attention with numpy and ONNX Runtime.

    python bench/reductions.py [--threads 1 4] [--repeat 30] [--only softmax]

Every operator runs alone, in float32, on the same arrays. Runs are interleaved, and the best time of each counts. The
table shows microseconds, ONNX Runtime's time over graphkit's, and the bytes that graphkit's kernel reads and writes per
second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.onnx_io.exporter import export
from graphkit.ops import F
from graphkit.ops.evaluate import run_node


@dataclass
class Workload:
    """One operator on arrays of the given shapes; `constants` are further operands known beforehand."""

    function: str
    shapes: Sequence[tuple[int, ...]]
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: Sequence[np.ndarray] = ()

    @property
    def name(self) -> str:
        constants = [str(c.tolist()) for c in self.constants]
        attributes = [f"{k}={v}" for k, v in self.attributes.items()]
        return f"{self.function} " + ", ".join([str(list(self.shapes[0])), *constants, *attributes])


def axes(*values: int) -> list[np.ndarray]:
    return [np.array(values, np.int64)]


WORKLOADS = [
    Workload("reduce_sum", [(4096, 1024)], constants=axes(1)),
    Workload("reduce_sum", [(4096, 1024)], constants=axes(0)),
    Workload("reduce_sum", [(4096, 1024)], constants=axes(0, 1)),
    Workload("reduce_mean", [(32, 256, 28, 28)], constants=axes(2, 3)),
    Workload("reduce_mean", [(32, 28, 28, 256)], constants=axes(1, 2)),
    Workload("reduce_sum", [(32, 256, 28, 28)], constants=axes(0, 2, 3)),
    Workload("reduce_max", [(128, 768)], constants=axes(1)),
    Workload("reduce_log_sum_exp", [(1024, 8192)], constants=axes(1)),
    Workload("reduce_l2", [(1 << 24,)], constants=axes(0)),
    Workload("global_average_pool", [(1, 2048, 7, 7)]),
    Workload("softmax", [(1536, 128)]),
    Workload("softmax", [(64, 1000)]),
    Workload("softmax", [(1024, 8192)]),
    Workload("softmax", [(8, 21, 128, 128)], {"axis": 1}),
    Workload("log_softmax", [(1024, 8192)]),
    Workload("layer_normalization", [(128, 768), (768,), (768,)]),
    Workload("layer_normalization", [(4096, 1024), (1024,), (1024,)]),
    Workload("instance_normalization", [(8, 64, 56, 56), (64,), (64,)]),
    Workload("group_normalization", [(8, 64, 56, 56), (64,), (64,)], {"num_groups": 32}),
    Workload("batch_normalization", [(16, 256, 14, 14), *[(256,)] * 4]),
    Workload("lrn", [(8, 96, 27, 27)], {"size": 5}),
    Workload("arg_max", [(1024, 8192)], {"axis": 1}),
    Workload("arg_max", [(8, 21, 128, 128)], {"axis": 1}),
    Workload("top_k", [(64, 10000)], constants=axes(5)),
    Workload("top_k", [(1, 1 << 20)], constants=axes(100)),
    Workload("top_k", [(64, 1000)], constants=axes(1000)),
]


def session(graph: Graph, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    model = export(graph, {}).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def best_times(calls: Sequence[Callable[[], object]], repeat: int) -> list[float]:
    """The best time of each call, in seconds. The calls take turns, several times each: the first runs give back caches
    and cores that another one's threads still hold.
    """
    best = [float("inf")] * len(calls)
    for _ in range(repeat):
        for number, call in enumerate(calls):
            call()
            call()
            for _ in range(3):
                start = time.perf_counter()
                call()
                best[number] = min(best[number], time.perf_counter() - start)
    return best


def measure(workload: Workload, threads: int, repeat: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.uniform(0.5, 1.5, shape).astype(np.float32) for shape in workload.shapes]
    values = [Value(TensorType(dtype_of(a.dtype), a.shape), f"x{i}") for i, a in enumerate(arrays)]
    result = getattr(F, workload.function)(*values, *workload.constants, **workload.attributes)
    node = (result[0] if isinstance(result, tuple) else result).node
    kernel = make_kernel("cpu", node, KernelContext(threads))
    assert kernel is not None
    outputs: list[np.ndarray | None] = [np.empty(v.tensor.static_shape, v.dtype.numpy) for v in node.outputs]
    wanted = node.outputs if workload.function == "top_k" else node.outputs[:1]
    outputs[len(wanted) :] = [None] * (len(outputs) - len(wanted))
    operands = [*arrays, *workload.constants]
    peer = session(Graph(values, wanted), threads)
    feeds = {f"x{i}": array for i, array in enumerate(arrays)}
    calls = [
        lambda: kernel(operands, outputs),
        lambda: peer.run(None, feeds),
        lambda: run_node(node, operands),
    ]
    own, other, numpy = best_times(calls, repeat)
    moved = sum(a.nbytes for a in (*arrays, *outputs) if a is not None)
    print(
        f"{workload.name:58s} {threads:2d} {own * 1e6:10.1f} {other * 1e6:10.1f} {numpy * 1e6:10.1f}"
        f" {other / own:8.2f} {moved / own / 1e9:8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, native.default_threads()])
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--only", default="", help="operators whose name contains this")
    options = parser.parse_args()
    header = f"{'operator':58s} threads {'graphkit':>5s} {'ORT':>10s} {'numpy':>10s} {'ORT/own':>8s} {'GB/s':>8s}"
    print(f"instruction set: {native.isa()}\n{header}")
    for workload in WORKLOADS:
        if options.only in workload.name:
            for threads in options.threads:
                measure(workload, threads, options.repeat)


if __name__ == "__main__":
    main()
