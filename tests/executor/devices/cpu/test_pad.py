"""Padding in every mode and element type against the reference."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, bit_patterns, value_of

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ops import F


@in_one_item("values")
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_paddings(mode, dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.choice([2, 5, 40], rank))
        pads = rng.integers(-1, 4, 2 * rank)
        pads[:rank] *= rng.integers(0, 2, rank)
        x, value = bit_patterns(shape, dtype, seed), bit_patterns((), dtype, seed + 1)
        operands = [pads, value] if mode == "constant" and seed % 2 else [pads]
        node = F.pad(value_of(x), pads, *(map(value_of, operands[1:])), mode=mode).node
        kernel = make_kernel("cpu", node, KernelContext(threads=3))
        y = np.ones(node.output.tensor.static_shape, dtype)
        kernel([x, *operands], [y])
        expected = node.op.reference(np, x, *operands)
        assert y.tobytes() == expected.tobytes()


@in_one_item()
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("pads", [(0, 1, 3, 2, 4, 3), (2, 3, 1, 0, 0, 1), (-1, 3, -2, 2, -3, 3)])
def test_rows_with_elements_alone_at_their_ends(mode, threads, pads):
    x = bit_patterns((40, 20, 50), np.int32)
    node = F.pad(value_of(x), np.array(pads), mode=mode).node
    kernel = make_kernel("cpu", node, KernelContext(threads=threads))
    y = np.ones(node.output.tensor.static_shape, x.dtype)
    kernel([x, np.array(pads)], [y])
    np.testing.assert_array_equal(y, node.op.reference(np, x, np.array(pads)))


def test_positions_outside_their_axis():
    with pytest.raises(native.Error, match="position 4 is outside axis 1"):
        native.Pad([2, 4], [None, [0, 4]], [4], None, "float32")
    with pytest.raises(native.Error, match="a map is needed"):
        native.ResizeNearest([2, 4], [None], b"\0\0\0\0", "float32")
