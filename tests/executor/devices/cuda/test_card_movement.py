"""Elements that the card moves: units of up to 16 bytes, reversed and repeated views, parts, indices outside."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.cuda.movement.copies import End, copied
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, type_of_array
from graphkit.ops import F, registry
from graphkit.ops.evaluate import run_node


def kernel_of(node: Node, **context: Any) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext(**context))
    assert isinstance(kernel, CardKernel)
    return kernel


def units(node: Node) -> list[str]:
    """The C types that a node's launches move."""
    return [source.parameters[0].removeprefix("const ").rstrip("*") for source in kernel_of(node).sources]


def check(emulator: Emulator, node: Node, arrays: list[Any]) -> None:
    results = [np.full(v.tensor.static_shape, 7, v.dtype.numpy) for v in node.outputs]
    assert not emulator.run(kernel_of(node), [np.ascontiguousarray(a) for a in arrays], results)
    for found, wanted in zip(results, run_node(node, arrays), strict=True):
        np.testing.assert_array_equal(found, wanted)


@together()
@pytest.mark.parametrize(
    ("dtype", "shape", "perm", "unit"),
    [
        ("float32", (5, 6, 8), (1, 0, 2), "gk_pair"),
        ("float16", (5, 6, 8), (1, 0, 2), "gk_pair"),
        ("float32", (5, 6, 6), (1, 0, 2), "gk_u64"),
        ("int8", (5, 6, 6), (1, 0, 2), "gk_u16"),
        ("float32", (5, 6, 8), (2, 0, 1), "gk_u32"),
        ("float64", (5, 6, 7), (1, 0, 2), "gk_u64"),
        ("bool", (3, 5, 7), (1, 2, 0), "gk_u8"),
        ("complex128", (3, 5, 7), (1, 2, 0), "gk_pair"),
    ],
)
def test_transpose(dtype: str, shape: Any, perm: Any, unit: str, emulator: Emulator) -> None:
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    node = node_of(registry.get("", "Transpose")(perm=perm), x)
    assert units(node) == [unit]
    check(emulator, node, [x])


@together()
@pytest.mark.parametrize("seed", range(12))
def test_random_transposes(seed: int, emulator: Emulator) -> None:
    """Includes axes that are larger than a tile, which go through shared memory."""
    draw = random.Random(seed)
    shape = tuple(draw.choice((1, 3, 8, 33, 70)) for _ in range(draw.randrange(2, 4)))
    dtype = draw.choice(("float32", "float16", "int8", "complex128"))
    x = np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)
    perm = draw.sample(range(len(shape)), len(shape))
    check(emulator, node_of(registry.get("", "Transpose")(perm=perm), x), [x])


def test_tiles() -> None:
    cases: Any = ((40, 70), (1, 0), True), ((2, 40, 3, 70), (0, 3, 2, 1), True), ((40, 12), (1, 0), False)
    for shape, perm, tiles in cases:
        (source,) = kernel_of(node_of(registry.get("", "Transpose")(perm=perm), np.zeros(shape, np.float32))).sources
        assert ("tile" in source.text) is tiles


@together()
@pytest.mark.parametrize("seed", range(25))
def test_random_slices(seed: int, emulator: Emulator) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.choice((1, 2, 5, 8, 16)) for _ in range(draw.randrange(1, 5)))
    x = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    steps = [draw.choice((1, 1, 2, 3, -1, -2)) for _ in shape]
    ends = [(0, size) if step > 0 else (size - 1, -size - 1) for size, step in zip(shape, steps, strict=True)]
    starts = [e[0] if step < 0 else draw.randrange(0, s) for e, step, s in zip(ends, steps, shape, strict=True)]
    value = Value(type_of_array(x))
    sliced = F.slice(value, *(np.array(n) for n in (starts, [e[1] for e in ends], range(len(shape)), steps)))
    assert sliced.node is not None
    y = np.full(sliced.tensor.static_shape, 7, np.float32)
    assert not emulator.run(kernel_of(sliced.node), [x], [y])
    expected = x[
        tuple(slice(s, e[1] if step > 0 else None, step) for s, e, step in zip(starts, ends, steps, strict=True))
    ]
    np.testing.assert_array_equal(y, expected)


def test_parts_are_joined_and_split(emulator: Emulator) -> None:
    a, b, none = (np.random.default_rng(0).random((3, n, 4)).astype(np.float32) for n in (2, 5, 0))
    for axis, arrays in ((1, [a, none, b]), (2, [a, a]), (0, [b, b, b])):
        check(emulator, node_of(registry.get("", "Concat")(axis=axis), *arrays), arrays)
    x = Value(TensorType("float32", (3, 7, 4)))
    node = F.split(x, np.array([2, 5]), axis=1)[0].node
    array = np.random.default_rng(1).random((3, 7, 4)).astype(np.float32)
    results = [np.full((3, n, 4), 7, np.float32) for n in (2, 5)]
    emulator.run(kernel_of(node), [array, None], results)
    np.testing.assert_array_equal(results[0], array[:, :2])
    np.testing.assert_array_equal(results[1], array[:, 2:])
    assert len(kernel_of(node, used_outputs=(False, True)).launches) == 1


@together()
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(("shape", "axis"), [((50, 8), 0), ((3, 50, 2), 1), ((50,), 0), ((2, 3, 50), -1)])
def test_rows_by_index(shape: Any, axis: int, kind: Any, emulator: Emulator) -> None:
    x = np.random.default_rng(0).random(shape).astype(np.float32)
    indices = np.random.default_rng(1).integers(-50, 50, (4, 9)).astype(kind)
    node = node_of(registry.get("", "Gather")(axis=axis), x, indices)
    check(emulator, node, [x, indices])
    kernel = kernel_of(node)
    assert "an index is outside axis" in kernel.fault
    for outside in (50, -51, np.iinfo(kind).min, np.iinfo(kind).max):
        indices[2, 3] = outside
        assert emulator.run(kernel, [x, indices], [np.empty(node.output.tensor.static_shape, np.float32)])


def test_large_moves_count_in_64_bits() -> None:
    launch = copied((1 << 17, 1 << 16), End((1, 1 << 17)), End((1 << 16, 1)), 1, np.uint8(0), np.uint8(0))
    assert launch is not None
    assert "gk_u64" in launch.source.parameters


def test_strings_are_not_moved() -> None:
    x = Value(TensorType("string", (2, 3)))
    assert make_launched("cuda", Node(registry.get("", "Transpose")(), [x]), KernelContext()) is None
