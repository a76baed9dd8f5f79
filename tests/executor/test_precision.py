"""precision="bf16": rounding where matrices meet, nothing else; refused where the processor has no such arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import UnsupportedError
from graphkit.executor.cpu import native
from graphkit.executor.params import ParamStore
from graphkit.executor.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F

needs_bfloat16 = pytest.mark.skipif(not native.has_bfloat16(), reason="the processor has no bfloat16 arithmetic")


def network() -> tuple[Graph, ParamStore, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((16, 3, 3, 3), dtype=np.float32),
        "v": rng.standard_normal((16, 16, 3, 3), dtype=np.float32),
        "m": rng.standard_normal((16, 10), dtype=np.float32),
        "b": rng.standard_normal(10, dtype=np.float32),
    }
    types = {name: TensorType("float32", a.shape) for name, a in arrays.items()}
    w, v, m, b = (Value(types[name], name, role="parameter") for name in arrays)
    x = Value(TensorType("float32", ("N", 3, 12, 12)), "x")
    h = F.relu(F.conv(x, w, pads=(1, 1, 1, 1)))
    h = F.add(F.relu(F.conv(h, v, pads=(1, 1, 1, 1))), h)
    y = F.add(F.mat_mul(F.reduce_mean(h, np.array([2, 3]), keepdims=False), m), b)
    return Graph([x, w, v, m, b], [y]), ParamStore(types, arrays), rng.standard_normal((2, 3, 12, 12), dtype=np.float32)


@needs_bfloat16
def test_results_are_near_and_rounded() -> None:
    graph, params, x = network()
    exact = Executor(graph, params)(x)[0]
    exe = Executor(graph, params, precision="bf16")
    rounded = exe(x)[0]
    assert rounded.dtype == np.float32
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-5 < error < 2e-2
    kinds: dict[str, Any] = {s.op: s for s in exe.plan.steps}
    conv = kinds["ai.graphkit.ChannelsLastConv"]
    assert conv.kernel == "native"
    assert "bfloat16" in conv.inputs[0].type


@needs_bfloat16
def test_products_in_a_chain_hand_bfloat16_on() -> None:
    rng = np.random.default_rng(0)
    x = h = Value(TensorType("float32", (4, 32)), "x")
    for _ in range(3):
        h = F.relu(F.mat_mul(h, F.constant(value=rng.standard_normal((32, 32), dtype=np.float32))))
    exe = Executor(Graph([x], [h]), ParamStore({}), precision="bf16")
    steps = [s.op for s in exe.plan.steps if s.kernel not in ("constant", "view")]
    assert steps == ["Cast", *["ai.graphkit.FusedMatMul"] * 3, "Cast"]


def test_refused_without_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def has_bfloat16() -> bool:
            return False

    monkeypatch.setattr("graphkit.executor.session.native_module", lambda: Without)
    graph, params, _ = network()
    with pytest.raises(UnsupportedError, match="does not multiply matrices of bfloat16"):
        Executor(graph, params, precision="bf16")


@pytest.mark.parametrize("name", ["lenet", "transformer_lm"])
def test_deterministic_results_do_not_depend_on_threads(name: str) -> None:
    options: dict[str, Any] = {"vocab": 64, "width": 32, "heads": 2, "layers": 2, "length": 24}
    net = gk.models.build(name, **(options if name == "transformer_lm" else {}))
    rng = np.random.default_rng(0)
    feeds = {}
    for value in net.data_inputs:
        shape = [3 if not isinstance(d, int) else d for d in value.tensor.known_shape]
        drawn = rng.standard_normal(shape) if value.dtype.is_float else rng.integers(0, 64, shape)
        feeds[value.name] = drawn.astype(value.dtype.numpy)
    runs = [list(net.compile(threads=n, deterministic=True).run(feeds).values()) for n in (1, 2, 3, 4)]
    for run in runs[1:]:
        for got, want in zip(run, runs[0], strict=True):
            np.testing.assert_array_equal(got, want)
