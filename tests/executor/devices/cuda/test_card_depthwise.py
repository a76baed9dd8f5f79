"""Convolutions of the card with one filter for each channel: lines, strides, dilations, mirrored filters, slices."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import registers
from card_cases import node_of
from emulator import Emulator, waits
from together import together

from graphkit.errors import TypeMismatch
from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.channels_last import ChannelsLastConv
from graphkit.ops.internal.channels_last_gradient import ChannelsLastConvGradInput, ChannelsLastConvGradWeight
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight


def kernel_of(node: Node) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext())
    assert isinstance(kernel, CardKernel)
    return kernel


def check(emulator: Emulator, node: Node, arrays: list[np.ndarray]) -> None:
    """Against the reference in float64; the same bits whichever thread comes first."""
    wide = [a.astype(np.float64) for a in arrays]
    (expected,) = run_node(node_of(node.op, *wide), wide)
    kernel = kernel_of(node)
    results = []
    for order in (0, 1) if any(map(waits, kernel.sources)) else (0,):
        around = np.full(expected.size + 32, 77, node.output.dtype.numpy)
        y = around[16:-16].reshape(expected.shape)
        assert not emulator.run(kernel, arrays, [y], order=order)
        assert (around[:16] == 77).all()
        assert (around[-16:] == 77).all()
        results.append(y)
    assert len({y.tobytes() for y in results}) == 1
    scale = float(np.abs(expected).max(initial=1))
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=2e-6 * scale, err_msg=str(node.op))


def geometries(channels: int, seeds: range) -> list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]]:
    """Shapes of x and w, and attributes: any rank, filters narrow and wide, with and without strides and dilations."""
    found = []
    for seed in seeds:
        draw = random.Random(seed)
        rank = draw.choice((1, 2, 2, 3))

        def each(*options: int, rank: int = rank, draw: random.Random = draw) -> tuple[int, ...]:
            return tuple(draw.choice(options) for _ in range(rank))

        attrs = {"group": channels, "strides": each(1, 1, 2, 3), "dilations": each(1, 1, 1, 2)}
        attrs["pads"] = each(0, 1, 2) + each(0, 1, 2)
        if draw.random() < 0.4:
            attrs["strides"] = (1,) * rank
        kernel = each(1, 2, 3, 3, 5) if draw.random() < 0.8 else each(2, 11)
        x = (2, channels, *each(5, 8, 12, 13))
        try:
            y = Conv(**attrs).infer(TensorType("float32", x), TensorType("float32", (channels, 1, *kernel)))
        except TypeMismatch:
            continue
        if 0 not in y.static_shape:
            found.append((x, (channels, 1, *kernel), attrs))
    return found


NAMES = {"gk_depthwise", "gk_depthwise_lines", "gk_depthwise_grad_data", "gk_depthwise_grad_weights"}


@together(full=lambda channels: channels == 6)
@pytest.mark.parametrize("channels", [3, 6, 36])
def test_any_window_with_channels_last(channels: int, emulator: Emulator) -> None:
    """Of one channel for each thread, of two and of four; filters in either order, which is one."""
    rng = np.random.default_rng(0)
    cases = []
    for number, (x_shape, w_shape, attrs) in enumerate(geometries(channels, range(channels, channels + 8))):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape))
        y = node_of(Conv(**attrs), x, w).output.tensor.static_shape
        x, dy = np.moveaxis(x, 1, -1).copy(), rng.standard_normal((*y[:1], *y[2:], y[1])).astype(np.float32)
        attrs["filters_last"] = number % 2 == 0
        w = np.moveaxis(w, 1, -1).copy() if attrs["filters_last"] else w
        cases += [
            (node_of(ChannelsLastConv(**attrs), x, w), [x, w]),
            (node_of(ChannelsLastConvGradInput(**attrs), dy, w, x), [dy, w, x]),
            (node_of(ChannelsLastConvGradWeight(**attrs), x, dy, w), [x, dy, w]),
        ]
    emulator.compile(source for node, _ in cases for source in kernel_of(node).sources)
    names = {source.entry.rpartition("_")[0] for node, _ in cases for source in kernel_of(node).sources}
    assert names >= NAMES - {"gk_depthwise"}
    for node, arrays in cases:
        check(emulator, node, arrays)


def test_any_window(emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for x_shape, w_shape, attrs in geometries(3, range(24)):
        x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape))
        node = node_of(Conv(**attrs), x, w)
        dy = rng.standard_normal(node.output.tensor.static_shape).astype(np.float32)
        cases += [
            (node, [x, w]),
            (node_of(ConvGradInput(**attrs), dy, w, x), [dy, w, x]),
            (node_of(ConvGradWeight(**attrs), x, dy, w), [x, dy, w]),
        ]
    emulator.compile(source for node, _ in cases for source in kernel_of(node).sources)
    names = {source.entry.rpartition("_")[0] for node, _ in cases for source in kernel_of(node).sources}
    assert names >= NAMES
    for node, arrays in cases:
        check(emulator, node, arrays)


@together()
@pytest.mark.parametrize("shape", [(3, 2, 40, 41), (1, 2, 3, 3)], ids=["slices", "whole"])
def test_gradient_by_weights(shape: tuple[int, ...], emulator: Emulator) -> None:
    rng = np.random.default_rng(1)
    attrs: dict[str, Any] = {"group": 2, "pads": (1, 1, 1, 1)}
    x, dy, w = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape, (2, 1, 3, 3)))
    node = node_of(ConvGradWeight(**attrs), x, dy, w)
    assert len(kernel_of(node).launches) == (2 if shape[0] == 3 else 1)
    check(emulator, node, [x, dy, w])


def test_gradient_by_weights_with_channels_last(emulator: Emulator) -> None:
    """A tile of channels that is full, and one that is not; slices of positions."""
    rng = np.random.default_rng(1)
    attrs: dict[str, Any] = {"group": 40, "pads": (1, 1, 1, 1)}
    x, dy, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 14, 15, 40), (2, 14, 15, 40), (40, 1, 3, 3)))
    node = node_of(ChannelsLastConvGradWeight(**attrs), x, dy, w)
    assert len(kernel_of(node).launches) == 2
    check(emulator, node, [x, dy, w])


@together()
@pytest.mark.parametrize("strides", [(1, 1), (3, 3)], ids=str)
def test_epilogue_in_place_with_channels_last(strides: tuple[int, int], emulator: Emulator) -> None:
    rng = np.random.default_rng(2)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 9, 9, 4), (4, 1, 3, 3), (4,)))
    op = ChannelsLastConv(group=4, pads=(1, 1, 1, 1), strides=strides, activation="Relu")
    residual = rng.standard_normal(node_of(op, x, w, bias).output.tensor.static_shape).astype(np.float32)
    x[0, 4, 4, 1] = residual[0, 0, 0, 2] = np.nan
    arrays = [x, w, bias, residual]
    node = node_of(op, *arrays)
    (expected,) = run_node(node, arrays)
    assert kernel_of(node).inplace == ((3, 0),)
    assert not emulator.run(kernel_of(node), arrays, [residual])
    np.testing.assert_allclose(residual, expected, rtol=1e-5, atol=1e-5)
    assert np.isnan(residual).any()


@together()
@pytest.mark.parametrize("strides", [(1, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("width", [8, 9])
def test_epilogue_in_place(strides: tuple[int, int], width: int, emulator: Emulator) -> None:
    rng = np.random.default_rng(2)
    x, w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, width), (3, 1, 3, 3), (3,)))
    op = FusedConv(group=3, pads=(1, 1, 1, 1), strides=strides, activation="Relu")
    y = node_of(op, x, w, bias).output.tensor.static_shape
    residual = rng.standard_normal(y).astype(np.float32)
    node = node_of(op, x, w, bias, residual)
    arrays = [x, w, bias, residual]
    (expected,) = run_node(node, arrays)
    kernel = kernel_of(node)
    assert kernel.inplace == ((3, 0),)
    assert not emulator.run(kernel, arrays, [residual])
    np.testing.assert_allclose(residual, expected, rtol=1e-5, atol=1e-5)


@together()
@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
def test_every_filter_compiles_for_cards(kind: str, nvrtc: None) -> None:
    sources = []
    for size in (3, 5, 9):
        attrs: dict[str, Any] = {"group": 8, "strides": (2, 2)}
        x, w = (Value(TensorType(kind, shape)) for shape in ((2, 8, 64, 64), (8, 1, size, size)))
        node = Node(Conv(**attrs), [x, w])
        dy = Value(node.output.type)
        for one in (node, Node(ConvGradInput(**attrs), [dy, w, x]), Node(ConvGradWeight(**attrs), [x, dy, w])):
            sources += kernel_of(one).sources
        last = Value(TensorType(kind, (2, 64, 64, 8)))
        node = Node(ChannelsLastConv(**attrs, activation="Relu"), [last, w])
        dy = Value(node.output.type)
        data, weights = ChannelsLastConvGradInput(**attrs), ChannelsLastConvGradWeight(**attrs)
        for one in (node, Node(data, [dy, w, last]), Node(weights, [last, dy, w])):
            sources += kernel_of(one).sources
    registers.check(sources, "sm_90")


def test_large_operands_count_in_64_bits() -> None:
    """Results that are many more than the elements of x, too."""
    for size, pad, index in ((1 << 9, 0, "gk_u32"), (1 << 16, 0, "gk_u64"), (1 << 15, 1 << 14, "gk_u64")):
        x, w = (Value(TensorType("float32", shape)) for shape in ((1, 1, size, size), (1, 1, 3, 3)))
        (launch,) = kernel_of(Node(Conv(pads=(pad,) * 4), [x, w])).launches
        assert index in launch.source.parameters
