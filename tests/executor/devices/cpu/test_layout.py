"""Transposes, broadcasts and other views: random shapes, element types and instruction sets against numpy."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, bit_patterns, run_native, value_of

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.operands import row_major
from graphkit.ops import F


def transposed(x, perm, threads):
    strides = row_major(x.shape)
    shape = [x.shape[p] for p in perm]
    y = np.ones(shape, x.dtype)
    kernel = native.StridedView(
        "Transpose", x.shape, shape, shape, [strides[p] for p in perm], 0, x.dtype.name, threads
    )
    kernel([x], [y])
    return y


@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transposes_of_random_shapes(dtype, threads, isa):
    rng = np.random.default_rng(dtype.num)
    for seed in range(40):
        rank = int(rng.integers(0, 6))
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8, 16, 17, 33], rank))
        perm = tuple(int(p) for p in rng.permutation(rank))
        x = bit_patterns(shape, dtype, seed)
        assert transposed(x, perm, threads).tobytes() == np.ascontiguousarray(np.transpose(x, perm)).tobytes()


@in_one_item()
@pytest.mark.parametrize(
    "shape", [(67, 129), (128, 64), (1, 300), (300, 2), (300, 3), (3, 300), (0, 5), (513, 1031), (20001, 2)]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64], ids=str)
def test_transposes_of_matrices(shape, dtype, every_isa):
    x = bit_patterns(shape, dtype)
    for threads in (1, 3):
        assert transposed(x, (1, 0), threads).tobytes() == np.ascontiguousarray(x.T).tobytes()


def aligned(shape, dtype, offset=0):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + size].view(dtype).reshape(shape)


@in_one_item("values")
@pytest.mark.parametrize("offset", [0, 16, 32])
@pytest.mark.parametrize(
    ("shape", "perm"),
    [((2048, 2112), (1, 0)), ((3, 1500, 16, 64), (0, 2, 1, 3)), ((9, 200, 2500), (0, 2, 1))],
)
def test_outputs_larger_than_the_caches(shape, perm, offset, isa):
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = np.ascontiguousarray(np.transpose(x, perm))
    y = aligned(expected.shape, np.float32, offset)
    strides = row_major(shape)
    kernel = native.StridedView("Transpose", shape, y.shape, y.shape, [strides[p] for p in perm], 0, "float32", 3)
    kernel([x], [y])
    np.testing.assert_array_equal(y, expected)


def test_views_that_do_not_fit():
    with pytest.raises(native.Error, match="leaves the array"):
        native.StridedView("Slice", [4], [3], [3], [2], 0, "float32")
    with pytest.raises(native.Error, match="leaves the array"):
        native.StridedView("Slice", [4], [2], [2], [-1], 0, "float32")
    with pytest.raises(native.Error, match="has 3 elements"):
        native.StridedView("Slice", [4], [2], [3], [1], 0, "float32")
    with pytest.raises(native.Unsupported):
        native.StridedView("Slice", [4], [2], [2], [1], 0, "complex64")


@in_one_item()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcasts_and_tiles(dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(0, 4))
        shape = tuple(int(n) for n in rng.choice([1, 2, 7, 40], rank))
        x = bit_patterns(shape, dtype, seed)
        target = (3, *(n if n > 1 else int(rng.choice([1, 5, 30])) for n in shape))
        node = F.expand(value_of(x), np.array(target)).node
        assert run_native(node, [x], 3)[0].tobytes() == np.broadcast_to(x, target).tobytes()
        repeats = rng.integers(0, 4, rank)
        node = F.tile(value_of(x), repeats).node
        assert run_native(node, [x], 3)[0].tobytes() == np.tile(x, tuple(repeats)).tobytes()


@pytest.mark.parametrize("shape", [(17, 31), (31, 1029), (300, 47), (97, 307), (2, 33, 65)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64], ids=str)
def test_transposes_with_incomplete_tiles(shape, dtype, every_isa):
    x = np.random.default_rng(8).integers(0, 100, shape).astype(dtype)
    wanted = np.ascontiguousarray(np.swapaxes(x, -1, -2))
    *outer, rows, columns = shape
    strides = [rows * columns] * len(outer) + [1, columns]
    for threads in (1, 3):
        y = np.zeros(wanted.shape, dtype)
        native.StridedView("Transpose", shape, y.shape, y.shape, strides, 0, x.dtype.name, threads)([x], [y])
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("columns", [1, 3, 5, 12, 31, 33])
@pytest.mark.parametrize("repeats", [2, 16, 17])
def test_few_repetitions_of_short_rows(columns, repeats):
    x = np.random.default_rng(9).integers(0, 256, (3, 50, columns)).astype(np.uint8)
    y = np.zeros((3, 50, repeats * columns), np.uint8)
    sizes, strides = (3, 50, repeats, columns), (50 * columns, columns, 0, 1)
    native.StridedView("Tile", x.shape, y.shape, sizes, strides, 0, "uint8", 2)([x], [y])
    np.testing.assert_array_equal(y, np.tile(x, (1, 1, repeats)))


@pytest.mark.parametrize("sizes", [(3, 5, 7), (2, 9, 300), (5, 1, 2000), (4, 3, 1)], ids=str)
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int64], ids=str)
def test_repetitions_of_blocks_of_rows(sizes, dtype):
    """Rows that are repeated within blocks, and blocks that are repeated: one block, and each of two."""
    blocks, rows, columns = sizes
    for originals, repeats in itertools.product((1, 2), (1, 6)):
        x = np.random.default_rng(9).integers(0, 100, (originals, 1, rows, 1, columns)).astype(dtype)
        wanted = np.broadcast_to(x, (originals, blocks, rows, repeats, columns))
        for threads in (1, 3):
            y = np.zeros(wanted.shape, dtype)
            strides = (rows * columns, 0, columns, 0, 1)
            native.StridedView("Tile", x.shape, y.shape, y.shape, strides, 0, x.dtype.name, threads)([x], [y])
            np.testing.assert_array_equal(y, wanted)
