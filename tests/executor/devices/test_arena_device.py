"""A device that the test adds: it runs and trains networks with the results of the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import LimitReached, UnsupportedError, UsageError
from graphkit.executor.devices import registry
from graphkit.executor.devices.bound_steps import BoundStep, Choice, Conditional, Recorded, Repetition
from graphkit.executor.devices.capabilities import PinnedMemory, Prefetcher, Recorder, ReducedPrecision, Streams
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.loading import DeviceKind, register_device, unregister_device
from graphkit.executor.devices.registry import KernelRule
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.run.session import Executor
from graphkit.ir import limits
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

sys.path.insert(0, str(Path(__file__).parent))

import arena_device
from arena_device import ArenaArray, ArenaDevice

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((6, 3, 8, 8)).astype(np.float32)
ROWS = RNG.standard_normal((6, 5)).astype(np.float32)
LABELS = np.arange(6) % 4


@pytest.fixture
def arena() -> Iterator[ArenaDevice]:
    with arena_device.registered() as device:
        yield device


def convolutions(x: Value) -> Value:
    h = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 8, 3, pad=1, name="first"), name="norm"))
    h = gk.nn.max_pool2d(h, 2)
    h = gk.relu(gk.nn.conv2d(h, 8, 3, stride=2, name="second"))
    return gk.nn.linear(gk.flatten(h), 4, name="head")


def loop(x: Value) -> Value:
    """The body has parameters. A value determines the number of iterations."""
    state = gk.nn.linear(x, 4, name="in")

    def small(s: Value) -> Value:
        return gk.reduce_sum(s * s, keepdims=False) < 400.0

    return gk.while_loop(small, lambda s: s * 1.5 + gk.nn.linear(gk.tanh(s), 4, name="inner"), state, 6)


def scan(x: Value) -> Value:
    def step(h: Value, row: Value) -> tuple[Value, Value]:
        h = gk.tanh(gk.nn.linear(gk.unsqueeze(row, [0]), 4, name="in") + gk.nn.linear(h, 4, name="carried"))
        return h, gk.reshape(h, [4])

    return gk.scan(step, gk.constant(np.zeros((1, 4), np.float32)), x)[1]


def branch(x: Value) -> Value:
    h = gk.nn.linear(x, 4, name="in")
    positive = gk.reduce_sum(h, keepdims=False) > 0.0
    return gk.cond(positive, lambda: gk.nn.linear(h, 4, name="left"), lambda: gk.exp(-h))


NETWORKS: dict[str, tuple[Callable[[Value], Value], np.ndarray]] = {
    "convolutions": (convolutions, IMAGES),
    "loop": (loop, ROWS),
    "scan": (scan, ROWS),
    "branch": (branch, ROWS),
}


def network(name: str) -> tuple[gk.Model, np.ndarray]:
    build, x = NETWORKS[name]
    return gk.Model({"y": build(gk.input("x", ["N", *x.shape[1:]]))}, seed=3), x


def leaves(lowered: LoweredGraph) -> Iterator[tuple[Node, Lowering]]:
    """The steps of a program that run no subgraphs, also inside of subgraphs."""
    for node, lowering in lowered.steps:
        if not lowering.subgraphs:
            yield node, lowering
        for inner in lowering.subgraphs.values():
            yield from leaves(inner)


def steps_of(exe: Executor) -> list[tuple[Node, Lowering]]:
    assert exe._choice.latest is not None
    return [*leaves(exe._choice.latest.lowered)]


@pytest.mark.parametrize("name", NETWORKS)
def test_it_runs_what_the_cpu_runs(arena: ArenaDevice, name: str) -> None:
    net, x = network(name)
    exe = net.compile("arena")
    for rows in (x, x[:4], -x):
        found, wanted = exe.run({"x": rows})["y"], net.run({"x": rows})["y"]
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    # No rule has kernels for this device, so natively the program only repeats and chooses steps.
    assert {s.op for s in exe.plan.steps if s.kernel == "native"} <= {"Loop", "Scan", "If"}
    steps = steps_of(exe)
    assert {lowering.kind for _, lowering in steps} <= {"interpreted", "view", "constant"}
    assert {node.op.name for node, lowering in steps if lowering.kind == "interpreted"} <= {*arena.interpreted}


@pytest.mark.parametrize("name", NETWORKS)
def test_it_trains_as_the_cpu_does(arena: ArenaDevice, name: str) -> None:
    def trained(device: str) -> tuple[list[float], dict[str, np.ndarray]]:
        net, x = network(name)
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.02, momentum=0.9), device=device, seed=1)
        losses = [float(trainer.step(x, LABELS)) for _ in range(5)]
        return losses, dict(net.params)

    losses, params = trained("arena")
    wanted, expected = trained("cpu")
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    assert losses[-1] < losses[0]
    for key, array in expected.items():
        np.testing.assert_allclose(params[key], array, rtol=1e-4, atol=1e-5)


def test_it_computes_the_bits_of_the_references(arena: ArenaDevice) -> None:
    """Nothing is fused or rounded, so the interpreted program of the CPU gives the same bits."""
    x = gk.input("x", ["N", 5])
    net = gk.Model({"y": gk.exp(gk.tanh(x) * 3.0) / (1.0 + x * x), "positive": gk.non_zero(x > 0.0)})
    found, wanted = net.compile("arena").run({"x": ROWS}), gk.ops.evaluate.evaluate(net.graph, [ROWS])
    for array, expected in zip(found.values(), wanted, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_host_array_is_refused(arena: ArenaDevice) -> None:
    x = Value(TensorType("float32", (4,)), "x")
    kernel = arena.prepare(F.exp(x).node, None, None)
    there, out = arena.copy_in(np.ones(4, np.float32)), arena.copy_in(np.zeros(4, np.float32))
    kernel([there], [out], None)
    np.testing.assert_allclose(arena.copy_out(out, None), np.e, rtol=1e-6)
    host: Any = np.ones(4, np.float32)
    for given, written in (([host], [out]), ([there], [host]), ([host.view(ArenaArray)], [out])):
        with pytest.raises(TypeError, match="a host array reached the arena device"):
            BoundStep(kernel, given, written, None).run()
    with pytest.raises(TypeError, match="not the host's"):
        there + 1
    with pytest.raises(AssertionError, match="only arrays of the host"):
        arena.copy_in(there)


def test_it_has_none_of_the_optional_capabilities(arena: ArenaDevice) -> None:
    for capability in (Streams, PinnedMemory, Recorder, Prefetcher, ReducedPrecision):
        assert not isinstance(arena, capability)
    net, _ = network("convolutions")
    with pytest.raises(UnsupportedError, match="device 'arena' does not support precision 'bf16'; use 'f32'"):
        net.compile("arena", precision="bf16")


# --- kernels ------------------------------------------------------------------------------------------


class Launched:
    """The kernel that a factory of the arena returns. The arena computes it like a node without a kernel."""

    scratch_bytes = 0
    inplace = ()
    fault = ""


class RecordingArena(ArenaDevice):
    """An arena with kernels, which records their calls. It has no streams: a call returns when its work is done."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[str] = []
        self.replays = self.iterations = 0

    def prepare(self, node: Node, made: Any, fault: Any) -> Any:
        kernel = super().prepare(node, None, None)
        if made is not None:
            self.launched.append(self.interpreted.pop())
            kernel.can_be_recorded = True
        return kernel

    def supports_conditions(self) -> bool:
        return True

    def record(self, stream: Any, steps: Sequence[Recorded]) -> Callable[[], None]:
        assert stream is None

        def replay() -> None:
            self.replays += 1
            self._run(steps)

        return replay

    def _run(self, steps: Iterable[Recorded]) -> None:
        for step in steps:
            if isinstance(step, Repetition):
                self._repeat(step)
            elif isinstance(step, Choice):
                self._run(step.then if self._value(step.condition) else step.otherwise)
            elif isinstance(step.kernel, Conditional):
                self._run(step.kernel.recorded(step.inputs, step.outputs, step.scratch))
            else:
                step.run()

    def _repeat(self, step: Repetition) -> None:
        number, going = 0, step.condition is None or self._value(step.condition)
        while going and (step.limit is None or number < self._value(step.limit)):
            if number == self._value(step.most):
                self._within(step.fault)[...] = 1
                return
            self._within(step.trips)[...] = number
            self._run(step.steps)
            number += 1
            self.iterations += 1
            going = step.flag is None or self._value(step.flag)

    def _value(self, array: Any) -> Any:
        return self._within(array).reshape(-1)[0]


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingArena]:
    """The device "arena", with kernels for all operators but Exp and those with subgraphs."""

    def launched(node: Node, context: KernelContext) -> Launched | None:
        return None if node.op.name == "Exp" or node.op.subgraphs() else Launched()

    device, rule = RecordingArena(), KernelRule(launched=launched)
    for cls in gk.ops.registry:
        monkeypatch.setitem(registry._rules, ("arena", cls.domain, cls.name), rule)
    register_device("arena", DeviceKind(lambda number: device))
    yield device
    unregister_device("arena")


