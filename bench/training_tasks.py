"""Measurements of training in a process of its own, for `worker.py`."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import training_engines as engines
from measurement import one_line, peak_bytes, reset_peak, resident_bytes, return_freed_memory, timed
from training_workloads import WORKLOADS

import graphkit as gk
from graphkit.errors import UsageError
from graphkit.executor.run.profile import Profile
from graphkit.passes.training.to_training import to_training

# Steps of graphkit that are profiled after the timing.
_PROFILED = 5
# Of which the peak of memory is taken.
_STEPS = 3


def time_engines(task: Mapping[str, Any]) -> dict[str, Any]:
    """First steps compared with those of the first peer that runs; then times, and graphkit's profile."""
    workload = WORKLOADS[task["workload"]]
    runners: dict[str, engines.Runner] = {}
    firsts: dict[str, tuple[float, dict[str, np.ndarray]]] = {}
    results: dict[str, dict[str, Any]] = {}
    for name in task["engines"]:
        try:
            start = time.perf_counter()
            runner = engines.open_engine(name, workload, task["threads"])
            firsts[name] = runner.step(), runner.states()
        except Exception as error:  # noqa: BLE001 - the engines' exceptions have no common base; the row shows it
            results[name] = {"error": one_line(error, task)}
        else:
            runners[name] = runner
            results[name] = {**runner.facts, "first_step": time.perf_counter() - start}
    reference = next((n for n in ("torch", "compiled") if n in firsts), None)
    for name, runner in runners.items():
        if reference not in (None, name):
            results[name]["difference"] = differences(firsts[name], firsts[reference], runner.statistics)
    firsts.clear()
    for name, times in timed({n: r.step for n, r in runners.items()}, task).items():
        results[name] |= times
    if "graphkit" in runners:
        results["graphkit"]["profile"] = _profiled(runners["graphkit"].step)
    return results


def differences(
    ours: tuple[float, Mapping[str, np.ndarray]],
    theirs: tuple[float, Mapping[str, np.ndarray]],
    statistics_: Sequence[str],
) -> dict[str, Any]:
    """How far two first steps (loss, and gradients and running statistics by name) are from each other.

    `loss`, `gradients` (all as one vector), `gradient` (the worst of single tensors, whose name is `worst`) and
    `statistics` (the worst): the norm of the difference over the norm. The gradient of a bias may vanish by symmetry,
    before a normalisation; it is measured by the weight of its layer as well.
    """
    (loss, a), (other, b) = ours, theirs
    if {n: x.shape for n, x in a.items()} != {n: x.shape for n, x in b.items()}:
        raise ValueError("the engines differ in their parameters")
    norms = {n: _norm(x) for n, x in b.items()}
    errors = {n: _norm(a[n].astype(np.float64) - b[n]) for n in b}
    gradients = [n for n in b if n not in statistics_]

    def relative(name: str) -> float:
        weight = f"{name.removesuffix('bias')}weight" if name.endswith("bias") else name
        return errors[name] / max(norms[name], norms.get(weight, 0.0)) if errors[name] else 0.0

    worst = max(gradients, key=relative)
    joint = np.hypot.reduce([errors[n] for n in gradients]) / np.hypot.reduce([norms[n] for n in gradients])
    return {
        "loss": abs(loss - other) / abs(other),
        "gradients": float(joint),
        "gradient": relative(worst),
        "worst": worst,
        "statistics": max((relative(n) for n in statistics_), default=None),
    }


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))


def _profiled(step: Callable[[], object]) -> dict[str, Any]:
    """Profile a step: its seconds, those in convolutions, and those by operator."""
    profiles = []
    for _ in range(_PROFILED):
        with gk.profile() as recorded:
            step()
        profiles.append(recorded)
    return profile_summary(profiles)


