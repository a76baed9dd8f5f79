"""Pointwise kernels of the card beyond the operators' samples: shapes, repeated operands, accesses, faults, regions."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import THREADS, CardKernel
from graphkit.executor.devices.cuda.text.axes import Axes, merged
from graphkit.executor.devices.cuda.text.indexing import magic
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.operands import repeating
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops import F, registry
from graphkit.ops.evaluate import evaluate, run_node
from graphkit.ops.internal.fused import Fused


def kernel_of(node: Node, **context: Any) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext(**context))
    assert isinstance(kernel, CardKernel)
    return kernel


def run(emulator: Emulator, node: Node, arrays: list[np.ndarray]) -> np.ndarray:
    y = np.full(node.output.tensor.static_shape, 77, node.output.dtype.numpy)
    assert not emulator.run(kernel_of(node), arrays, [y])
    return y


def text_of(node: Node) -> str:
    (source,) = kernel_of(node).sources
    return source.text


SHAPES = [
    ((7,), (7,)),
    ((1,), ()),
    ((3000,), ()),
    ((5, 8), (8,)),
    ((5, 8), (5, 1)),
    ((5, 7), (7,)),
    ((2, 1, 4), (1, 3, 4)),
    ((2, 3, 4, 5, 6), (3, 1, 5, 1)),
    ((2, 1, 4, 1, 6), (3, 1, 5, 1)),
    ((1, 4, 1, 9), (2, 1, 3, 1)),
    ((3, 1025, 4), (1025, 1)),
    ((1, 1), (1, 1)),
    ((0, 4), (4,)),
]


TYPES = [np.float32, np.float16, np.int8, np.float64]


@together(full=lambda shapes, dtype: SHAPES.index(shapes) % 4 != TYPES.index(dtype))
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: np.dtype(d).name)
def test_operands_are_repeated(shapes: Any, dtype: Any, emulator: Emulator) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]
    for order in itertools.permutations(arrays):
        node = node_of(registry.get("", "Sub")(), *order)
        np.testing.assert_array_equal(run(emulator, node, list(order)), run_node(node, order)[0])


@together(full=lambda seed: seed > 4)
@pytest.mark.parametrize("seed", range(20))
def test_random_shapes(seed: int, emulator: Emulator) -> None:
    draw, rng = random.Random(seed), np.random.default_rng(seed)
    shape = [draw.choice((1, 2, 3, 4, 8, 13)) for _ in range(draw.randrange(1, 6))]
    kinds = [np.bool_, np.float32, np.float32]
    arrays = []
    for kind in kinds:
        kept = [size if draw.random() < 0.7 else 1 for size in shape][draw.randrange(len(shape)) :]
        arrays.append((10 * rng.standard_normal(kept)).astype(kind))
    node = node_of(registry.get("", "Where")(), *arrays)
    np.testing.assert_array_equal(run(emulator, node, arrays), run_node(node, arrays)[0])


def test_accesses_are_of_16_bytes() -> None:
    add = registry.get("", "Add")
    for dtype, width in ((np.float32, 4), (np.float16, 8), (np.int8, 16), (np.float64, 2)):
        x, row, one = np.zeros((6, 32), dtype), np.zeros(32, dtype), np.zeros((), dtype)
        for arrays in ((x, x), (x, row), (x, one), (x, x[:, :1])):
            text = text_of(node_of(add(), *arrays))
            assert f", {width}>(y0 + at" in text
    odd = text_of(node_of(add(), np.zeros((6, 31), np.float32), np.zeros(31, np.float32)))
    assert "gk_pack" not in odd, "rows that do not begin at 16 bytes"


def test_other_sizes_need_no_other_source() -> None:
    add = registry.get("", "Add")
    entries = {
        kernel_of(node_of(add(), np.zeros((a, b), np.float32), np.zeros(b, np.float32))).sources[0].entry
        for a, b in ((3, 8), (1000, 16), (7, 4096))
    }
    assert len(entries) == 1


@together()
@pytest.mark.parametrize("operator", ["Div", "Mod", "Pow"])
def test_an_integer_divided_by_zero_sets_the_fault(operator: str, emulator: Emulator) -> None:
    a, b = np.array([0, 3, 4], np.int32), np.array([2, 1, 1], np.int32)
    zero = np.array([-1, 1, 1] if operator == "Pow" else [1, 0, 1], np.int32)
    node = node_of(registry.get("", operator)(), a, b)
    kernel, y = kernel_of(node), np.empty(3, np.int32)
    assert kernel.fault.startswith("integer division by zero in ")
    assert not emulator.run(kernel, [a, b], [y])
    assert emulator.run(kernel, [a, zero], [y])


def test_results_in_the_place_of_operands(emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    a, row = rng.standard_normal((50, 12), np.float32), rng.standard_normal(12, np.float32)
    node = node_of(registry.get("", "Sub")(), a, row)
    kernel = kernel_of(node)
    assert list(kernel.inplace) == [(0, 0)]
    expected = a - row
    assert not emulator.run(kernel, [a, row], [a])
    np.testing.assert_array_equal(a, expected)
    less = kernel_of(node_of(registry.get("", "Less")(), a, a))
    assert list(less.inplace) == [], "booleans are smaller"


def test_a_region_with_several_results(emulator: Emulator) -> None:
    x, w = Value(TensorType("float32", (9, 20))), Value(TensorType("float32", (20,)))
    grown = F.tanh(x * w + 1.5)
    body = Graph([x, w], [grown, grown > 0.9, F.cast(grown * grown, to="float16")])
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(v.tensor.static_shape).astype(np.float32) for v in (x, w)]
    node = Node(Fused(body=body), [Value(v.type) for v in (x, w)])
    results = [np.zeros(v.tensor.static_shape, v.dtype.numpy) for v in node.outputs]
    assert not emulator.run(kernel_of(node), arrays, results)
    for found, expected in zip(results, evaluate(body, arrays), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-3 if found.dtype == np.float16 else 1e-6)
    alone = kernel_of(node, used_outputs=(False, True, False))
    truth = np.zeros((9, 20), bool)
    emulator.run(alone, arrays, [None, truth, None])
    np.testing.assert_array_equal(truth, results[1])


def test_large_results_count_in_64_bits() -> None:
    x = Value(TensorType("float32", (1 << 20, 4096)))
    (launch,) = kernel_of(Node(registry.get("", "Relu")(), [x])).launches
    assert launch.source.parameters[-1] == "gk_u64"
    assert launch.blocks == (1 << 32) // (4 * THREADS)


def test_division_by_multiplication() -> None:
    rng = np.random.default_rng(0)
    numbers = np.unique(np.concatenate([rng.integers(0, 1 << 31, 2000), [0, 1, (1 << 31) - 1]])).astype(np.uint64)
    for divisor in [*range(1, 300), 4095, 4096, 4097, (1 << 30) + 1, (1 << 31) - 1]:
        multiplier, shift = magic(divisor)
        assert multiplier < 1 << 32
        near = np.concatenate([numbers, numbers // divisor * divisor])
        high = near * np.uint64(multiplier) >> np.uint64(32)
        np.testing.assert_array_equal((high + near) >> np.uint64(shift), near // divisor)


def test_axes_are_joined() -> None:
    def joined(shape: tuple[int, ...], *operands: tuple[int, ...]) -> Axes:
        return merged(shape, *(repeating(operand, shape) for operand in operands))

    assert joined((2, 3, 4), (2, 3, 4), ()) == ((24,), ((1,), (0,)))
    assert joined((2, 3, 4), (2, 3, 4), (4,)) == ((6, 4), ((4, 1), (0, 1)))
    assert joined((2, 3, 4), (2, 3, 4), (3, 1)) == ((2, 3, 4), ((12, 4, 1), (0, 1, 0)))
    assert joined((1, 1), (1, 1), ()) == ((1,), ((0,), (0,)))
