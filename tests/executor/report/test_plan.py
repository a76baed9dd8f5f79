"""The plan that people and JSON see."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from graphkit.errors import InputError, UsageError
from graphkit.executor.devices.kernel import Kernel, KernelContext
from graphkit.executor.devices.registry import KernelRule, register
from graphkit.executor.report.plan import human
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, Op, op, registry


def deep_graph(depth: int = 12) -> Graph:
    x = Value(TensorType("float32", ("N", 64)), "x")
    value = x
    kept = []
    for i in range(depth):
        value = F.asinh(value, name=f"layer{i}")
        if i % 3 == 0:
            kept.append(value)
    for other in reversed(kept):
        value = F.add(value, other)
    return Graph([x], [value], output_names=["y"])


def test_four_way_table() -> None:
    found = {}
    for inplace, share in itertools.product([False, True], repeat=2):
        exe = Executor(deep_graph(), ParamStore({}), optimize=False, inplace=inplace, share=share)
        plan = exe.specialise({"x": (16, 64)})
        found[inplace, share] = plan.arena_bytes
        assert plan.lower_bound <= plan.arena_bytes <= plan.naive_bytes
    assert found[False, False] == 15 * 16 * 64 * 4
    assert found[True, True] <= found[False, True] < found[False, False]
    assert found[True, True] <= found[True, False] < found[False, False]


def test_numbers_and_text() -> None:
    exe = Executor(deep_graph(), ParamStore({}), optimize=False)
    with pytest.raises(UsageError, match=r"'x' \(float32\[N, 64\]\)"):
        _ = exe.plan
    with pytest.raises(InputError, match="shape of input 'x'"):
        exe.specialise({})
    with pytest.raises(InputError, match="no input 'z'"):
        exe.specialise({"z": (1,)})
    plan = exe.specialise({"x": (16, 64)})
    assert plan is exe.plan
    assert plan.result_bytes == 16 * 64 * 4
    assert plan.peak_node.startswith("layer")
    assert max(s.live_bytes for s in plan.steps) == plan.lower_bound
    text = str(plan)
    assert "layer3" in text
    assert "lower bound" in text
    assert json.loads(json.dumps(plan.to_dict()))["arena_bytes"] == plan.arena_bytes
    assert human(1536) == "1.5 KiB"
    assert human(3) == "3 B"


def test_static_graph_has_a_plan_before_it_runs() -> None:
    x = Value(TensorType("float32", (2, 3)), "x")
    flat = F.reshape(F.exp(x), np.array([6]))
    plan = Executor(Graph([x], [F.add(flat, np.ones(6, np.float32))]), ParamStore({})).plan
    kinds = {step.op: step.kernel for step in plan.steps}
    assert kinds["Reshape"] == "view"
    assert kinds["Constant"] == "constant"
    assert len(plan.fallbacks) + sum(s.kernel == "native" for s in plan.steps) == 2


def test_reshapes_share_storage() -> None:
    x = Value(TensorType("float32", (2, 3)), "x")
    value = F.exp(x)
    flat = F.flatten(F.unsqueeze(value, np.array([0])))
    exe = Executor(Graph([x], [F.add(F.neg(flat), F.reshape(value, np.array([1, 6])))]), ParamStore({}), optimize=False)
    places = {step.op: step.outputs[0].offset for step in exe.plan.steps if step.outputs[0] is not None}
    assert places["Exp"] == places["Reshape"]
    assert places["Neg"] != places["Exp"]
    np.testing.assert_allclose(exe(np.zeros((2, 3), np.float32))[0], np.zeros((1, 6), np.float32))


def test_native_kernels_decide_about_memory() -> None:
    calls: list[str] = []

    @op
    class Doubled(Op):
        inputs = ("x", "w")
        inplace = ((0, 0),)

        def infer(self, x: TensorType, w: TensorType) -> TensorType:
            return TensorType(x.dtype, x.shape)

        def reference(self, xp: Any, x: Any, w: Any) -> Any:
            return x * w

    class Native:
        inplace = ()

        def __init__(self, context: KernelContext):
            self.weights = context.constant_inputs[1]
            self.version = -1

        def __call__(self, inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray | None]) -> None:
            x, out = inputs[0], outputs[0]
            assert x is not None
            assert out is not None
            assert not np.shares_memory(x, out)
            if self.version != self.weights.version:
                calls.append("packed")
                self.packed, self.version = 1 * self.weights.array, self.weights.version
            np.multiply(x, self.packed, out=out)

    def make(node: Node, context: KernelContext) -> Kernel | None:
        return Native(context) if 1 in context.constant_inputs and node.inputs[0].shape == (2, 2) else None  # type: ignore[union-attr]

    register("cpu", "", "Doubled", KernelRule(make))
    try:
        x, w = Value(TensorType("float32", ("N", 2)), "x"), Value(TensorType("float32", (2,)), "w", role="parameter")
        store = ParamStore({"w": w.tensor}, {"w": np.full(2, 2, np.float32)})
        exe = Executor(Graph([x, w], [F.neg(F.doubled(F.asinh(x), w))]), store)
        x2, x3 = np.ones((2, 2), np.float32), np.ones((3, 2), np.float32)
        for factor in (2, 2, 5):
            store["w"] = np.full(2, factor, np.float32) if factor == 5 else store["w"]
            np.testing.assert_allclose(exe(x2)[0], -factor * np.arcsinh(x2), rtol=1e-6)
        assert len(calls) == 3  # item assignment counts as a write, whatever it writes
        native = [s for s in exe.plan.steps if s.op == "Doubled"]
        assert [(s.kernel, s.inplace) for s in native] == [("native", False)]
        exe(x3)
        assert [(s.kernel, s.inplace) for s in exe.plan.steps if s.op == "Doubled"] == [("interpreted", True)]
        # A fed parameter is an ordinary operand: a packed copy of the stored one must not be used.
        (fed,) = exe.run({"x": x2, "w": np.full(2, 9, np.float32)}).values()
        np.testing.assert_allclose(fed, -9 * np.arcsinh(x2), rtol=1e-6)
    finally:
        registry.remove(Doubled)