def profile_summary(profiles: Sequence[Profile]) -> dict[str, Any]:
    """Means over steps; `convolutions` are the operators with Conv in their name, and `times_floor` is the median of a
    step's time over theirs.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for profile in profiles:
        for operator in profile.operators:
            found.setdefault((operator.operator, operator.kind), []).append(operator.seconds)
    convolutions = [sum(o.seconds for o in p.operators if "Conv" in o.operator) for p in profiles]
    quotients = [p.seconds / seconds for p, seconds in zip(profiles, convolutions, strict=True) if seconds]
    operators = [{"operator": o, "kind": k, "seconds": sum(s) / len(profiles)} for (o, k), s in found.items()]
    return {
        "seconds": statistics.fmean(p.seconds for p in profiles),
        "convolutions": statistics.fmean(convolutions),
        "times_floor": statistics.median(quotients) if quotients else None,
        "operators": sorted(operators, key=lambda o: -o["seconds"]),
    }


def peak_memory(task: Mapping[str, Any]) -> dict[str, Any]:
    """Resident bytes before the network is built, and at most while three steps are made; the first one, which
    compiles, comes before.
    """
    workload = WORKLOADS[task["workload"]]
    engines.load(task["engine"], task["threads"])
    return_freed_memory()
    before = resident_bytes()
    runner = engines.open_engine(task["engine"], workload, task["threads"])
    runner.step()
    return_freed_memory()
    reset_peak()
    for _ in range(_STEPS):
        runner.step()
    return {"before": before, "peak": peak_bytes()}


def recomputation(task: Mapping[str, Any]) -> dict[str, Any]:
    """By way of recomputation: the plan of a step, and its times, interleaved. `half` is half of the plain arena."""
    workload = WORKLOADS[task["workload"]]
    inputs, target = workload.feeds()
    shapes = {n: a.shape for n, a in {**inputs, "target": target}.items()}
    results: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], float]] = {}
    for name in ("plain", "sqrt", "half"):
        way = {"plain": None, "sqrt": "sqrt"}.get(name, results.get("plain", {}).get("arena_bytes", 0) // 2)
        try:
            trainer = engines.trainer(workload, task["threads"], recompute=way)
            start = time.perf_counter()
            plan = trainer.plan(shapes)
        except UsageError as error:  # there is no way to so little memory
            results[name] = {"error": one_line(error, task)}
            continue
        results[name] = {
            "planned_in": time.perf_counter() - start,
            "steps": len(plan.steps),
            **{key: getattr(plan, key) for key in ("arena_bytes", "activation_bytes", "scratch_bytes", "lower_bound")},
        }
        calls[name] = lambda step=trainer.step: float(step(inputs, target))
    losses = {name: call() for name, call in calls.items()}
    for name, times in timed(calls, task).items():
        results[name] |= {"loss": losses[name], **times}
    return results


def reimported(task: Mapping[str, Any]) -> dict[str, Any]:
    """A step of the native network, of the same once more, and of the two files written from it, interleaved.

    "inference" is what `graphkit export` writes of the network, "training" of its graph in training mode. `same` says
    whether the planned steps are the native network's, operator by operator.
    """
    workload = WORKLOADS[task["workload"]]
    if task["batch"] is not None:
        workload = workload.with_batch(task["batch"])
    inputs, target = workload.feeds()
    shapes = {n: a.shape for n, a in {**inputs, "target": target}.items()}
    nets = {"native": workload.net(), "again": workload.net()}
    with tempfile.TemporaryDirectory() as folder:
        net = workload.net()
        in_training = gk.Model.from_graph(to_training(net.graph), dict(net.params))
        for name, model in (("inference", net), ("training", in_training)):
            path = Path(folder) / f"{name}.onnx"
            model.save(path)
            nets[name] = gk.load(path)
    trainers = {name: engines.trainer(workload, task["threads"], net) for name, net in nets.items()}
    plans = {name: trainer.plan(shapes) for name, trainer in trainers.items()}
    operators = {name: [step.op for step in plan.steps] for name, plan in plans.items()}
    calls = {name: lambda step=trainer.step: float(step(inputs, target)) for name, trainer in trainers.items()}
    results: dict[str, dict[str, Any]] = {
        name: {
            "steps": len(plan.steps),
            "same": operators[name] == operators["native"],
            "arena_bytes": plan.arena_bytes,
            "loss": calls[name](),
        }
        for name, plan in plans.items()
    }
    for name, times in timed(calls, task).items():
        results[name] |= times
    return results
