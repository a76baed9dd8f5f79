"""Elements of the card that follow from where they stand: odd sizes, types, diagonals outside, sequences too long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from card_cases import node_of
from emulator import Emulator
from together import together

from graphkit.executor.devices.cuda.launches import CardKernel
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_launched
from graphkit.ir.graph import Node
from graphkit.ops import registry
from graphkit.ops.evaluate import run_node


def kernel_of(node: Node) -> CardKernel:
    kernel = make_launched("cuda", node, KernelContext())
    assert isinstance(kernel, CardKernel)
    return kernel


def check(emulator: Emulator, node: Node, arrays: list[Any]) -> None:
    y = node.output
    around = np.full(y.tensor.nbytes + 128, 0x5A, np.uint8)
    result = around[64:-64].view(y.dtype.numpy).reshape(y.tensor.static_shape)
    assert not emulator.run(kernel_of(node), [np.ascontiguousarray(a) for a in arrays], [result])
    assert (around[:64] == 0x5A).all()
    assert (around[-64:] == 0x5A).all()
    np.testing.assert_array_equal(result, run_node(node, arrays)[0])


def check_all(emulator: Emulator, cases: Sequence[tuple[Node, list[Any]]]) -> None:
    """Compiled at once."""
    emulator.compile(source for node, _ in cases for source in kernel_of(node).sources)
    for node, arrays in cases:
        check(emulator, node, arrays)


@together()
@pytest.mark.parametrize("value", [np.float32(-0.0), np.float16(1.5), np.int8(-3), np.int64(-1), np.complex64(1j)])
def test_constants(value: Any, emulator: Emulator) -> None:
    for shape in ((1,), (3, 5), (1031,), (2, 512)):
        sizes = np.array(shape)
        check(emulator, node_of(registry.get("", "ConstantOfShape")(value=value.reshape(1)), sizes), [sizes])


def test_ranges(emulator: Emulator) -> None:
    for operands in ((np.int64(-5), np.int64(2000), np.int64(3)), (np.int32(9), np.int32(-300), np.int32(-2))):
        check(emulator, node_of(registry.get("", "Range")(), *operands), list(operands))
    operands = np.float64(-1.5), np.float64(70.1), np.float64(0.3)
    node = node_of(registry.get("", "Range")(), *operands)
    if node.output.tensor.is_static:
        check(emulator, node, list(operands))


@together()
@pytest.mark.parametrize("dtype", ["float16", "bool"])
def test_diagonals_and_triangles(dtype: str, emulator: Emulator) -> None:
    x = np.random.default_rng(0).integers(0, 2, (2, 30, 41)).astype(dtype)
    cases = []
    for k in (-40, -3, 0, 2, 50):
        cases.append((node_of(registry.get("", "EyeLike")(k=k), x[0]), [x[0]]))
        triangles = [registry.get("", "Trilu")(upper=upper) for upper in (True, False)]
        cases += [(node_of(op, x, np.int64(k)), [x, np.int64(k)]) for op in triangles]
    check_all(emulator, cases)
    node, arrays = cases[-1]
    (wanted,) = run_node(node, arrays)
    assert list(kernel_of(node).inplace) == [(0, 0)]
    emulator.run(kernel_of(node), [x, np.array(50)], [x])
    np.testing.assert_array_equal(x, wanted)


def test_one_hot(emulator: Emulator) -> None:
    cases = []
    for dtype in ("int64", "float32", "uint8"):
        indices = np.array([[0, 6, 7, 250], [3, 1, 200, 5]]).astype(dtype)
        if dtype != "uint8":
            indices[0, :3] *= -1
        for axis, values in ((0, [False, True]), (1, [0.5, -2.0]), (-1, [1, 1j])):
            arrays = [indices, np.int64(7), np.array(values)]
            cases.append((node_of(registry.get("", "OneHot")(axis=axis), *arrays), arrays))
    check_all(emulator, cases)


def test_sequences_in_reverse(emulator: Emulator) -> None:
    rng = np.random.default_rng(0)
    for batch_axis, shape in ((0, (3, 40, 6)), (1, (40, 3)), (1, (40, 3, 2, 4))):
        x, lengths = rng.standard_normal(shape).astype(np.float32), np.array([40, 0, 13])
        op = registry.get("", "ReverseSequence")(batch_axis=batch_axis, time_axis=1 - batch_axis)
        node = node_of(op, x, lengths)
        check(emulator, node, [x, lengths])
        lengths[1] = 41
        kernel = kernel_of(node)
        assert emulator.run(kernel, [x, lengths], [np.empty_like(x)])
        assert "longer than the 40 steps" in str(kernel.failure(node, 1))
