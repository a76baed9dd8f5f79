"""Pads, resizes and blocks of the card beyond the operators' samples: units, modes, operands of values, large sizes."""

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
from graphkit.executor.devices.cuda.launches import CardKernel, Table
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, type_of_array
from graphkit.ops import F
from graphkit.ops.evaluate import run_node
from graphkit.ops.image.resize import Resize, ResizeGrad
from graphkit.ops.nn.im2col import Col2Im, Im2Col
from graphkit.ops.tensor.pad import Pad, PadGrad


def kernel_of(node: Node) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext())
    assert isinstance(kernel, CardKernel)
    return kernel


def check(emulator: Emulator, cases: list[tuple[Node, list[Any]]], tolerance: float = 0.0) -> None:
    emulator.compile(source for node, _ in cases for source in kernel_of(node).sources)
    for node, arrays in cases:
        (expected,) = run_node(node, arrays)
        around = np.full(expected.nbytes + 128, 0x5A, np.uint8)
        y = around[64:-64].view(expected.dtype).reshape(expected.shape)
        assert not emulator.run(kernel_of(node), [a if a is None else np.ascontiguousarray(a) for a in arrays], [y])
        assert (around[:64] == 0x5A).all()
        assert (around[-64:] == 0x5A).all()
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance, err_msg=str(node.op))


def unit(node: Node) -> str:
    (launch,) = kernel_of(node).launches
    return launch.source.parameters[0].removeprefix("const ").rstrip("*")


# --- pads -------------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_any_pad(mode: str, emulator: Emulator) -> None:
    cases, gradients = [], []
    for seed in range(30):
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        shape = tuple(draw.choice((1, 2, 3, 5, 8)) for _ in range(draw.randrange(1, 5)))
        widths = [draw.choice((0, 0, 1, 3, 7, -1)) for _ in range(2 * len(shape))]
        pads = np.array(widths)
        kind = draw.choice((np.float32, np.int8, np.float64, np.int16))
        x = rng.integers(-9, 9, shape).astype(kind)
        value = np.array(5, kind) if mode == "constant" and seed % 2 else None
        op = Pad(mode=mode)
        try:
            node = node_of(op, x, pads, value)
            (y,) = run_node(node, [x, pads, value])
        except TypeMismatch:
            continue  # nothing is left to copy
        cases.append((node, [x, pads, value]))
        if mode != "constant":
            dy, real = rng.integers(-9, 9, y.shape).astype(np.float32), x.astype(np.float32)
            gradients.append((node_of(PadGrad(mode=mode), dy, real, pads), [dy, real, pads]))
    assert len(cases) > 15
    check(emulator, cases)
    check(emulator, gradients, 1e-6)


@together()
@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("float32", (3, 5, 8), "gk_pack<gk_u32, 4>"),
        ("float16", (3, 5, 6), "gk_pack<gk_u16, 2>"),
        ("bool", (3, 16), "gk_pack<gk_u8, 16>"),
        ("complex128", (3, 7), "gk_pair"),
    ],
)
def test_neighbours_are_moved_together(kind: str, shape: tuple[int, ...], expected: str, emulator: Emulator) -> None:
    """Along axes that are not padded."""
    x = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
    pads = np.array([1, *[0] * (len(shape) - 1), 2, *[0] * (len(shape) - 1)])
    nodes = [node_of(Pad(mode=mode), x, pads) for mode in ("constant", "edge")]
    assert [unit(node) for node in nodes] == [expected] * 2
    check(emulator, [(node, [x, pads]) for node in nodes])


def test_nothing_to_copy_is_left_to_the_reference() -> None:
    x, pads = np.zeros((2, 3), np.float32), np.array([-2, 0, 3, 0])
    assert make_launched("cuda", node_of(Pad(mode="edge"), x, pads), KernelContext()) is None


def test_pads_of_values() -> None:
    """Known only when the program runs: no kernel."""
    x, pads = Value(TensorType("float32", (3,))), Value(TensorType("int64", (2,)))
    assert make_launched("cuda", Node(Pad(), [x, pads], types=[TensorType("float32", (5,))]), KernelContext()) is None


def test_large_pads_count_in_64_bits() -> None:
    for size, index in ((1 << 10, "gk_i32"), ((1 << 32) + 1, "gk_i64")):
        x, pads = Value(TensorType("int8", (3, size))), Value(type_of_array(np.array([1, 0, 1, 0])))
        (launch,) = kernel_of(Node(Pad(), [x, pads])).launches
        assert index in launch.source.parameters


