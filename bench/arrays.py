"""Forward and backward pass of gk.nd, operator by operator and hybridized, beside the symbolic program and PyTorch.

    python bench/arrays.py                      # lenet (batch 32) and resnet18 (batch 4), one thread
    python bench/arrays.py --rounds 5 --only lenet
    python bench/arrays.py --threads 2

Every engine computes the mean cross-entropy of one batch and its gradients with respect to all weights and biases, in
training mode. The arrays are float32. The engines run by turns in one process. The times are processor times of the
process, with all its threads. A ratio is the median over rounds of an engine's time over that of the symbolic program
in the same round. PyTorch is left out if it is not installed. The result is printed as Markdown.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networks
import numpy as np
import onnx

SHAPES = {"lenet": (32, 1, 28, 28), "resnet18": (4, 3, 224, 224)}
# Name and options in networks.py.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {"lenet": ("lenet", {}), "resnet18": ("resnet", {"layers": 18})}
ENGINES = ("symbolic program", "gk.nd, hybridized", "gk.nd, eager", "PyTorch, eager")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SHAPES), help="names of networks, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="shortest time of one engine in a round")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    os.environ["GRAPHKIT_NUM_THREADS"] = str(options.threads)
    print(f"| network | {' | '.join(f'{name}, ms' for name in ENGINES)} | {' | '.join(ENGINES[1:])} |")
    print(f"| --- |{' ---: |' * (2 * len(ENGINES) - 1)}")
    for name in options.only.split(","):
        calls = engines(name, options.threads)
        times = by_turns(calls, options.rounds, options.seconds)
        base = times[ENGINES[0]]
        cells = [f"{1e3 * np.median(times[e]):.2f}" if e in times else "" for e in ENGINES]
        ratios = [
            f"{np.median(times[e] / base):.3f} ({(times[e] / base).min():.2f} to {(times[e] / base).max():.2f})"
            if e in times else "" for e in ENGINES[1:]
        ]  # fmt: skip
        print(f"| {name}, {'x'.join(map(str, SHAPES[name]))} | {' | '.join(cells + ratios)} |")
    cost_of_add()
    print(f"\nThreads: {options.threads}. {versions()}.")


def by_turns(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, np.ndarray]:
    """Return the processor time of each call in each round."""
    counts = {}
    for name, call in calls.items():
        call()
        call()
        start = time.process_time()
        call()
        counts[name] = max(1, round(seconds / max(time.process_time() - start, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        order = list(calls) if turn % 2 == 0 else list(reversed(calls))
        for name in order:
            start = time.process_time()
            for _ in range(counts[name]):
                calls[name]()
            times[name].append((time.process_time() - start) / counts[name])
    return {name: np.array(found) for name, found in times.items()}


def engines(name: str, threads: int) -> dict[str, Callable[[], Any]]:
    """Return by engine a function that computes loss and gradients of one batch, and returns the loss."""
    import graphkit as gk
    from graphkit.executor.run.params import ParamStore
    from graphkit.executor.run.session import Executor
    from graphkit.ir.graph import Graph
    from graphkit.ops import apply
    from graphkit.passes.training.to_training import to_training

    kind, settings = NETWORKS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        onnx.save(networks.NETWORKS[kind](SHAPES[name][0], **settings)[0], path)
        net = gk.load(path)
        module = None
        if importlib.util.find_spec("torch") is not None:
            from torch_models import load

            module = load(kind, settings, str(path)).train()
    graph = to_training(net.graph)
    names = [graph.name_of(v) for v in graph.inputs]
    x, *_ = [v for v in graph.inputs if v.role == "data"]
    target = gk.input("target", [SHAPES[name][0]], "int64")
    loss = gk.softmax_cross_entropy_loss(graph.outputs[0], target)[0]
    trained = [v for v in graph.inputs if v.role == "parameter"]
    whole = Graph([*graph.inputs, target], [loss])
    arrays = {n: np.asarray(net.params[n]) for n, v in zip(names, graph.inputs, strict=True) if v is not x}
    rng = np.random.default_rng(0)
    images = rng.standard_normal(SHAPES[name]).astype(np.float32)
    labels = rng.integers(0, 10, SHAPES[name][0])

    def network(*operands: Any) -> Any:
        """Apply the operators of the graph to arrays or to values of a graph."""
        table = dict(zip(whole.inputs, operands, strict=True))
        for node in whole.nodes:
            if node.op.name == "Constant":
                table[node.output] = node.output if not isinstance(operands[0], gk.nd.NDArray) else constants[node]
                continue
            results = apply(node.op, *[None if v is None else table[v] for v in node.inputs])
            table.update(zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True))
        return table[loss]

    constants = {n: n.op.value.array for n in whole.nodes if n.op.name == "Constant"}  # type: ignore[attr-defined]
    held = [gk.nd.array(images if v is x else arrays[n]) for n, v in zip(names, graph.inputs, strict=True)]
    held.append(gk.nd.array(labels))
    variables = [a for a, v in zip(held, graph.inputs, strict=False) if v in set(trained)]
    for variable in variables:
        variable.attach_grad()
    hybrid = gk.nd.hybridize(network)

    def step(function: Callable[..., Any]) -> float:
        with gk.nd.record():
            found = function(*held)
        found.backward()
        gk.nd.waitall()
        return float(found)

    inputs = {v: v.like(role="data", name=f"i{i}") for i, v in enumerate(whole.inputs)}
    from graphkit.ir.subgraph import inline

    (result,) = inline(whole, list(inputs.values()))
    gradients = gk.gradient([result], [inputs[v] for v in trained])
    symbolic = Executor(Graph(list(inputs.values()), [result, *gradients]), ParamStore({}), threads=threads)
    feeds = {f"i{i}": a.asnumpy() for i, a in enumerate(held)}
    calls: dict[str, Callable[[], Any]] = {
        ENGINES[0]: lambda: float(next(iter(symbolic.run(feeds).values()))),
        ENGINES[1]: lambda: step(hybrid),
        ENGINES[2]: lambda: step(network),
    }
    expected = calls[ENGINES[0]]()
    for engine in ENGINES[1:3]:
        np.testing.assert_allclose(calls[engine](), expected, rtol=1e-4)
    if module is not None:
        calls[ENGINES[3]] = torch_step(module, images, labels, threads, expected)
    return calls


def torch_step(module: Any, images: np.ndarray, labels: np.ndarray, threads: int, expected: float) -> Callable[[], Any]:
    """Return the step of a PyTorch module."""
    import torch

    torch.set_num_threads(threads)
    x, t = torch.from_numpy(images), torch.from_numpy(labels)

    def step() -> float:
        module.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), t)
        loss.backward()
        return float(loss.detach())

    np.testing.assert_allclose(step(), expected, rtol=1e-3)
    return step


def cost_of_add() -> None:
    """Print the processor time of the calling thread for an addition of two small arrays."""
    import graphkit as gk

    a, b = gk.nd.ones((2, 2)), gk.nd.ones((2, 2))
    found = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(20_000):
            _ = a + b
        found.append((time.thread_time() - start) / 20_000)
        gk.nd.waitall()
    print(f"\n`a + b` of float32[2, 2]: {1e6 * min(found):.1f} microseconds of the calling thread.")


def versions() -> str:
    import graphkit

    torch = importlib.util.find_spec("torch")
    text = f"Python {platform.python_version()}, numpy {np.__version__}, graphkit {graphkit.__version__}"
    if torch is not None:
        import torch

        text += f", PyTorch {torch.__version__}"
    return text


if __name__ == "__main__":
    main()
