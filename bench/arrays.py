"""Compare forward and backward passes of gk.nd, plain and hybridized, with the symbolic program and PyTorch.

    python bench/arrays.py                      # lenet (batch 32) and resnet18 (batch 4), one thread
    python bench/arrays.py --rounds 5 --only lenet
    python bench/arrays.py --threads 2
    python bench/arrays.py --loop               # with a KVStore, in the loop of the MXNet paper

Every engine computes the mean cross-entropy of one batch and its gradients with respect to all weights and biases, in
training mode. The arrays are float32. The engines run by turns in one process. The times are processor times of the
process, with all its threads. A ratio is the median over rounds of an engine's time over that of the symbolic program
in the same round. PyTorch is left out if it is not installed. The result is printed as Markdown.

With `--loop`, a step also pulls all weights from a local KVStore, and pushes all gradients to it. An updater changes
the stored weights. The symbolic program uses numpy arrays, and the hybridized network uses arrays of gk.nd. If numpy
arrays are pushed, the store gives the updater a copy of each gradient; arrays of gk.nd are not copied. The last engine
does the same computations with numpy arrays in lists: it has no store, and copies no gradients.
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
from typing import Any, NamedTuple

import networks
import numpy as np
import onnx

SHAPES = {"lenet": (32, 1, 28, 28), "resnet18": (4, 3, 224, 224)}
# Name and options in networks.py.
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {"lenet": ("lenet", {}), "resnet18": ("resnet", {"layers": 18})}
ENGINES = ("symbolic program", "gk.nd, hybridized", "gk.nd, eager", "PyTorch, eager")
LOOPS = (*ENGINES[:2], "symbolic program, no store")
# Learning rate of the loop with a KVStore: so small that the loss stays the same in all steps.
RATE = 1e-6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SHAPES), help="names of networks, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="shortest time of one engine in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--loop", action="store_true", help="with a KVStore: pull, forward and backward pass, push")
    options = parser.parse_args()
    os.environ["GRAPHKIT_NUM_THREADS"] = str(options.threads)
    names = LOOPS if options.loop else ENGINES
    print(f"| network | {' | '.join(f'{name}, ms' for name in names)} | {' | '.join(names[1:])} |")
    print(f"| --- |{' ---: |' * (2 * len(names) - 1)}")
    for name in options.only.split(","):
        calls = loops(load_task(name), options.threads) if options.loop else engines(name, options.threads)
        times = by_turns(calls, options.rounds, options.seconds)
        base = times[ENGINES[0]]
        cells = [f"{1e3 * np.median(times[e]):.2f}" if e in times else "" for e in names]
        ratios = [
            f"{np.median(times[e] / base):.3f} ({(times[e] / base).min():.2f} to {(times[e] / base).max():.2f})"
            if e in times else "" for e in names[1:]
        ]  # fmt: skip
        print(f"| {name}, {'x'.join(map(str, SHAPES[name]))} | {' | '.join(cells + ratios)} |")
    if not options.loop:
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


class Task(NamedTuple):
    """A network in training mode with its loss, one batch, and the PyTorch module, if PyTorch is installed.

    inputs: Arrays of the graph's inputs, in order. trained: The inputs to differentiate with respect to.
    """

    graph: Any
    inputs: list[np.ndarray]
    trained: list[Any]
    module: Any


def load_task(name: str) -> Task:
    """Build a network of networks.py, with the cross-entropy of its scores."""
    import graphkit as gk
    from graphkit.ir.graph import Graph
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
    target = gk.input("target", [SHAPES[name][0]], "int64")
    loss = gk.softmax_cross_entropy_loss(graph.outputs[0], target)[0]
    rng = np.random.default_rng(0)
    batch = rng.standard_normal(SHAPES[name]).astype(np.float32), rng.integers(0, 10, SHAPES[name][0])
    inputs = [batch[0] if v.role == "data" else np.asarray(net.params[graph.name_of(v)]) for v in graph.inputs]
    trained = [v for v in graph.inputs if v.role == "parameter"]
    return Task(Graph([*graph.inputs, target], [loss]), [*inputs, batch[1]], trained, module)


def engines(name: str, threads: int) -> dict[str, Callable[[], Any]]:
    """Return by engine a function that computes loss and gradients of one batch, and returns the loss."""
    task = load_task(name)
    calls = {ENGINES[0]: symbolic_step(task, threads), **array_steps(task)}
    expected = calls[ENGINES[0]]()
    if task.module is not None:
        images = next(a for a, v in zip(task.inputs, task.graph.inputs, strict=True) if v.role == "data")
        calls[ENGINES[3]] = torch_step(task.module, images, task.inputs[-1], threads)
    for engine, call in calls.items():
        np.testing.assert_allclose(call(), expected, rtol=1e-3, err_msg=engine)
    return calls


def loops(task: Task, threads: int) -> dict[str, Callable[[], Any]]:
    """Return by engine a step of the loop with a KVStore. A step returns the loss."""
    calls = {
        LOOPS[0]: symbolic_loop(task, threads), LOOPS[1]: array_loop(task), LOOPS[2]: loop_without_store(task, threads)
    }  # fmt: skip
    losses = {name: call() for name, call in calls.items()}  # each call is a step: all engines take equally many
    for name, loss in losses.items():
        np.testing.assert_allclose(loss, losses[LOOPS[0]], rtol=1e-3, err_msg=name)
    return calls


def symbolic_loop(task: Task, threads: int) -> Callable[[], Any]:
    """Return a step with the run of one graph, and numpy arrays in the store."""
    executor, feeds = symbolic_program(task, threads)
    names = [f"i{task.graph.inputs.index(v)}" for v in task.trained]
    for name in names:
        feeds[name] = feeds[name].copy()
    weights = [feeds[name] for name in names]
    store = store_of(names, weights)

    def step() -> float:
        store.pull(names, weights)
        loss, *gradients = executor.run(feeds).values()
        store.push(names, gradients)
        return float(loss)

    return step


def loop_without_store(task: Task, threads: int) -> Callable[[], Any]:
    """Return a step with the run of one graph, whose weights are copied from other numpy arrays, and updated there."""
    executor, feeds = symbolic_program(task, threads)
    names = [f"i{task.graph.inputs.index(v)}" for v in task.trained]
    stored = [feeds[name].copy() for name in names]
    for name in names:
        feeds[name] = feeds[name].copy()
    weights = [feeds[name] for name in names]

    def step() -> float:
        for weight, value in zip(weights, stored, strict=True):
            np.copyto(weight, value)
        loss, *gradients = executor.run(feeds).values()
        for value, gradient in zip(stored, gradients, strict=True):
            value -= RATE * gradient
        return float(loss)

    return step


def array_loop(task: Task) -> Callable[[], Any]:
    """Return a step with a hybridized function, and arrays of gk.nd in the store."""
    import graphkit as gk

    held, network = array_network(task)
    hybrid = gk.nd.hybridize(network)
    names = [f"i{task.graph.inputs.index(v)}" for v in task.trained]
    weights = [held[task.graph.inputs.index(v)] for v in task.trained]
    store = store_of(names, weights)

    def step() -> float:
        store.pull(names, weights)
        with gk.nd.record():
            loss = hybrid(*held)
        loss.backward()
        store.push(names, [w.grad for w in weights])
        gk.nd.waitall()
        return float(loss)

    return step


def store_of(keys: list[str], weights: list[Any]) -> Any:
    """Return a local store with these weights and an updater."""
    import graphkit as gk

    def descend(_key: str, gradient: Any, weight: Any) -> None:
        weight -= RATE * gradient

    store = gk.kvstore.create("local")
    store.init(keys, weights)
    store.set_updater(descend)
    return store


def symbolic_step(task: Task, threads: int) -> Callable[[], Any]:
    """Return the run of one graph, with the weights as inputs."""
    executor, feeds = symbolic_program(task, threads)
    return lambda: float(next(iter(executor.run(feeds).values())))


def symbolic_program(task: Task, threads: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Return an executor of loss and gradients, and its inputs by name."""
    import graphkit as gk
    from graphkit.executor.run.params import ParamStore
    from graphkit.executor.run.session import Executor
    from graphkit.ir.graph import Graph
    from graphkit.ir.subgraph import inline

    inputs = {v: v.like(role="data", name=f"i{i}") for i, v in enumerate(task.graph.inputs)}
    (result,) = inline(task.graph, list(inputs.values()))
    gradients = gk.gradient([result], [inputs[v] for v in task.trained])
    executor = Executor(Graph(list(inputs.values()), [result, *gradients]), ParamStore({}), threads=threads)
    return executor, {f"i{i}": a for i, a in enumerate(task.inputs)}