@pytest.mark.parametrize("name", NETWORKS)
def test_launched_kernels_of_rules_are_used(with_kernels: RecordingArena, name: str) -> None:
    net, x = network(name)
    exe = net.compile("arena")
    for rows in (x, x, -x, x):
        found, wanted = exe.run({"x": rows}, timeout=10)["y"], net.run({"x": rows})["y"]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    kinds = {node.op.name: lowering.kind for node, lowering in steps_of(exe)}
    interpreted = {operator for operator, kind in kinds.items() if kind == "interpreted"}
    assert interpreted == ({"Exp"} if name == "branch" else set())
    assert {*with_kernels.interpreted} == interpreted
    assert {operator for operator, kind in kinds.items() if kind == "native"} <= {*with_kernels.launched}
    assert with_kernels.launched


def test_recorded_loop_ends_on_a_device_without_streams(with_kernels: RecordingArena) -> None:
    """After a replay, the host asks whether the loop has ended. Calls of this device return when it has."""
    net, x = network("loop")
    exe, wanted = net.compile("arena"), net.run({"x": x})["y"]
    for _ in range(3):
        np.testing.assert_allclose(exe.run({"x": x}, timeout=10)["y"], wanted, rtol=1e-5)
    assert with_kernels.replays
    assert with_kernels.iterations
    before = with_kernels.iterations
    with limits.limited(iterations=1), pytest.raises(LimitReached, match="more than 1 iteration"):
        exe.run({"x": x})
    assert with_kernels.iterations == before + 1
    np.testing.assert_allclose(exe.run({"x": x}, timeout=10)["y"], wanted, rtol=1e-5)


# --- registration -------------------------------------------------------------------------------------


def test_a_device_is_registered_once(arena: ArenaDevice) -> None:
    for taken in ("arena", "cpu", "cuda"):
        with pytest.raises(UsageError, match=f"there is a device '{taken}' already"):
            register_device(taken, DeviceKind(lambda number: arena))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("arena:1", "no device 'arena:1': this machine has only 'arena:0'"),
        ("arena:x", "no device 'arena:x': expected a number from 0 to 9999 after the colon, as in 'arena:0'"),
    ],
)
def test_numbers_that_no_device_has(arena: ArenaDevice, device: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        network("branch")[0].compile(device)


def test_a_device_that_is_gone_is_unknown() -> None:
    with arena_device.registered():
        network("branch")[0].compile("arena")
    with pytest.raises(UnsupportedError, match="no device 'arena'"):
        network("branch")[0].compile("arena")
