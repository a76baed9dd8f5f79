"""Pooling kernels beyond the operators' samples: random windows, ties, NaN, unused results, large sizes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from stand_in import Card
from together import together

import graphkit as gk
from graphkit.errors import TypeMismatch
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, type_of_array
from graphkit.ops import F, registry
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.channels_last_gradient import (
    ChannelsLastAveragePoolGrad,
    ChannelsLastMaxPoolGrad,
    ChannelsLastMaxPoolIndices,
)
from graphkit.ops.internal.channels_last_pool import ChannelsLastAveragePool, ChannelsLastMaxPool
from graphkit.ops.nn.lp_pool import LpPool
from graphkit.ops.nn.pool import AveragePool, AveragePoolGrad, MaxPool, MaxPoolGrad


def kernel_of(node: Node, **context: Any) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext(**context))
    assert isinstance(kernel, CardKernel)
    return kernel


def run(emulator: Emulator, node: Node, arrays: list[Any], **context: Any) -> list[np.ndarray]:
    results = [np.full(v.tensor.static_shape, 77, v.dtype.numpy) for v in node.outputs]
    assert not emulator.run(kernel_of(node, **context), arrays, results)
    return results


def drawn(draw: random.Random) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Draw the sizes of spatial axes, and a window that may include padding."""
    rank = draw.randrange(1, 4)

    def each(*options: int) -> tuple[int, ...]:
        return tuple(draw.choice(options) for _ in range(rank))

    window: dict[str, Any] = {"kernel_shape": each(1, 2, 3, 4), "strides": each(1, 2, 3)}
    window["dilations"] = each(1, 1, 2, 3) if draw.random() < 0.5 else (1,) * rank
    if draw.random() < 0.7:
        window["pads"] = each(0, 1, 2) + each(0, 1, 2)
    else:
        window["auto_pad"] = draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    return each(1, 3, 5, 8, 13), {**window, "ceil_mode": draw.random() < 0.5}


def data(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random elements with ties and some NaN."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, shape).astype(np.float32)
    x[rng.random(shape) < 0.05] = np.nan
    return x


def check(emulator: Emulator, cases: list[tuple[Node, list[Any], bool]]) -> None:
    """cases: nodes on arrays, and whether results are to be the reference's to the bit."""
    emulator.compile(source for node, _, _ in cases for source in kernel_of(node).sources)
    for node, arrays, exact in cases:
        given = [np.ascontiguousarray(array) for array in arrays]
        with np.errstate(invalid="ignore"):
            expected = run_node(node, given)
        for found, wanted in zip(run(emulator, node, given), expected, strict=True):
            if exact:
                np.testing.assert_array_equal(found, wanted, err_msg=str(node.op))
            else:
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5, err_msg=str(node.op))


def places(seed: int) -> tuple[random.Random, dict[str, Any], np.ndarray, np.ndarray, Node] | None:
    """A window, x with its channels first and last, and a pool; None where the window does not fit."""
    draw = random.Random(seed)
    spatial, attrs = drawn(draw)
    x = data((2, 3, *spatial), seed)
    try:
        pool = node_of(MaxPool(**attrs), x)
    except TypeMismatch:
        return None
    return draw, attrs, x, np.moveaxis(x, 1, -1), pool


# Seeds of windows.
WINDOWS = [pytest.param(range(12), id="12"), pytest.param(range(12, 60), id="48 more", marks=pytest.mark.full)]


@pytest.mark.parametrize("seeds", WINDOWS)
def test_any_window(emulator: Emulator, seeds: range) -> None:
    """Channels first and last."""
    cases: list[tuple[Node, list[Any], bool]] = []
    for draw, attrs, x, last, _ in filter(None, map(places, seeds)):
        pad = draw.random() < 0.5
        exact = (
            (MaxPool(**attrs), x),
            (MaxPool(**attrs, storage_order=1), x),
            (ChannelsLastMaxPool(**attrs), last),
            (ChannelsLastMaxPoolIndices(**attrs), last),
        )
        summed = (
            (AveragePool(**attrs, count_include_pad=pad), x),
            (LpPool(**attrs, p=draw.choice([1, 2, 3])), x),
            (ChannelsLastAveragePool(**attrs, count_include_pad=pad), last),
        )
        cases += [(node_of(op, array), [array], True) for op, array in exact]
        cases += [(node_of(op, array), [np.nan_to_num(array)], False) for op, array in summed]
    check(emulator, cases)


