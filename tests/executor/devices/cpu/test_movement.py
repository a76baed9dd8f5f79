"""Kernels that move data whose places are known: random shapes, element types and instruction sets against numpy."""

import ml_dtypes
import numpy as np
import pytest

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.cpu._base import row_major
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ir.graph import Value
from graphkit.ir.types import TensorType, dtype_of
from graphkit.ops import F, as_value
from graphkit.ops.evaluate import run_node

DTYPES = [np.dtype(t) for t in (bool, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)]
DTYPES += [np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


def data(shape, dtype, seed=0):
    """Every bit pattern that the type has, NaN included; booleans are 0 and 1."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype.kind == "b" else 256, size * dtype.itemsize, np.uint8)
    return raw.view(dtype).reshape(shape)


def input_of(array):
    return Value(TensorType(dtype_of(array.dtype), array.shape), "x")


def run(node, arrays, threads=1):
    kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True,) * len(node.outputs)))
    assert kernel is not None
    outputs = [np.full(v.tensor.static_shape, 1, v.dtype.numpy) for v in node.outputs]
    kernel(arrays, outputs)
    return outputs


def transposed(x, perm, threads):
    strides = row_major(x.shape)
    shape = [x.shape[p] for p in perm]
    y = np.ones(shape, x.dtype)
    kernel = native.StridedView(
        "Transpose", x.shape, shape, shape, [strides[p] for p in perm], 0, x.dtype.name, threads
    )
    kernel([x], [y])
    return y


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_transposes_of_random_shapes(dtype, threads, isa):
    rng = np.random.default_rng(dtype.num)
    for seed in range(40):
        rank = int(rng.integers(0, 6))
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8, 16, 17, 33], rank))
        perm = tuple(int(p) for p in rng.permutation(rank))
        x = data(shape, dtype, seed)
        assert transposed(x, perm, threads).tobytes() == np.ascontiguousarray(np.transpose(x, perm)).tobytes()


@pytest.mark.parametrize("shape", [(67, 129), (128, 64), (1, 300), (300, 2), (300, 3), (3, 300), (0, 5), (513, 1031)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64], ids=str)
def test_transposes_of_matrices(shape, dtype, isa):
    x = data(shape, dtype)
    for threads in (1, 3):
        assert transposed(x, (1, 0), threads).tobytes() == np.ascontiguousarray(x.T).tobytes()


def aligned(shape, dtype, offset=0):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + size].view(dtype).reshape(shape)


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_and_their_gradients(dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(30):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.integers(0, 20, rank))
        starts, ends = (rng.integers(-25, 25, rank) for _ in range(2))
        steps = rng.choice([-3, -2, -1, 1, 2, 3], rank)
        x = data(shape, dtype, seed)
        bounds = [starts, ends, np.arange(rank), steps]
        node = F.slice(input_of(x), *bounds).node
        (expected,) = run_node(node, [x, *bounds])
        for threads in (1, 3):
            assert run(node, [x], threads)[0].tobytes() == np.ascontiguousarray(expected).tobytes()
        if dtype == np.float32:
            grad = F.slice_grad(input_of(expected), input_of(x), *bounds).node
            (spread,) = run_node(grad, [expected, x, *bounds])
            assert run(grad, [expected])[0].tobytes() == spread.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_broadcasts_and_tiles(dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(0, 4))
        shape = tuple(int(n) for n in rng.choice([1, 2, 7, 40], rank))
        x = data(shape, dtype, seed)
        target = (3, *(n if n > 1 else int(rng.choice([1, 5, 30])) for n in shape))
        node = F.expand(input_of(x), np.array(target)).node
        assert run(node, [x], 3)[0].tobytes() == np.broadcast_to(x, target).tobytes()
        repeats = rng.integers(0, 4, rank)
        node = F.tile(input_of(x), repeats).node
        assert run(node, [x], 3)[0].tobytes() == np.tile(x, tuple(repeats)).tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pieces(dtype, threads):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(1, 4))
        shape = [int(n) for n in rng.choice([1, 3, 8, 50], rank)]
        axis = int(rng.integers(0, rank))
        sizes = [int(n) for n in rng.choice([0, 1, 2, 5, 64, 300], int(rng.integers(1, 6)))]
        parts = [data((*shape[:axis], n, *shape[axis + 1 :]), dtype, seed + i) for i, n in enumerate(sizes)]
        whole = np.concatenate(parts, axis=axis)
        y = np.ones(whole.shape, dtype)
        native.Concat([p.shape for p in parts], axis, dtype.name, threads)(parts, [y])
        assert y.tobytes() == whole.tobytes()
        outputs = [np.ones(p.shape, dtype) for p in parts]
        kernel = native.Split(whole.shape, sizes, axis, dtype.name, threads)
        kernel([whole], outputs)
        assert [o.tobytes() for o in outputs] == [p.tobytes() for p in parts]
        outputs[-1][...] = 1
        kernel([whole], [None] * (len(parts) - 1) + [outputs[-1]])
        assert outputs[-1].tobytes() == parts[-1].tobytes()


def test_pieces_that_do_not_fit():
    with pytest.raises(native.Error, match="differ beside axis 0"):
        native.Concat([[2, 3], [2, 4]], 0, "float32")
    with pytest.raises(native.Error, match="do not add up to axis 1"):
        native.Split([2, 3], [1, 1], 1, "float32")


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_paddings(mode, dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.choice([2, 5, 40], rank))
        pads = rng.integers(-1, 4, 2 * rank)
        pads[:rank] *= rng.integers(0, 2, rank)
        x, value = data(shape, dtype, seed), data((), dtype, seed + 1)
        operands = [pads, value] if mode == "constant" and seed % 2 else [pads]
        node = F.pad(input_of(x), pads, *(map(input_of, operands[1:])), mode=mode).node
        kernel = make_kernel("cpu", node, KernelContext(threads=3))
        y = np.ones(node.output.tensor.static_shape, dtype)
        kernel([x, *operands], [y])
        expected = node.op.reference(np, x, *operands)
        assert y.tobytes() == expected.tobytes()


def test_positions_outside_their_axis():
    with pytest.raises(native.Error, match="position 4 is outside axis 1"):
        native.Pad([2, 4], [None, [0, 4]], [4], None, "float32")
    with pytest.raises(native.Error, match="a map is needed"):
        native.ResizeNearest([2, 4], [None], b"\0\0\0\0", "float32")


@pytest.mark.parametrize("attrs", [{}, {"exclusive": True}, {"reverse": True}, {"exclusive": True, "reverse": True}])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3000,), 0), ((9, 501), 1), ((9, 501), 0), ((3, 40, 130), 1), ((4, 0), 1)]
)
def test_running_sums(shape, axis, attrs):
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64, np.uint32, np.uint64):
        x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.dtype(dtype))
        node = F.cum_sum(input_of(x), np.int64(axis), **attrs).node
        (expected,) = run_node(node, [x, np.int64(axis)])
        for threads in (1, 3):
            assert run(node, [x], threads)[0].tobytes() == expected.tobytes()


def resized(x, sizes, threads, **attrs):
    node = F.resize(input_of(x), None, None, as_value(np.array(sizes)), **attrs).node
    return run(node, [x], threads)[0], run_node(node, [x, None, None, np.array(sizes)])[0]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((2, 3, 33, 47), (2, 3, 70, 95)),
        ((1, 40, 50, 3), (1, 71, 23, 3)),
        ((5, 7), (3, 90)),
        ((1, 2, 9, 9, 9), (1, 2, 20, 5, 9)),
    ],
)
def test_resizing(mode, coordinates, shape, sizes, isa):
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    for threads in (1, 3):
        got, expected = resized(x, sizes, threads, mode=mode, coordinate_transformation_mode=coordinates)
        if mode == "nearest":
            np.testing.assert_array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.kind != "b"], ids=str)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resizing_every_number_type(mode, dtype):
    x = np.random.default_rng(3).integers(0, 100, (2, 3, 17, 19)).astype(dtype)
    got, expected = resized(x, (2, 3, 31, 9), 3, mode=mode)
    assert got.dtype == dtype
    if dtype.kind in "iu":  # a sum on the border of two integers may fall to either side
        assert np.abs(got.astype(np.float64) - expected.astype(np.float64)).max() <= 1
        assert (got != expected).mean() < 0.02
    else:
        tolerance = {2: 1e-2, 4: 1e-5, 8: 1e-13}[dtype.itemsize]
        np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)
