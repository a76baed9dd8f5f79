"""precision="bf16": rounding where matrices meet, nothing else; refused where the processor has no such arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UnsupportedError
from graphkit.executor.devices.cpu import native
from graphkit.executor.run import device_passes
from graphkit.executor.run.params import ParamStore
from graphkit.executor.run.session import Executor
from graphkit.ir.graph import Graph, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate, run_node
from graphkit.passes.layout.round_products import round_products

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


@needs_bfloat16
@in_one_item()
@pytest.mark.parametrize(("channels", "group"), [(3, 1), (4, 1), (6, 2), (4, 2)])
def test_transposed_convolutions_over_an_odd_number_of_channels_stay_as_they_are(channels: int, group: int) -> None:
    rng = np.random.default_rng(0)
    x = Value(TensorType("float32", (2, channels, 5, 5)), "x")
    w = rng.standard_normal((channels, 8 // group, 3, 3), dtype=np.float32)
    graph = Graph([x], [F.conv_transpose(x, F.constant(value=w), group=group, strides=(2, 2))])
    exe = Executor(graph, ParamStore({}), precision="bf16")
    array = rng.standard_normal((2, channels, 5, 5), dtype=np.float32)
    error = np.abs(exe(array)[0] - Executor(graph, ParamStore({}))(array)[0]).max()
    assert not exe.plan.fallbacks
    assert (error == 0) == (channels // group % 2 == 1)


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def gradients(group: int = 1, channels: int = 32) -> tuple[Graph, list[np.ndarray]]:
    """Both gradients of a convolution of x [4, channels, 9, 9]."""
    rng = np.random.default_rng(0)
    shapes = {"x": (4, channels, 9, 9), "w": (64, channels // group, 3, 3), "dy": (4, 64, 7, 7)}
    x, w, dy = (Value(TensorType("float32", shape), name) for name, shape in shapes.items())
    outputs = [F.conv_grad_input(dy, w, x, group=group), F.conv_grad_weight(x, dy, w, group=group)]
    return Graph([x, w, dy], outputs), [rng.standard_normal(shape, dtype=np.float32) for shape in shapes.values()]


@needs_bfloat16
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("deterministic", [False, True])
def test_gradients_of_convolutions(group: int, deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    graph, arrays = gradients(group)
    exe = Executor(graph, ParamStore({}), precision="bf16", deterministic=deterministic, threads=2)
    dx, dw = exe(*arrays)
    steps = [s for s in exe.plan.steps if "ConvGrad" in s.op]
    assert len(steps) == 2
    assert all("bfloat16" in operand.type for s in steps for operand in s.inputs[:2])
    # They are those of rounded operands, with sums in float32; the gradient of the weights is not rounded after that.
    exact_dx, exact_dw = Executor(graph, ParamStore({}))(*(rounded(a) for a in arrays))
    np.testing.assert_array_equal(dx, rounded(dx))
    np.testing.assert_allclose(dx, exact_dx, rtol=2**-8, atol=1e-4)
    np.testing.assert_allclose(dw, exact_dw, rtol=1e-5, atol=1e-4)
    assert np.mean(dw != rounded(dw)) > 0.9
    # So does the reference.
    for got, want in zip(evaluate(round_products(graph), arrays), (dx, dw), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2**-7, atol=1e-4)


@needs_bfloat16
def test_gradients_of_one_filter_for_each_channel_are_not_rounded() -> None:
    graph, arrays = gradients(group=64, channels=64)
    exact = Executor(graph, ParamStore({}))(*arrays)
    for got, want in zip(Executor(graph, ParamStore({}), precision="bf16")(*arrays), exact, strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_gradient_of_weights_has_their_type() -> None:
    x, dy = (Value(TensorType("bfloat16", shape), n) for shape, n in (((2, 3, 5, 5), "x"), ((2, 4, 3, 3), "dy")))
    w = Value(TensorType("float32", (4, 3, 3, 3)), "w")
    dw = F.conv_grad_weight(x, dy, w)
    assert dw.dtype is DType.FLOAT32
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.tensor.static_shape).astype(ml_dtypes.bfloat16) for v in (x, dy)]
    arrays.append(np.zeros((4, 3, 3, 3), np.float32))
    (direct,) = run_node(dw.node, arrays)
    expanded = Graph([x, dy, w], [dw.node.op.expand(x, dy, w)])
    np.testing.assert_allclose(evaluate(expanded, arrays)[0], direct, rtol=1e-5, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("has", [True, False, None])
def test_half_floats_are_computed_in_float32_without_the_arithmetic(has: bool | None, monkeypatch: Any) -> None:
    native = None if has is None else SimpleNamespace(has_bfloat16=lambda: has)
    monkeypatch.setattr(device_passes, "native_module", lambda: native)
    assert device_passes._computed_in_float32() == ({DType.FLOAT16} if has else {DType.FLOAT16, DType.BFLOAT16})


@pytest.mark.parametrize(("onednn", "who"), [(True, "this processor"), (False, "an engine without oneDNN")])
def test_refused_without_the_arithmetic(onednn: bool, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def has_bfloat16() -> bool:
            return False

        @staticmethod
        def has_onednn() -> bool:
            return onednn

    monkeypatch.setattr("graphkit.executor.run.precision.native_module", lambda: Without)
    graph, params, _ = network()
    with pytest.raises(UnsupportedError, match=f"{who} does not multiply matrices of bfloat16"):
        Executor(graph, params, precision="bf16")


@in_one_item()
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
