"""Convolutions of the card beyond the operators' samples: tiles of any height, slices, groups, residuals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import registers
from card_cases import node_of
from card_runs import own_kernel_of as kernel_of
from card_runs import run_own as run
from emulator import Emulator
from together import together

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.evaluate import run_node
from graphkit.ops.internal.channels_last import ChannelsLastConv
from graphkit.ops.internal.channels_last_gradient import ChannelsLastConvGradInput, ChannelsLastConvGradWeight
from graphkit.ops.internal.fused_conv import FusedConv
from graphkit.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight

CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [  # x, w, attributes
    ((2, 5, 13, 11), (7, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 70, 9, 7), (200, 70, 1, 1), {}),
    ((1, 33, 17), (40, 33, 5), {"dilations": (3,), "pads": (6, 6), "strides": (2,)}),
    ((3, 32, 8, 8), (48, 16, 3, 3), {"group": 2, "strides": (2, 2), "pads": (1, 0, 0, 1)}),
    ((1, 3, 30, 31), (17, 3, 7, 7), {"strides": (2, 3), "pads": (3, 3, 3, 3)}),
    ((1, 4, 5, 6, 7), (6, 4, 3, 2, 3), {"pads": (1, 0, 1, 1, 1, 1), "dilations": (1, 2, 1)}),
    ((1, 300, 4, 4), (20, 300, 3, 3), {"pads": (1, 1, 1, 1)}),  # few tiles of many steps
    ((40, 3, 12, 12), (5, 3, 3, 3), {}),
]


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(sum(map(len, shapes)))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def wide(node: Node, arrays: list[np.ndarray]) -> np.ndarray:
    """The reference in float64."""
    given = [a.astype(np.float64) for a in arrays]
    (result,) = run_node(node_of(node.op, *given), given)
    return np.asarray(result)


@together(full=lambda case: CASES.index(case) not in (2, 3, 5, 6))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes(case: Any, emulator: Emulator) -> None:
    x, w = drawn(*case[:2])
    node = node_of(Conv(**case[2]), x, w)
    (dy,) = drawn(node.output.tensor.static_shape)
    nodes = [
        (node, [x, w]),
        (node_of(ConvGradInput(**case[2]), dy, w, x), [dy, w, x]),
        (node_of(ConvGradWeight(**case[2]), x, dy, w), [x, dy, w]),
    ]
    x, w, dy = (np.moveaxis(a, 1, -1).copy() for a in (x, w, dy))
    attrs = {**case[2], "filters_last": True}
    nodes += [
        (node_of(ChannelsLastConv(**attrs), x, w), [x, w]),
        (node_of(ChannelsLastConvGradInput(**attrs), dy, w, x), [dy, w, x]),
        (node_of(ChannelsLastConvGradWeight(**attrs), x, dy, w), [x, dy, w]),
    ]
    emulator.compile(source for node, _ in nodes for source in kernel_of(node).sources)
    for node, arrays in nodes:
        expected = wide(node, arrays)
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(run(emulator, node, arrays), expected, rtol=1e-5, atol=2e-6 * scale)


def test_slices() -> None:
    """Of few tiles the sum is cut; of many it is not."""
    for size, launches in ((4, 2), (400, 1)):
        x, w = (Value(TensorType("float32", shape)) for shape in ((1, 300, size, size), (200, 300, 3, 3)))
        kernel = kernel_of(Node(Conv(), [x, w]))
        assert len(kernel.launches) == launches
        assert (kernel.scratch_bytes > 0) == (launches == 2)
        assert kernel.scratch_bytes <= 512 * 4 * 64 * 128


@together()
@pytest.mark.parametrize("shape", [(1, 40, 6, 6), (2, 300, 5, 5)], ids=["whole", "slices"])
@pytest.mark.parametrize("last", [False, True])
def test_residual_in_place(shape: tuple[int, ...], last: bool, emulator: Emulator) -> None:
    x, w, bias = drawn(shape, (12, shape[1], 3, 3), (12,))
    (residual,) = drawn((shape[0], 12, *shape[2:]))
    op = FusedConv(pads=(1, 1, 1, 1), activation="Relu", residual_last=last)
    node = node_of(op, x, w, bias, residual)
    expected = wide(node, [x, w, bias, residual])
    kernel = kernel_of(node)
    assert kernel.inplace == ((3, 0),)
    assert not emulator.run(kernel, [x, w, bias, residual], [residual])
    np.testing.assert_allclose(residual, expected, rtol=1e-5, atol=1e-4)


def tall(kind: str) -> Node:
    """Enough rows and columns for the tallest tiles."""
    return Node(Conv(group=64), [Value(TensorType(kind, shape)) for shape in ((1, 256, 512), (64 * 128, 4, 1))])


@pytest.mark.full
def test_tall_tiles(emulator: Emulator) -> None:
    x, w = drawn((1, 256, 512), (64 * 128, 4, 1))
    expected = np.einsum("gcp,gmc->gmp", x.reshape(64, 4, 512), w.reshape(64, 128, 4)).reshape(1, -1, 512)
    (launch,) = kernel_of(tall("float32")).launches
    assert launch.blocks == 512
    y = np.empty(expected.shape, np.float32)
    assert not emulator.run(kernel_of(tall("float32")), [x, w], [y])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def channels_last(kind: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> list[Node]:
    """A convolution and its gradients, all with the channels last."""
    image, filters = (Value(TensorType(kind, (s[0], *s[2:], s[1]))) for s in (x, w))
    given = {**attrs, "filters_last": True}
    node = Node(ChannelsLastConv(**given), [image, filters])
    dy = Value(node.output.type)
    data, weights = ChannelsLastConvGradInput(**given), ChannelsLastConvGradWeight(**given)
    return [node, Node(data, [dy, filters, image]), Node(weights, [image, dy, filters])]


@together()
@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
def test_every_tile_compiles_for_cards(kind: str, nvrtc: None) -> None:
    sources = [*kernel_of(tall(kind)).sources]
    for x, w, attrs in (CASES[3], CASES[5], CASES[6]):
        node = Node(Conv(**attrs), [Value(TensorType(kind, x)), Value(TensorType(kind, w))])
        first, filters, dy = node.inputs[0], node.inputs[1], Value(node.output.type)
        data, weights = ConvGradInput(**attrs), ConvGradWeight(**attrs)
        for one in (node, Node(data, [dy, filters, first]), Node(weights, [first, dy, filters])):
            sources += kernel_of(one).sources
        sources += [s for one in channels_last(kind, x, w, attrs) for s in kernel_of(one).sources]
    registers.check(sources, "sm_90")


def test_half_floats_are_summed_as_floats(emulator: Emulator) -> None:
    """In float16 sums of thousands of ones would stop at 2048."""
    x, w = np.ones((1, 500, 3, 3), np.float16), np.ones((1, 500, 3, 3), np.float16)
    assert run(emulator, node_of(Conv(), x, w), [x, w]).item() == 4500
    dy = np.ones((1, 1, 1, 1), np.float16)
    assert (run(emulator, node_of(ConvGradWeight(), x, dy, w.astype(np.float32)), [x, dy, w]) == 1).all()


def test_empty_operands() -> None:
    """No image: nothing to do; no channel: a sum of nothing is left to the reference."""
    for x, w, found in (((0, 3, 5, 5), (4, 3, 3, 3), True), ((2, 0, 5, 5), (4, 0, 3, 3), False)):
        node = Node(Conv(), [Value(TensorType("float32", shape)) for shape in (x, w)])
        kernel = make_launched("cuda", node, KernelContext())
        assert (kernel is not None) == found
        assert kernel is None or kernel_of(node).launches == ()


def test_large_operands_count_in_64_bits() -> None:
    for size, index in ((1 << 9, "gk_u32"), (1 << 16, "gk_u64")):
        x, w = (Value(TensorType("float32", shape)) for shape in ((1, 1, size, size), (4, 1, 3, 3)))
        (launch,) = kernel_of(Node(Conv(), [x, w])).launches
        assert index in launch.source.parameters


def test_one_text_for_all_sizes() -> None:
    entries = set()
    for x, w, attrs in (((2, 3, 8, 9), (33, 3, 3, 3), {}), ((1, 2, 30, 18), (50, 2, 5, 4), {"strides": (2, 1)})):
        arrays = drawn(x, w)
        entries.add(kernel_of(node_of(Conv(**attrs), *arrays)).sources[0].entry)
    assert len(entries) == 1
