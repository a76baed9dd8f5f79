"""Positions of extremes and running totals on the card: rows and columns, slices, ties, NaN, both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node

pytestmark = pytest.mark.full


def kernel_of(node: Node) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext())
    assert isinstance(kernel, CardKernel)
    return kernel


def run(emulator: Emulator, node: Node, arrays: list[Any]) -> np.ndarray:
    """Run with both orders of threads; return the result. Elements around it must not be written."""
    y, found = node.output, []
    for order in (0, 1):
        around = np.full(y.tensor.nbytes + 128, 0x5A, np.uint8)
        result = around[64:-64].view(y.dtype.numpy).reshape(y.tensor.static_shape)
        assert not emulator.run(kernel_of(node), arrays, [result], order=order)
        assert (around[:64] == 0x5A).all()
        assert (around[-64:] == 0x5A).all()
        found.append(result)
    assert found[0].tobytes() == found[1].tobytes(), "what comes out depends on which thread comes first"
    return found[0]


# --- positions of extremes --------------------------------------------------------------------------

SHAPES = [((9, 31), 1), ((3, 2000), -1), ((1, 257), 1), ((70, 3), 0), ((2, 40, 5), 1), ((7,), 0)]


@together()
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
def test_positions_of_ties_and_nan(name: str, last: bool, emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, np.int8, np.uint64):
        nodes = []
        for shape, axis in SHAPES:
            x = rng.integers(0, 4, shape).astype(dtype)
            nodes.append((node_of(registry.get("", name)(axis=axis, select_last_index=last), x), x))
            if x.dtype.kind == "f":
                holed = np.where(rng.random(shape) < 0.02, np.nan, x).astype(dtype)
                zeros = (rng.integers(0, 2, shape) * -0.0).astype(dtype)
                nodes += [(nodes[-1][0], other) for other in (holed, zeros)]
        emulator.compile(source for node, _ in nodes for source in kernel_of(node).sources)
        for node, x in nodes:
            np.testing.assert_array_equal(run(emulator, node, [x]), run_node(node, [x])[0])


def test_extremes_of_integers_that_floats_do_not_tell_apart(emulator: Emulator) -> None:
    x = np.full((2, 40), (1 << 63) - 2, np.int64)
    x[:, 33] += 1
    node = node_of(registry.get("", "ArgMax")(axis=1, keepdims=False), x)
    assert run(emulator, node, [x]).tolist() == [33, 33]


# --- running totals ---------------------------------------------------------------------------------

TOTALS: list[tuple[tuple[int, ...], int, int]] = [  # shape, axis, launches
    ((5, 40), 1, 1),  # a block for a row
    ((3, 1024), 1, 1),
    ((2, 5000), -1, 2),  # in slices
    ((9, 32), 1, 1),  # a thread
    ((2, 70, 5), 1, 1),  # a column
    ((700, 3), 0, 2),  # in slices
    ((1,), 0, 1),
]


@together()
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(reverse: bool, exclusive: bool, emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    op = registry.get("", "CumSum")(exclusive=exclusive, reverse=reverse)
    for dtype in (np.float32, np.float64, np.int32):
        nodes = []
        for shape, axis, launches in TOTALS:
            x = (100 * rng.standard_normal(shape)).astype(dtype)
            nodes.append((node_of(op, x, np.int64(axis)), x, np.int64(axis)))
            assert len(kernel_of(nodes[-1][0]).launches) == launches
        emulator.compile(source for node, *_ in nodes for source in kernel_of(node).sources)
        for node, x, along in nodes:
            found, (wanted,) = run(emulator, node, [x, None]), run_node(node, [x, along])
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-2 if dtype is np.float32 else 1e-9)


def test_running_products_wrap_around(emulator: Emulator) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, 3000)) * 2 + 1
    for reverse in (False, True):
        node = node_of(registry.get("", "CumProd")(reverse=reverse), x, np.int64(1))
        np.testing.assert_array_equal(run(emulator, node, [x, None]), run_node(node, [x, np.int64(1)])[0])


def test_half_floats_are_rounded_once(emulator: Emulator) -> None:
    x = np.full((2, 2049), 1, np.float16)
    node = node_of(registry.get("", "CumSum")(), x, np.int64(1))
    assert run(emulator, node, [x, None])[0, -1] == 2048  # where sums of rounded sums stop, and the rounding is a tie
    x[:] = 0.125
    np.testing.assert_array_equal(run(emulator, node, [x, None])[1], (0.125 * np.arange(1, 2050)).astype(np.float16))


def test_totals_in_the_operands_place(emulator: Emulator) -> None:
    for shape, axis, _ in TOTALS:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        node = node_of(registry.get("", "CumSum")(reverse=True), x, np.int64(axis))
        kernel = kernel_of(node)
        assert list(kernel.inplace) == [(0, 0)]
        wanted = run(emulator, node, [x, None])
        emulator.run(kernel, [x, None], [x])
        assert x.tobytes() == wanted.tobytes()


def test_an_axis_that_the_run_tells_has_no_kernel() -> None:
    operands = [Value(TensorType("float32", (3, 4))), Value(TensorType("int64", ()))]
    assert make_launched("cuda", Node(registry.get("", "CumSum")(), operands), KernelContext()) is None


def test_large_operands_count_in_64_bits() -> None:
    x = Value(TensorType("float32", (1 << 16, 1 << 16)))
    node = Node(registry.get("", "ArgMax")(axis=1), [x])
    assert "gk_u64" in kernel_of(node).launches[0].source.parameters


# --- the largest and smallest -----------------------------------------------------------------------

TOPS = [  # shape, axis, k
    ((5, 40), 1, 7),
    ((3, 300), -1, 300),
    ((2, 2500), 1, 50),  # chosen first
    ((2, 2100, 2), 1, 2048),
    ((4, 9, 3), 1, 1),
    ((1, 1), 0, 1),
]


@together()
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "uint64", "int64"])
@pytest.mark.parametrize("largest", [False, True])
def test_the_largest_and_smallest(largest: bool, dtype: str, emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    cases = []
    for shape, axis, k in TOPS:
        x = rng.integers(0, 300, shape).astype(dtype)
        if x.dtype.kind == "f":
            x = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, -0.0, np.inf, -np.inf], shape), x - 150)
        arrays = [x.astype(dtype), np.array([k])]
        cases.append((node_of(registry.get("", "TopK")(axis=axis, largest=largest), *arrays), arrays))
    emulator.compile(source for node, _ in cases for source in kernel_of(node).sources)
    for node, arrays in cases:
        found: list[list[Any]] = []
        for order in (0, 1):
            found.append([np.full(v.tensor.static_shape, 9, v.dtype.numpy) for v in node.outputs])
            assert not emulator.run(kernel_of(node), arrays, found[-1], order=order)
        for a, b, wanted in zip(*found, run_node(node, arrays), strict=True):
            assert a.tobytes() == b.tobytes() == wanted.tobytes()


def test_one_result_of_two(emulator: Emulator) -> None:
    x = np.random.default_rng(0).standard_normal((3, 2500)).astype(np.float32)
    node = node_of(registry.get("", "TopK")(), x, np.array([4]))
    wanted = run_node(node, [x, np.array([4])])
    for position in (0, 1):
        kernel = make_launched("cuda", node, KernelContext(used_outputs=(position == 0, position == 1)))
        assert isinstance(kernel, CardKernel)
        found = [np.empty_like(w) if i == position else None for i, w in enumerate(wanted)]
        emulator.run(kernel, [x, None], found)
        np.testing.assert_array_equal(found[position], wanted[position])


def test_more_than_a_block_sorts_has_no_kernel() -> None:
    x = np.zeros((1, 5000), np.float32)
    node = node_of(registry.get("", "TopK")(), x, np.array([2049]))
    assert make_launched("cuda", node, KernelContext()) is None
