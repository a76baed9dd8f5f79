"""Softmax of the card: rows of every length, kept and read again; other axes; slices; and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from card_cases import node_of
from card_runs import kernel_of, run
from emulator import Emulator
from together import together

from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

SIZES = [1, 31, 40, 256, 257, 2000, 2100]


@together(full=lambda size, name: SIZES.index(size) % 2 == (name == "Softmax"))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name: str, size: int, emulator: Emulator) -> None:
    for dtype, tolerance in ((np.float32, 1e-6), (np.float16, 2e-3)):
        x = (8 * np.random.default_rng(size).standard_normal((9, size))).astype(dtype)
        node = node_of(registry.get("", name)(axis=-1), x)
        (found,) = run(emulator, node, [x])
        np.testing.assert_allclose(found, run_node(node, [x])[0], rtol=10 * tolerance, atol=tolerance)


def test_softmax_of_what_is_hidden_and_of_nan(emulator: Emulator) -> None:
    x = np.zeros((4, 50), np.float32)
    x[0, 1:] = -np.inf
    x[1] = -np.inf
    x[2, 7] = np.nan
    x[3, 3] = 1e30
    node = node_of(registry.get("", "Softmax")(axis=1), x)
    (found,) = run(emulator, node, [x])
    assert found[0].tolist() == [1] + [0] * 49
    assert np.isnan(found[1:3]).all()
    assert found[3].tolist() == [0] * 3 + [1] + [0] * 46


# Groups along every axis: lanes and columns, slices of few groups, tiles that are not full.
SHAPES = [
    ((4, 37, 5), 1),
    ((300, 3), 0),
    ((9000, 3), 0),
    ((2, 70000), 1),
    ((3, 600, 40), 1),
    ((1, 1, 7), 0),
    ((70000, 2, 1), 1),
]


@together(full=lambda case: SHAPES.index(case) in (0, 4, 6))
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_softmax_along_any_axis(case: tuple[tuple[int, ...], int], emulator: Emulator) -> None:
    shape, axis = case
    x = (4 * np.random.default_rng(1).standard_normal(shape)).astype(np.float32)
    dy = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for name, log in (("Softmax", False), ("LogSoftmax", True)):
        node = node_of(registry.get("", name)(axis=axis), x)
        (y,) = run(emulator, node, [x])
        np.testing.assert_allclose(y, run_node(node, [x.astype(np.float64)])[0], rtol=1e-5, atol=1e-6)
        node = node_of(registry.get("ai.graphkit", "SoftmaxGrad")(axis=axis, log=log), dy, y)
        (dx,) = run(emulator, node, [dy, y])
        np.testing.assert_allclose(
            dx, run_node(node, [dy.astype(np.float64), y.astype(np.float64)])[0], rtol=1e-4, atol=1e-5
        )


def test_few_groups_are_cut_into_slices() -> None:
    for shape, axis, launches in (((9000, 3), 0, 3), ((2, 70000), 1, 3), ((70000, 2), 1, 1)):
        node = node_of(registry.get("", "Softmax")(axis=axis), np.zeros(shape, np.float32))
        assert len(kernel_of(node).launches) == launches


def test_slices_of_what_is_hidden_and_of_nan(emulator: Emulator) -> None:
    x = np.full((5, 40000), -np.inf, np.float32)
    x[0, 39000] = 2
    x[1, :3] = 1
    x[3, 20000:] = np.nan
    x[4] = 0
    x[4, 1] = np.inf
    node = node_of(registry.get("", "Softmax")(axis=1), x)
    (found,) = run(emulator, node, [x])
    assert np.flatnonzero(found[0]).tolist() == [39000]
    assert found[0, 39000] == 1
    np.testing.assert_allclose(found[1, :4], [1 / 3, 1 / 3, 1 / 3, 0])
    assert np.isnan(found[2:]).all()


@together()
@pytest.mark.parametrize("shape", [(3, 40), (3, 4000), (2, 70000)], ids=str)
def test_softmax_in_the_place_of_its_operand(shape: tuple[int, ...], emulator: Emulator) -> None:
    x, dy = np.random.default_rng(0).standard_normal((2, *shape)).astype(np.float32)
    node = node_of(registry.get("", "Softmax")(axis=1), x)
    kernel, expected = kernel_of(node), run_node(node, [x])[0]
    assert list(kernel.inplace) == [(0, 0)]
    emulator.run(kernel, [x], [x])
    np.testing.assert_allclose(x, expected, rtol=1e-5)
    node = node_of(registry.get("ai.graphkit", "SoftmaxGrad")(axis=1), dy, x)
    kernel, expected = kernel_of(node), run_node(node, [dy, x])[0]
    assert list(kernel.inplace) == [(0, 0), (1, 0)]
    for place in (0, 1):
        operands = [dy.copy(), x.copy()]
        emulator.run(kernel, operands, [operands[place]])
        np.testing.assert_allclose(operands[place], expected, rtol=1e-4, atol=1e-6)


def test_large_operands_count_in_64_bits() -> None:
    for shape, axis in (((1 << 16, 1 << 16), 0), ((1 << 8, 1 << 24), 1)):
        x = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), shape, (0, 0))
        kernel = kernel_of(node_of(registry.get("", "Softmax")(axis=axis), x))
        assert all("gk_u64" in launch.source.parameters for launch in kernel.launches)
