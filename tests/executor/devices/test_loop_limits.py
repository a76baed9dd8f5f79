"""Limits of time and iterations for loops of graphs with states: a run that reaches one changes no state."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import LimitReached
from graphkit.executor.devices import registry
from graphkit.executor.devices.loading import DeviceKind, register_device, unregister_device
from graphkit.executor.devices.registry import KernelRule
from graphkit.executor.lower import failures
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

sys.path.insert(0, str(Path(__file__).parent))

import arena_device

ROW = TensorType("float32", (4,))
X = np.full(4, 0.5, np.float32)
# So many iterations take seconds.
LONG = 20_000_000


class Launched:
    """The kernel of an element-wise operator, which cannot fail."""

    scratch_bytes = 0
    inplace = ((0, 0),)
    fault = ""


class ArenaWithKernels(arena_device.ArenaDevice):
    """An arena whose steps cannot fail, so that they may run after a state was overwritten."""

    name = "arena"

    def prepare(self, node: Node, made: Any, fault: Any) -> Any:
        return super().prepare(node, None, None)


@pytest.fixture(params=["cpu", "arena"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "cpu":
        yield "cpu"
        return

    for name in ("Add", "Exp", "Tanh"):
        monkeypatch.setitem(registry._rules, ("arena", "", name), KernelRule(launched=lambda *given: Launched()))
    made = ArenaWithKernels()
    register_device("arena", DeviceKind(lambda number: made))
    yield "arena"
    unregister_device("arena")


def looped(trips: int, x: Value, inner: int | None = None) -> Value:
    """A loop, or a loop in a loop, with a known number of iterations."""
    i, go, s = Value(TensorType("int64", ()), "i"), Value(TensorType("bool", ()), "go"), Value(ROW, "s")
    body = Graph([i, go, s], [go, F.tanh(s) if inner is None else looped(inner, s)])
    found: Value = F.loop(np.array(trips), None, x, body=body)
    return found


def with_state(made: Callable[[Value, Value], Value], device: str, **options: Any) -> tuple[Executor, ParamStore]:
    """A graph that adds its input to a state. made: returns its output, for the input and the new state."""
    s, x = Value(ROW, "s", role="state"), Value(ROW, "x")
    new = F.add(s, x)
    graph = Graph([x, s], [made(x, new)], updates=[(s, new)])
    store = ParamStore({"s": ROW}, {"s": np.ones(4, np.float32)})
    return Executor(graph, store, device=device, threads=1, **options), store


def lowered_of(exe: Executor) -> LoweredGraph:
    assert exe._choice.latest is not None
    return exe._choice.latest.lowered


def runs_before_update(exe: Executor) -> bool:
    """Whether the first loop or branch runs before the step that overwrites the state."""
    lowered = lowered_of(exe)
    order = [lowered.placement.steps[index] for index in lowered.memory.order]
    (writer,) = (target.node for target in lowered.memory.donated.values())
    assert writer is not None
    return order.index(next(n for n in order if n.op.subgraphs())) < order.index(writer)


@pytest.mark.parametrize(("trips", "inner"), [(LONG, None), (1000, 1000), (2, LONG)])
def test_long_loop_on_a_new_state_leaves_the_old_one(device: str, trips: int, inner: int | None) -> None:
    exe, store = with_state(lambda x, new: looped(trips, new, inner), device)
    with pytest.raises(LimitReached, match="the time limit is over"):
        exe.run({"x": X}, timeout=0.01)
    assert not lowered_of(exe).memory.donated
    assert store["s"].tolist() == [1] * 4


@pytest.mark.parametrize(("trips", "inner"), [(5, None), (2, 5)])
def test_short_loop_is_checked_before_a_run(device: str, trips: int, inner: int | None) -> None:
    exe, store = with_state(lambda x, new: looped(trips, new, inner), device)
    exe.run({"x": X})
    assert not runs_before_update(exe)
    for _ in range(3):
        with limits.limited(iterations=4), pytest.raises(LimitReached, match=r"oop.*: more than 4 iterations"):
            exe.run({"x": X})
        assert store["s"].tolist() == [1.5] * 4
    with limits.limited(iterations=5):
        exe.run({"x": X})
    assert store["s"].tolist() == [2] * 4


def test_loop_in_a_branch_counts_only_if_it_runs(device: str) -> None:
    def made(x: Value, new: Value) -> Value:
        first = F.greater(F.reduce_max(x, keepdims=0), np.float32(0))
        found: Value = gk.cond(first, lambda a: looped(5, a), lambda a: F.exp(a), (new,))
        return found

    exe, store = with_state(made, device, max_iterations=4)
    exe.run({"x": -X})
    assert store["s"].tolist() == [0.5] * 4
    with pytest.raises(LimitReached, match="more than 4 iterations"):
        exe.run({"x": X})
    assert store["s"].tolist() == [0.5] * 4


@pytest.mark.parametrize("device", ["arena"], indirect=True)
def test_deadline_does_not_end_a_run_that_writes(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check of the time would raise an error."""
    clock = itertools.count(step=100)
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    exe, store = with_state(lambda x, new: looped(5, new), device)
    for number in range(3):
        exe.run({"x": X}, timeout=1.0)
        assert not runs_before_update(exe)
        assert store["s"].tolist() == [1.5 + number / 2] * 4


def recurrent(length: int, width: int) -> gk.Trainer:
    """An LSTM as a Scan, between two dense layers."""
    x = gk.input("x", [length, 4, width])
    zero = gk.constant(np.zeros((4, width), np.float32))

    def step(state: Any, row: Value) -> Any:
        h, c = state
        gates = gk.nn.linear(row, 4 * width, name="in") + gk.nn.linear(h, 4 * width, name="carried", bias=False)
        i, f, o, g = (gates[:, k * width : (k + 1) * width] for k in range(4))
        c = gk.sigmoid(f) * c + gk.sigmoid(i) * gk.tanh(g)
        h = gk.sigmoid(o) * gk.tanh(c)
        return (h, c), h

    h = gk.scan(step, (zero, zero), gk.relu(gk.nn.linear(x, width, name="before")))[1]
    h = gk.relu(gk.nn.linear(h, width, name="between"))
    return gk.Trainer(gk.Model({"y": gk.nn.linear(h, 8, name="out")}, seed=0), loss="mse", optimizer="adam", threads=1)


def test_short_recurrence_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients may overwrite parameters before other loops run."""
    arena: dict[float, int] = {}
    short = failures.SHORT_LOOP
    for most in (math.inf, short, 0):
        monkeypatch.setattr(failures, "SHORT_LOOP", most)
        trainer = recurrent(16, 256)
        trainer.step({"x": np.zeros((16, 4, 256), np.float32)}, np.zeros((16, 4, 8), np.float32))
        arena[most] = lowered_of(trainer.executor).memory.layout.arena_bytes
    assert arena[short] == arena[math.inf] < arena[0]