@pytest.mark.parametrize("seeds", WINDOWS)
def test_gradients_of_any_window(emulator: Emulator, seeds: range) -> None:
    cases: list[tuple[Node, list[Any], bool]] = []
    for draw, attrs, x, last, pool in filter(None, map(places, seeds)):
        rng = np.random.default_rng(draw.randrange(99))
        dy = rng.integers(-9, 9, pool.outputs[0].tensor.static_shape).astype(np.float32)
        dy_last = np.moveaxis(dy, 1, -1)
        indices, chosen = (
            run_node(node_of(op(**attrs), array), [array])[1]
            for op, array in ((MaxPool, x), (ChannelsLastMaxPoolIndices, last))
        )
        node = Node(MaxPoolGrad(), [Value(type_of_array(dy)), pool.outputs[1], pool.inputs[0]])
        if make_launched("cuda", node, KernelContext()) is not None:
            cases.append((node, [dy, indices, x], True))
        else:
            assert attrs.get("auto_pad") != "VALID", "only padding is a reason"
        cases.append((node_of(ChannelsLastMaxPoolGrad(**attrs), dy_last, chosen, last), [dy_last, chosen, last], True))
        pad = {"count_include_pad": draw.random() < 0.5}
        cases.append((node_of(AveragePoolGrad(**attrs, **pad), dy, x), [dy, x], False))
        cases.append((node_of(ChannelsLastAveragePoolGrad(**attrs, **pad), dy_last, last), [dy_last, last], False))
    check(emulator, cases)


def test_what_nobody_reads_is_not_written(emulator: Emulator) -> None:
    x = data((1, 2, 6, 6), 0)
    node = node_of(MaxPool(kernel_shape=(2, 2)), x)
    (values, indices), wanted = run_node(node, [x]), 77
    for used, expected in (((True, False), (values, None)), ((False, True), (None, indices))):
        found = run(emulator, node, [x], used_outputs=used)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, np.full_like(one, wanted) if other is None else other)


def test_maxima_of_the_least(emulator: Emulator) -> None:
    """If all elements equal the padding, an element wins against padding. A window of padding has the first index."""
    x = np.full((1, 1, 3, 3), -np.inf, np.float32)
    node = node_of(MaxPool(kernel_shape=(2, 2), pads=(2, 2, 2, 2)), x)
    for found, wanted in zip(run(emulator, node, [x]), run_node(node, [x]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_indices_of_unknown_origin(emulator: Emulator) -> None:
    """They have a kernel if none occurs twice. An index out of range sets the kernel's fault."""
    dy = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2)
    x = np.zeros((1, 1, 3, 3), np.float32)
    indices = np.array([0, -1, 5, 3]).reshape(dy.shape)
    assert make_launched("cuda", node_of(MaxPoolGrad(), dy, indices, x), KernelContext()) is None
    node = node_of(MaxPoolGrad(disjoint=True), dy, indices, x)
    np.testing.assert_array_equal(run(emulator, node, [dy, indices, x])[0].reshape(-1), [1, 0, 0, 4, 0, 3, 0, 0, 2])
    kernel = kernel_of(node)
    for outside in (9, -10):
        indices[0, 0, 0, 0] = outside
        assert emulator.run(kernel, [dy, indices, x], [np.empty_like(x)])
    assert "an index is outside" in str(kernel.failure(node, 1))


@together()
@pytest.mark.parametrize("name", ["MaxPool", "AveragePool"])
def test_large_operands_count_in_64_bits(name: str) -> None:
    for size, index in ((1 << 10, "gk_i32"), (1 << 16, "gk_i64")):
        x = Value(TensorType("float32", (1, 1, size, size)))
        node = Node(registry.get("", name)(kernel_shape=(2, 2), strides=(2, 2)), [x])
        assert all(index in source.parameters for source in kernel_of(node).sources)


@together()
@pytest.mark.parametrize("op", [MaxPool, AveragePool, LpPool])
def test_one_text_for_all_sizes(op: Any) -> None:
    entries = {
        kernel_of(node_of(op(kernel_shape=k, strides=s, pads=(1,) * 4), np.zeros(x, np.float32))).sources[0].entry
        for k, s, x in (((2, 2), (1, 2), (1, 2, 8, 9)), ((3, 4), (2, 2), (3, 1, 20, 5)))
    }
    assert len(entries) == 1


def test_more_axes_than_there_are_loops_for() -> None:
    x = np.zeros((1, 1, 2, 2, 2, 2), np.float32)
    assert make_launched("cuda", node_of(MaxPool(kernel_shape=(2,) * 4), x), KernelContext()) is None


def test_training_pools_on_the_card(card: Card) -> None:
    """The gradient of a maximum finds the windows of its pool, for sizes that are known only when it runs too."""
    x = gk.input("x", ["N", 1, 8, 8])
    window: Any = dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    highest, _ = F.max_pool(gk.nn.conv2d(x, 2, kernel=3, pad=1, name="conv"), **window)
    net = gk.Model({"y": gk.nn.linear(gk.flatten(F.average_pool(highest, **window)), 4, name="fc")})
    start = {name: np.array(value) for name, value in net.params.items()}
    losses = {}
    for device in ("cpu", "cuda"):
        net.params.update(start)
        trainer = gk.Trainer(net, "softmax_cross_entropy", gk.optim.SGD(0.1), device=device)
        rng = np.random.default_rng(0)
        losses[device] = [float(trainer.step(rng.random((n, 1, 8, 8), np.float32), np.arange(n) % 4)) for n in (16, 5)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)
    for name in ("MaxPool", "MaxPoolGrad", "AveragePool", "AveragePoolGrad", "Conv", "ConvGradWeight"):
        assert name in card.launched
        assert name not in card.interpreted
