"""Quantised convolutions with channels last: the same integers, and transposes at the borders only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.quantised import QLinearAdd, QLinearGlobalAveragePool, QLinearMul, TableLookup
from graphkit.passes.cleanup import CLEANUP
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.layout.channels_last import channels_last

ZERO, SCALE = np.array(7, np.uint8), np.float32(0.05)
rng = np.random.default_rng(0)


def drawn(*shape: int) -> Any:
    return F.constant(value=rng.integers(-128, 128, shape).astype(np.int8))


def conv(x: Any, channels: int, taken: int, kernel: int = 3, rank: int = 2, **attrs: Any) -> Value:
    w = drawn(channels, taken, *(kernel,) * rank)
    y: Value = F.q_linear_conv(x, SCALE, ZERO, w, np.float32(0.01), np.array(0, np.int8), SCALE, ZERO, **attrs)
    return y


def binary(op: Any, a: Value, b: Value) -> Value:
    parameters = (F.constant(value=np.asarray(SCALE)), F.constant(value=ZERO))
    return Node(op, [a, *parameters, b, *parameters, *parameters]).output


def converted(build: Any, shape: tuple[Any, ...] = ("N", 3, 9, 8)) -> list[str]:
    """The operators after the pass, which leaves the results as they are."""
    x = Value(TensorType("uint8", shape), "x")
    graph = Graph([x], [build(x)])
    result = run_passes(channels_last(graph), CLEANUP)
    assert [v.type for v in result.outputs] == [v.type for v in graph.outputs]
    array = rng.integers(0, 256, [d if isinstance(d, int) else 2 for d in shape]).astype(np.uint8)
    for got, want in zip(evaluate(result, [array]), evaluate(graph, [array]), strict=True):
        np.testing.assert_array_equal(got, want)
    return [node.op.name for node in result.nodes if node.op.name != "Constant"]


MIDDLES = {
    "sum with another convolution": lambda h: binary(QLinearAdd(), h, conv(h, 6, 6, pads=(1, 1, 1, 1))),
    "product": lambda h: binary(QLinearMul(), h, h),
    "table": lambda h: Node(TableLookup(), [h, F.constant(value=np.arange(256, dtype=np.uint8)[::-1])]).output,
    "pool": lambda h: F.max_pool(h, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))[0],
    "concatenation": lambda h: F.concat(h, h, axis=1),
    "padding": lambda h: F.pad(h, np.array([0, 0, 1, 2, 0, 0, 0, 1]), np.array(3, np.uint8)),
    "by whole tensors": lambda h: F.quantize_linear(F.dequantize_linear(h, SCALE, ZERO), np.float32(0.1), ZERO),
    "by channels": lambda h: F.quantize_linear(
        F.dequantize_linear(h, np.full(6, 0.05, np.float32), np.arange(6, dtype=np.uint8), axis=1), SCALE, ZERO
    ),
    "by blocks": lambda h: F.quantize_linear(
        F.dequantize_linear(h, np.full((2, 2, 7, 6), 0.05, np.float32), axis=1, block_size=3), SCALE, ZERO
    ),
}


@in_one_item()
@pytest.mark.parametrize("name", MIDDLES)
def test_no_transposes_in_the_middle(name: str) -> None:
    def network(x: Value) -> Value:
        middle = MIDDLES[name](conv(x, 6, 3))
        return conv(middle, 5, 12 if name == "concatenation" else 6, 1)

    found = converted(network, (2 if name == "by blocks" else "N", 3, 9, 8))
    assert "QLinearConv" not in found
    outer = [found[0], found[-1]]
    # Of constants for blocks one transpose remains, which is computed once.
    assert outer == ["Transpose", "Transpose"] or name == "by blocks"
    assert found.count("Transpose") <= (3 if name == "by blocks" else 2)


def test_means_end_such_a_part() -> None:
    def network(x: Value) -> Value:
        parameters = [F.constant(value=np.asarray(SCALE)), F.constant(value=ZERO)] * 2
        mean = Node(QLinearGlobalAveragePool(), [conv(x, 6, 3), *parameters]).output
        return F.flatten(mean)

    assert "ChannelsLastQLinearGlobalAveragePool" in converted(network)


@in_one_item()
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_all_numbers_of_axes(rank: int) -> None:
    found = converted(lambda x: F.conv_integer(x, drawn(4, 3, *(2,) * rank)), ("N", 3, *(5,) * rank))
    assert found == ["Transpose", "ChannelsLastConvInteger", "Transpose"]


def test_a_network_runs_natively_at_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    x = gk.input("x", ["N", 3, 12, 12])
    h = conv(F.quantize_linear(x, SCALE, ZERO), 16, 3, pads=(1, 1, 1, 1))
    h = binary(QLinearAdd(), h, conv(h, 16, 1, pads=(1, 1, 1, 1), group=16))
    net = gk.Model({"y": F.dequantize_linear(h, SCALE, ZERO)})
    exe = net.compile(threads=2)
    for batch in (1, 3, 0, 2):
        images = rng.standard_normal((batch, 3, 12, 12)).astype(np.float32)
        np.testing.assert_array_equal(exe.run({"x": images})["y"], evaluate(net.graph, [images])[0])
    assert not exe.plan.fallbacks
