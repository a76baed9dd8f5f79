"""The engines of the training benchmark behind one small interface: a network, a batch and a number of threads give a
step by SGD with momentum.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from training_workloads import LEARNING_RATE, MOMENTUM, TINY, Workload

import graphkit as gk

TITLES = {"graphkit": "graphkit", "torch": "PyTorch eager", "compiled": "torch.compile"}


@dataclass(frozen=True)
class Runner:
    """`step` trains on the batch that it was opened with and returns the loss. `states` are the parameters' momenta and
    the running statistics by name: a momentum is the gradient itself after the first step. `statistics` tells which
    states are statistics; `trainer` is graphkit's.
    """

    step: Callable[[], float]
    states: Callable[[], dict[str, np.ndarray]]
    statistics: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)


def versions() -> dict[str, str | None]:
    """Return the version of every engine; None if it is not installed."""
    torch = metadata.version("torch") if importlib.util.find_spec("torch") is not None else None
    return {"graphkit": gk.__version__, "torch": torch, "compiled": torch}


def load(name: str, threads: int) -> None:
    """Import all that an engine needs, by a step of a tiny network: what is measured afterwards does not include it."""
    open_engine(name, TINY, threads).step()


def open_engine(name: str, workload: Workload, threads: int, device: str = "cpu", half: bool = False) -> Runner:
    """Open an engine for the first step, which may compile. half: PyTorch uses bfloat16 by autocast."""
    if name == "graphkit":
        return graphkit(workload, threads, device=device)
    return _torch(workload, threads, compiled=name == "compiled", device=device, half=half)


def open_shared(name: str, workload: Workload, threads: int) -> tuple[Runner, Callable[[], object]]:
    """An engine in one of several processes, which share what they learn, and what waits for all of them.

    PyTorch's finds the others by `MASTER_ADDR`, `MASTER_PORT` and `WORLD_SIZE`, and its rank by MPICH's launcher.
    """
    if name == "graphkit":
        store = gk.kvstore.create("dist_sync")
        return graphkit(workload, threads, kvstore=store), store.barrier
    import torch.distributed

    torch.distributed.init_process_group("gloo", rank=int(os.environ["PMI_RANK"]))
    atexit.register(torch.distributed.destroy_process_group)
    return _torch(workload, threads, compiled=False, shared=True), torch.distributed.barrier


def trainer(workload: Workload, threads: int, net: gk.Model | None = None, **options: Any) -> gk.Trainer:
    """graphkit's Trainer of a workload, or of another model of its network."""
    optimizer = gk.optim.SGD(LEARNING_RATE, momentum=MOMENTUM)
    return gk.Trainer(workload.net() if net is None else net, workload.loss, optimizer, threads=threads, **options)


def graphkit(workload: Workload, threads: int, **options: Any) -> Runner:
    made = trainer(workload, threads, **options)
    inputs, target = workload.feeds()
    plan = made.plan({n: a.shape for n, a in {**inputs, "target": target}.items()})
    statistics = tuple(n for n in made.net.params if n not in made.trained)

    def states() -> dict[str, np.ndarray]:
        momenta = {n: made.executor.params[f"{n}/momentum"] for n in made.trained}
        return momenta | {n: made.net.params[n] for n in statistics}

    facts = {"fallbacks": list(plan.fallbacks), "arena_bytes": plan.arena_bytes}
    return Runner(lambda: float(made.step(inputs, target)), states, statistics, facts)


def _torch(
    workload: Workload, threads: int, compiled: bool, shared: bool = False, device: str = "cpu", half: bool = False
) -> Runner:
    if compiled:
        # Processes that measure the same program compile it once.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(tempfile.gettempdir()) / "graphkit-bench-inductor"))
    import torch
    import torch_zoo

    torch.set_num_threads(threads)
    module = torch_zoo.build(workload.network, **workload.all_options).to(device).train()
    net = workload.net()
    slots = dict(zip(net.params, torch_zoo.slots(module), strict=True))
    for name, slot in slots.items():
        slot.write(net.params[name])
    statistics = tuple(n for n in slots if n not in net.trainable)
    del net
    arrays, labels = workload.feeds()
    # Batches are in host memory. A step on a GPU begins with a copy, as in graphkit.
    given, labelled = [torch.from_numpy(a) for a in arrays.values()], torch.from_numpy(labels)
    sizes = _batch_sizes(module, [a.to(device) for a in given], slots) if statistics else {}
    before = {name: slots[name].read() for name in sizes}
    if shared:
        module = torch.nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True)
    # The fastest of PyTorch's implementations: one kernel for each parameter's update.
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE, MOMENTUM, fused=True)

    def loss_of(target: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=half):
            return _loss(workload.loss, module(*inputs), target)

    mode = "default" if device == "cpu" else "max-autotune"
    forward = torch.compile(loss_of, mode=mode) if compiled else loss_of

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(labelled.to(device), *(a.to(device) for a in given))
        loss.backward()
        optimizer.step()
        return float(loss.item())

    def states() -> dict[str, np.ndarray]:
        def momentum(tensor: torch.Tensor) -> torch.Tensor:
            return optimizer.state[tensor]["momentum_buffer"]

        found = {n: s.read(momentum) if s.trained else s.read() for n, s in slots.items()}
        for name, size in sizes.items():
            # ONNX takes the batch's own variance for the running one, PyTorch the unbiased estimate.
            old = 0.9 * before[name]
            found[name] = old + (found[name] - old) * (1 - 1 / size)
        return found

    return Runner(step, states, statistics)


def torch_inference(
    workload: Workload, device: str, compiled: bool, half: bool = False
) -> Callable[[], list[np.ndarray]]:
    """Return a run of PyTorch's network, from arrays to arrays. half: it uses bfloat16 by autocast."""
    import torch
    import torch_zoo

    module = torch_zoo.build(workload.network, **workload.all_options)
    net = workload.net()
    for name, slot in zip(net.params, torch_zoo.slots(module), strict=True):
        slot.write(net.params[name])
    module = module.to(device).eval()
    call = torch.compile(module, mode="max-autotune") if compiled else module
    given = [torch.from_numpy(a) for a in workload.feeds()[0].values()]

    def run() -> list[np.ndarray]:
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=half):
            found = call(*(a.to(device) for a in given))
        return [t.float().cpu().numpy() for t in ([found] if isinstance(found, torch.Tensor) else found)]

    return run


def _loss(kind: str, output: Any, target: Any) -> Any:
    from torch.nn import functional

    if kind == "mse":
        return functional.mse_loss(output, target)
    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def _batch_sizes(module: Any, operands: list[Any], slots: Mapping[str, Any]) -> dict[str, int]:
    """By name of a running variance: the number of elements of a batch that its statistics are taken over."""
    import torch

    variances = {id(slot.tensors[0]): name for name, slot in slots.items() if name.endswith("_running_var")}
    sizes: dict[str, int] = {}

    def observe(norm: Any, inputs: tuple[Any, ...]) -> None:
        image = inputs[0]
        sizes[variances[id(norm.running_var)]] = image.numel() // image.shape[1] * len(operands[0])

    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    handles = [norm.register_forward_pre_hook(observe) for norm in norms]
    with torch.no_grad():
        module.eval()(*(operand[:1] for operand in operands))
    module.train()
    for handle in handles:
        handle.remove()
    return sizes
