"""No step of a program writes outside of its memory: every value has guard bytes before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.inputs import make_feeds
from graphkit.checks.random_nodes import build
from graphkit.executor.memory import plan_cache
from graphkit.executor.memory.planner import Layout, Request, aligned
from graphkit.executor.run import program
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor

# Between any two values, and before and behind them all.
GUARD_BYTES = 1 << 16
PATTERN = 0x5A


def planned(request: Request) -> Request:
    """Return the request that is planned. A test replaces this with a smaller one."""
    return request


def apart(requests: Sequence[Request], **_: Any) -> Layout:
    """Offsets that leave a guard on both sides of each request; nothing takes over the memory of anything."""
    end, offsets = GUARD_BYTES, []
    for request in map(planned, requests):
        offsets.append(end if request.size else 0)
        end += aligned(request.size) + GUARD_BYTES if request.size else 0
    return Layout(tuple(offsets), end, end, end, 0, 0)


@pytest.fixture
def overrun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect writes into guards by all programs of the test."""
    found: list[str] = []
    run = program._Instance.run

    def run_and_look(self: Any, program: Any, inputs: Any, buffers: Any, arena: np.ndarray) -> Any:
        arena[:] = PATTERN
        results = run(self, program, inputs, buffers, arena)
        memory = program.lowered.memory
        steps = program.placement.steps
        nodes = {request: steps[index] for index, request in memory.scratch_of.items()}
        names = {request: value.node for value, request in memory.request_of.items()} | nodes
        sizes = [planned(r).size for r in memory.requests]
        placed = sorted((o, n, i) for i, (o, n) in enumerate(zip(memory.layout.offsets, sizes, strict=True)) if n)
        end, before = 0, None
        for offset, size, request in [*placed, (arena.size, 0, None)]:
            if (arena[end:offset] != PATTERN).any():
                found.append(f"between {names.get(before)} and {names.get(request)}")
            end, before = offset + size, request
        return results

    monkeypatch.setattr(plan_cache, "plan_memory", apart)
    monkeypatch.setattr(program._Instance, "run", run_and_look)
    return found


def test_guards_are_watched(overrun: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The guards detect a step that writes more than its request."""
    monkeypatch.setitem(globals(), "planned", lambda request: Request(request.size // 2, request.first, request.last))
    x = gk.input("x", [64])
    gk.Model(gk.relu(gk.cum_sum(gk.exp(x), np.array(0)))).compile(threads=1).run({"x": np.ones(64, np.float32)})
    assert overrun


@in_one_item()
@pytest.mark.parametrize("seed", range(40))
def test_random_networks(overrun: list[str], seed: int) -> None:
    net, graph = build(seed, np.float32)
    feeds = {n: net.arrays[v] for n, v in zip(graph.input_names, graph.inputs, strict=True) if v.role == "data"}
    params = ParamStore({v.name: v.tensor for v in graph.inputs if v.role == "parameter"}, net.params)
    Executor(graph, params, threads=1 + seed % 2).run(feeds)
    assert not overrun


def mixed(x: Any, channels: int, stride: int, depthwise: int) -> Any:
    """Strided convolutions of one and of several elements, of few channels, with a residual."""
    h = gk.nn.conv2d(x, channels, kernel=3, stride=2, pad=1, bias=False)
    h = gk.relu(gk.nn.batch_norm(h))
    h = gk.nn.conv2d(h, channels * depthwise, kernel=3, pad=1, groups=channels) + gk.nn.conv2d(
        h, channels * depthwise, kernel=1
    )
    kept = gk.nn.conv2d(h, 25, kernel=1, stride=stride, bias=False)
    h = gk.nn.conv2d(h, 25, kernel=5, stride=stride, pad=2)
    h = gk.max_pool(gk.relu(gk.nn.batch_norm(h + kept)), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))[0]
    return gk.nn.linear(gk.flatten(gk.reduce_mean(h, np.array([2, 3]))), 5)


@pytest.mark.full
@in_one_item("pairs")
@pytest.mark.parametrize("size", [33, 64])
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize(("channels", "depthwise"), [(3, 1), (7, 2), (16, 1)])
def test_steps_of_training(overrun: list[str], channels: int, depthwise: int, stride: int, size: int) -> None:
    net = gk.Model({"logits": mixed(gk.input("x", ["N", 3, size, size]), channels, stride, depthwise)}, name="net")
    for threads in (1, 2):
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1, momentum=0.9), threads=threads)
        rng = np.random.default_rng(size)
        for batch in (1, 3):
            trainer.step(rng.random((batch, 3, size, size), np.float32), np.arange(batch))
    assert not overrun


@in_one_item()
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lstm_lm", {"vocab": 40, "hidden": 7, "layers": 2}),
        ("seq2seq", {"vocab": 40, "target_vocab": 30, "width": 8, "hidden": 6, "layers": 2}),
        ("bert", {"vocab": 50, "width": 12, "heads": 4, "layers": 2, "length": 8, "classes": 3}),
        ("unet", {"image": (1, 16, 16), "width": 3, "depth": 2, "classes": 1}),
    ],
)
def test_gradients(overrun: list[str], name: str, options: dict[str, Any]) -> None:
    net = gk.models.build(name, **options)
    sizes = {n: [2, *(d if isinstance(d, int) else 5 for d in t.shape[1:])] for n, t in net.input_types.items()}
    feeds = make_feeds(net, shapes=sizes, seed=1).arrays
    for threads in (1, 2):
        gk.grad(net).compile(threads=threads).run(feeds)
    assert not overrun