def array_network(task: Task) -> tuple[list[Any], Callable[..., Any]]:
    """Return the inputs as arrays, and a function that applies the operators of the graph to them."""
    import graphkit as gk
    from graphkit.ops import apply

    graph = task.graph
    held = [gk.nd.array(a) for a in task.inputs]
    for a, v in zip(held, graph.inputs, strict=True):
        if v in set(task.trained):
            a.attach_grad()
    constants = {n: n.op.value.array for n in graph.nodes if n.op.name == "Constant"}

    def network(*operands: Any) -> Any:
        """Apply the operators of the graph to arrays or to values of a graph."""
        table = dict(zip(graph.inputs, operands, strict=True))
        for node in graph.nodes:
            if node in constants:
                table[node.output] = constants[node] if isinstance(operands[0], gk.nd.NDArray) else node.output
                continue
            results = apply(node.op, *[None if v is None else table[v] for v in node.inputs])
            table.update(zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True))
        return table[graph.outputs[0]]

    return held, network


def array_steps(task: Task) -> dict[str, Callable[[], Any]]:
    """Return the steps of gk.nd: hybridized, and operator by operator."""
    import graphkit as gk

    held, network = array_network(task)

    def step(function: Callable[..., Any]) -> float:
        with gk.nd.record():
            loss = function(*held)
        loss.backward()
        gk.nd.waitall()
        return float(loss)

    hybrid = gk.nd.hybridize(network)
    return {ENGINES[1]: lambda: step(hybrid), ENGINES[2]: lambda: step(network)}


def torch_step(module: Any, images: np.ndarray, labels: np.ndarray, threads: int) -> Callable[[], Any]:
    """Return the step of a PyTorch module."""
    import torch

    torch.set_num_threads(threads)
    x, t = torch.from_numpy(images), torch.from_numpy(labels)

    def step() -> float:
        module.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), t)
        loss.backward()
        return float(loss.detach())

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