# --- resizes ----------------------------------------------------------------------------------------


@together()
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_any_resize(mode: str, emulator: Emulator) -> None:
    cases: list[tuple[Node, list[Any]]] = []
    gradients: list[tuple[Node, list[Any]]] = []
    for seed in range(24):
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        shape = (2, 3, *(draw.choice((1, 4, 5, 9)) for _ in range(draw.randrange(1, 4))))
        sizes = np.array([2, 3, *(draw.choice((1, 3, 7, 10, 12)) for _ in shape[2:])])
        attrs: dict[str, Any] = {"mode": mode, "antialias": mode != "nearest" and draw.random() < 0.3}
        attrs["coordinate_transformation_mode"] = draw.choice(
            ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric"]
        )
        attrs["nearest_mode"] = draw.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
        x, dy = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(sizes).astype(np.float32)
        cases.append((node_of(Resize(**attrs), x, None, None, sizes), [x, None, None, sizes]))
        arrays = [dy, x, None, None, sizes]
        gradients.append((node_of(ResizeGrad(**attrs), *arrays), arrays))
    check(emulator, cases, 0.0 if mode == "nearest" else 1e-5)
    check(emulator, gradients, 1e-5)


def test_neighbours_of_channels_are_copied_together() -> None:
    x, sizes = np.zeros((2, 4, 4, 8), np.float32), np.array([2, 8, 8, 8])
    assert unit(node_of(Resize(), x, None, None, sizes)) == "gk_pack<gk_u32, 4>"


def test_integers_between_elements_are_left_to_the_reference() -> None:
    """They are cut off or rounded in the end; nearest ones are copied."""
    x, sizes = np.zeros((4, 4), np.int32), np.array([8, 8])
    assert make_launched("cuda", node_of(Resize(mode="linear"), x, None, None, sizes), KernelContext()) is None
    assert unit(node_of(Resize(), x, None, None, sizes)) == "gk_u32"


def test_tables_are_of_the_axes_alone() -> None:
    """Memory for weights is linear in the sizes of axes."""
    x = Value(TensorType("float32", (8, 64, 500, 500)))
    node = Node(Resize(mode="linear"), [x, None, None, Value(type_of_array(np.array([8, 64, 1000, 1000])))])
    tables = [a.array for launch in kernel_of(node).launches for a in launch.arguments if isinstance(a, Table)]
    assert len(tables) == 6
    assert sum(table.nbytes for table in tables) < 2 * 1000 * 2 * 12


def test_a_program_keeps_the_tables_of_its_kernels(card: Card) -> None:
    """Of several sizes, each more than once."""
    x = gk.input("x", [1, 2, "H", 4])
    net = gk.Model({"y": F.resize(x, None, np.array([1, 1, 2, 1.5], np.float32), mode="linear")})
    exe = net.compile("cuda")
    for height in (3, 5, 3, 5):
        array = np.random.default_rng(height).random((1, 2, height, 4), np.float32)
        expected = net.compile().run({"x": array})["y"]
        np.testing.assert_allclose(exe.run({"x": array})["y"], expected, rtol=1e-5)
    assert card.launched.count("Resize") == 2
    assert "Resize" not in card.interpreted


# --- blocks -----------------------------------------------------------------------------------------


def test_any_block(emulator: Emulator) -> None:
    cases: list[tuple[Node, list[Any]]] = []
    for seed in range(24):
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        rank = draw.randrange(1, 4)
        image = [draw.choice((3, 5, 8)) for _ in range(rank)]
        block = np.array([draw.choice((1, 2, 3)) for _ in range(rank)])
        attrs = {
            "strides": [draw.choice((1, 2)) for _ in range(rank)],
            "dilations": [draw.choice((1, 1, 2)) for _ in range(rank)],
            "pads": [draw.choice((0, 1, 2)) for _ in range(2 * rank)],
        }
        x = rng.integers(-9, 9, (2, 3, *image)).astype(np.float32)
        try:
            node = node_of(Im2Col(**attrs), x, block)
        except TypeMismatch:
            continue
        columns = rng.integers(-9, 9, node.output.tensor.static_shape).astype(draw.choice((np.float32, np.int8)))
        cases.append((node, [x, block]))
        cases.append((node_of(Col2Im(**attrs), columns, np.array(image), block), [columns, np.array(image), block]))
    assert len(cases) > 20
    check(emulator, cases)
