"""The native pools against the operators' references."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import value_of

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel, runs_whole
from graphkit.ir.graph import Node
from graphkit.ops.internal.channels_last_gradient import (
    ChannelsLastAveragePoolGrad,
    ChannelsLastMaxPoolGrad,
    ChannelsLastMaxPoolIndices,
)
from graphkit.ops.nn.lp_pool import LpPool
from graphkit.ops.nn.pool import AveragePool, AveragePoolGrad, MaxPool, MaxPoolGrad
from graphkit.ops.nn.unpool import MaxUnpool
from graphkit.ops.xp import numpy_xp


def random_case(seed: int):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel, strides, dilations = (tuple(int(v) for v in rng.integers(1, high, rank)) for high in (4, 4, 3))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(int(rng.integers(0, k)) for k in kernel * 2)
    spatial = tuple(s + int(rng.integers(0, 6)) for s in span)
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 4)), *spatial)
    ceil = bool(rng.integers(0, 2))
    return shape, dict(kernel_shape=kernel, strides=strides, dilations=dilations, pads=pads, ceil_mode=ceil)


CASES = [
    ((2, 3, 4, 4), dict(kernel_shape=(2, 2), strides=(2, 2))),
    ((1, 2, 6, 6), dict(kernel_shape=(2, 2), pads=(1, 1, 1, 1), strides=(3, 3), ceil_mode=True)),
    ((64, 20, 24, 24), dict(kernel_shape=(2, 2), strides=(2, 2))),
    ((0, 2, 4, 4), dict(kernel_shape=(2, 2))),
    *(random_case(seed) for seed in range(30)),
]


def geometry(op, shape):
    window = op.window_of(shape[2:])
    positions = op.positions(shape[2:], window, op.ceil_mode)
    native_window = native.PoolWindow(window.kernel, window.strides, window.dilations, window.begin, window.end)
    return (*shape[:2], *positions), native_window


def data(shape, seed=3):
    # Few distinct values, so that windows have ties.
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("column_major", [False, True])
def test_max(case, column_major):
    shape, attrs = case
    op = MaxPool(**attrs, storage_order=int(column_major))
    x = data(shape)
    pooled, window = geometry(op, shape)
    y, indices = np.full(pooled, np.nan, np.float32), np.full(pooled, -9, np.int64)
    native.MaxPool(shape, pooled, window, column_major, threads=2)([x], [y, indices])
    expected, where = op.reference(numpy_xp, x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(indices, where)


# Windows that lie in the padding, and such whose first element does.
FAR = [
    ((1, 2, 7, 7), dict(kernel_shape=(2, 3), dilations=(3, 2), pads=(20, 2, 1, 2))),
    ((2, 1, 5), dict(kernel_shape=(2,), strides=(2,), pads=(4, 9))),
    ((1, 1, 3, 2, 4), dict(kernel_shape=(2, 2, 2), dilations=(2, 1, 3), pads=(5, 1, 4, 2, 6, 3))),
]


@in_one_item()
@pytest.mark.parametrize("case", [*FAR, *CASES[4:]], ids=str)
def test_where_nothing_is_more_than_minus_infinity(case):
    """The first element of the window that is not padding counts; 0 where all is."""
    shape, attrs = case
    op = MaxPool(**attrs)
    pooled, window = geometry(op, shape)
    for x in (np.full(shape, -np.inf, np.float32), np.where(data(shape) < 2, -np.inf, data(shape)), data(shape)):
        y, indices = np.full(pooled, np.nan, np.float32), np.full(pooled, -9, np.int64)
        native.MaxPool(shape, pooled, window, threads=2)([x], [y, indices])
        expected, where = op.reference(numpy_xp, x)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(indices, where)


def test_max_of_either_output_alone():
    x = data((2, 3, 6, 6))
    op = MaxPool(kernel_shape=(3, 3), strides=(2, 2))
    pooled, window = geometry(op, x.shape)
    expected, where = op.reference(numpy_xp, x)
    y, indices = np.empty(pooled, np.float32), np.empty(pooled, np.int64)
    step = native.MaxPool(x.shape, pooled, window)
    step([x], [y, None])
    step([x], [None, indices])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(indices, where)


def test_max_lets_nan_win():
    x = np.array([[[[1, np.nan, 3, -np.inf], [2, np.nan, 4, -np.inf]]]], np.float32)
    op = MaxPool(kernel_shape=(2, 2), strides=(2, 2))
    pooled, window = geometry(op, x.shape)
    y, indices = np.empty(pooled, np.float32), np.empty(pooled, np.int64)
    native.MaxPool(x.shape, pooled, window)([x], [y, indices])
    expected, where = op.reference(numpy_xp, x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(indices, where)
    assert indices.tolist() == [[[[1, 6]]]]


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=str)
def test_max_gradient(case):
    shape, attrs = case
    x = data(shape)
    y, indices = map(np.ascontiguousarray, MaxPool(**attrs).reference(numpy_xp, x))
    dy = data(y.shape, 4)
    dx = np.full(shape, np.nan, np.float32)
    native.MaxPoolGrad(dy.shape, shape, 3)([dy, indices], [dx])
    np.testing.assert_array_equal(dx, MaxPoolGrad().reference(numpy_xp, dy, indices, x))


@in_one_item()
@pytest.mark.parametrize("bad", [-1, 16, 10**12])
def test_max_gradient_refuses_indices_of_another_plane(bad):
    indices = np.zeros((1, 2, 1, 1), np.int64)
    indices[0, 1] = bad
    dy, dx = np.ones((1, 2, 1, 1), np.float32), np.empty((1, 2, 2, 4), np.float32)
    step = native.MaxPoolGrad(dy.shape, dx.shape)
    with pytest.raises(native.Error, match="outside the plane of its window"):
        step([dy, indices], [dx])


@in_one_item()
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("include_pad", [False, True])
def test_average_and_its_gradient(case, include_pad):
    shape, attrs = case
    x = data(shape)
    op = AveragePool(**attrs, count_include_pad=include_pad)
    pooled, window = geometry(op, shape)
    y = np.full(pooled, np.nan, np.float32)
    native.AveragePool(shape, pooled, window, include_pad, 2)([x], [y])
    np.testing.assert_allclose(y, op.reference(numpy_xp, x), rtol=1e-6, atol=1e-6)
    dy = data(pooled, 5)
    dx = np.full(shape, np.nan, np.float32)
    native.AveragePoolGrad(pooled, shape, window, include_pad, 2)([dy], [dx])
    expected = AveragePoolGrad(**attrs, count_include_pad=include_pad).reference(numpy_xp, dy, x)
    np.testing.assert_allclose(dx, expected, rtol=1e-5, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("spatial", [(7,), (7, 5), (3, 5, 4)], ids=str)
@pytest.mark.parametrize("include_pad", [False, True])
def test_average_of_whole_planes(spatial, include_pad):
    x = np.random.default_rng(9).standard_normal((3, 20, *spatial)).astype(np.float32)
    op = AveragePool(kernel_shape=spatial, count_include_pad=include_pad)
    kernel = make_kernel("cpu", Node(op, [value_of(x)]), KernelContext(threads=2))
    y = np.full((3, 20, *(1 for _ in spatial)), np.nan, np.float32)
    kernel([x], [y])
    np.testing.assert_allclose(y, op.reference(numpy_xp, x.astype(np.float64)), rtol=1e-5, atol=1e-6)
    assert "Reduce" in repr(kernel)


def special(shape, seed=6):
    """Return normal numbers with some NaN, infinities and zeros of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    chosen = rng.random(shape)
    for k, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
        x[(chosen > k / 50) & (chosen < (k + 1) / 50)] = value
    return x


# Planes that are copied in several parts, all ways to separate strides, rows that no window reads, large windows.
ROWS = [
    ((1, 2, 150, 131), dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))),
    ((2, 1, 70, 200), dict(kernel_shape=(9, 11), pads=(4, 5, 4, 5))),
    ((1, 3, 33, 35), dict(kernel_shape=(5, 4), strides=(3, 3), dilations=(2, 2), pads=(1, 2, 3, 1), ceil_mode=True)),
    ((1, 2, 40, 70), dict(kernel_shape=(3, 6), strides=(1, 4), pads=(0, 3, 0, 2))),
    ((1, 2, 21, 90), dict(kernel_shape=(2, 7), strides=(4, 5), pads=(1, 3, 0, 3))),
    ((1, 2, 21, 200), dict(kernel_shape=(2, 7), strides=(4, 6), pads=(1, 3, 0, 3))),
    ((1, 2, 9, 301), dict(kernel_shape=(2, 9), strides=(1, 7), pads=(0, 5, 0, 5))),
    ((1, 2, 9, 333), dict(kernel_shape=(2, 8), strides=(1, 8), pads=(0, 5, 0, 5))),
    ((1, 2, 9, 299), dict(kernel_shape=(2, 8), strides=(1, 9), pads=(0, 5, 0, 5))),
    ((2, 3, 19, 37), dict(kernel_shape=(1, 1), strides=(2, 2))),
    ((1, 3, 20, 20), dict(kernel_shape=(13, 13), pads=(6, 6, 6, 6))),
    ((3, 2, 7, 7), dict(kernel_shape=(7, 7))),
    ((1, 2, 300, 1), dict(kernel_shape=(3, 1), strides=(2, 1), pads=(1, 0, 1, 0))),
    ((1, 2, 70, 1, 1), dict(kernel_shape=(3, 1, 1), dilations=(2, 1, 1))),
    ((1, 2, 9, 30, 1), dict(kernel_shape=(3, 2, 1), pads=(1, 1, 0, 1, 1, 1), ceil_mode=True)),
    ((2, 2, 1030), dict(kernel_shape=(4,), strides=(4,))),
    ((1, 1, 20000), dict(kernel_shape=(5,), strides=(2,), pads=(2, 2))),
    ((1, 2, 12, 30, 34), dict(kernel_shape=(3, 3, 3), pads=(1, 1, 1, 1, 1, 1))),
    ((1, 2, 9, 64, 70), dict(kernel_shape=(2, 5, 3), strides=(4, 2, 2), dilations=(1, 2, 1))),
]
# Planes side by side: fewer than the lanes of a vector or no multiple of them, blocks of rows, axes of one position,
# windows in the padding, rows between windows.
MANY_PLANES = [
    ((2, 35, 14, 14), dict(kernel_shape=(2, 2), strides=(2, 2))),
    ((1, 16, 8, 8), dict(kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))),
    ((3, 7, 7, 7), dict(kernel_shape=(3, 4), pads=(1, 2, 1, 1))),
    ((5, 11, 7, 5), dict(kernel_shape=(7, 5))),
    ((1, 33, 9, 9), dict(kernel_shape=(5, 1), dilations=(2, 1), strides=(1, 12), pads=(9, 0, 14, 0))),
    ((1, 40, 100, 37), dict(kernel_shape=(9, 9), strides=(9, 9), ceil_mode=True)),
    ((1, 17, 70, 36), dict(kernel_shape=(3, 10), strides=(1, 10), pads=(1, 4, 1, 5))),
    ((2, 9, 1000), dict(kernel_shape=(16,), strides=(16,))),
    ((2, 20, 5000), dict(kernel_shape=(4,), strides=(16,), pads=(3, 30))),
    ((1, 19, 60, 9), dict(kernel_shape=(2, 3), strides=(9, 2), pads=(1, 1, 1, 2), ceil_mode=True)),
    ((1, 5, 12000), dict(kernel_shape=(3,), strides=(20,), dilations=(3,), pads=(2, 30))),
    ((1, 65, 3), dict(kernel_shape=(2,), strides=(2,), pads=(4, 9))),
    # Neighbouring windows that have taps at opposite ends of the image.
    ((1, 16, 101), dict(kernel_shape=(2,), dilations=(101,), pads=(1, 1))),
    ((1, 6, 4), dict(kernel_shape=(2,), dilations=(4,), pads=(2, 1))),
    ((1, 12, 6), dict(kernel_shape=(3,), dilations=(6,), pads=(2, 9))),
    ((2, 16, 3, 4, 5), dict(kernel_shape=(2, 3, 3), strides=(1, 2, 1), pads=(1, 0, 1, 0, 1, 1))),
    ((1, 36, 12, 1, 9), dict(kernel_shape=(5, 1, 9), strides=(2, 1, 9))),
    ((1, 2, 3, 0), dict(kernel_shape=(2, 2), pads=(1, 1, 1, 1))),
]
ALL = [*CASES, *FAR, *ROWS, *MANY_PLANES]


@in_one_item()
@pytest.mark.parametrize("case", ALL, ids=str)
def test_max_without_indices(case, isa):
    shape, attrs = case
    op = MaxPool(**attrs)
    pooled, window = geometry(op, shape)
    for x in (special(shape), np.random.default_rng(7).standard_normal(shape).astype(np.float32)):
        expected, _ = op.reference(numpy_xp, x)
        for threads in (1, 2):
            y = np.full(pooled, 99, np.float32)
            native.MaxPool(shape, pooled, window, threads=threads)([x], [y, None])
            np.testing.assert_array_equal(y, expected)


@in_one_item()
@pytest.mark.parametrize("case", [*CASES, *FAR], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "int8", "uint8"])
def test_max_of_other_element_types(case, dtype):
    shape, attrs = case
    op = MaxPool(**attrs)
    x = np.random.default_rng(8).integers(-100, 100, shape).astype(dtype)
    if dtype == "float64":
        x = special(shape).astype(dtype)
    node = Node(op, [value_of(x)])
    expected, _ = op.reference(numpy_xp, x)
    for threads in (1, 2):
        kernel = make_kernel("cpu", node, KernelContext(threads=threads, used_outputs=(True, False)))
        assert kernel is not None
        y = np.full(expected.shape, 99, dtype)
        kernel([x], [y, None])
        np.testing.assert_array_equal(y, expected)


@in_one_item("values")
@pytest.mark.parametrize("case", ALL, ids=str)
@pytest.mark.parametrize("include_pad", [False, True])
def test_average_of_special_values(case, include_pad, isa):
    shape, attrs = case
    op = AveragePool(**attrs, count_include_pad=include_pad)
    pooled, window = geometry(op, shape)
    for x in (special(shape), np.random.default_rng(7).standard_normal(shape).astype(np.float32)):
        with np.errstate(invalid="ignore"):
            expected = op.reference(numpy_xp, x)
        found = []
        for threads in (1, 2):
            y = np.full(pooled, 99, np.float32)
            native.AveragePool(shape, pooled, window, include_pad, threads)([x], [y])
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
            found.append(y.tobytes())
        assert found[0] == found[1]


@in_one_item()
@pytest.mark.parametrize("case", [*FAR, *ROWS, *MANY_PLANES], ids=str)
def test_working_memory_is_the_planners(case):
    """It grows with the number of threads, up to the memory that they can use at the same time."""
    shape, attrs = case
    pooled, window = geometry(MaxPool(**attrs), shape)
    for make in (native.MaxPool, native.AveragePool):
        kernels = [make(shape, pooled, window, threads=threads) for threads in (1, 2, 1 << 20)]
        one, two, many = (kernel.scratch_bytes for kernel in kernels)
        if kernels[0].implementation in ("padded", "lanes"):
            assert 0 < one <= two <= 2 * one
        assert two <= many <= (1 + np.prod(pooled)) * max(one, 64)
    with_indices = native.MaxPool(shape, pooled, window, with_indices=True, threads=2)
    assert with_indices.scratch_bytes <= 2 * (64 + 8 * pooled[-1])
    gradient = native.AveragePoolGrad(pooled, shape, window, threads=2)
    assert gradient.scratch_bytes <= 2 * (64 + 4 * pooled[-1])


def test_many_small_planes_are_pooled_side_by_side(isa):
    shape, pooled = (1, 64, 14, 14), (1, 64, 7, 7)
    window = native.PoolWindow([2, 2], [2, 2], [1, 1], [0, 0], [0, 0])
    assert native.MaxPool(shape, pooled, window).implementation == "lanes"
    assert native.AveragePool(shape, pooled, window).implementation == "lanes"
    wide = native.PoolWindow([3, 3], [1, 1], [1, 1], [1, 1], [1, 1])
    assert native.MaxPool((1, 2, 90, 90), (1, 2, 90, 90), wide).implementation == "padded"


@in_one_item()
@pytest.mark.parametrize("spatial", [(7,), (7, 5), (3, 5, 4)], ids=str)
def test_max_of_whole_planes(spatial):
    x = special((3, 20, *spatial))
    op = MaxPool(kernel_shape=spatial)
    node = Node(op, [value_of(x)])
    kernel = make_kernel("cpu", node, KernelContext(threads=2, used_outputs=(True, False)))
    y = np.full((3, 20, *(1 for _ in spatial)), 99, np.float32)
    kernel([x], [y])
    expected, where = op.reference(numpy_xp, x)
    np.testing.assert_array_equal(y, expected)
    assert "Reduce" in repr(kernel)
    indices = np.full(y.shape, -9, np.int64)
    make_kernel("cpu", node, KernelContext(threads=2))([x], [y, indices])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(indices, where)


def test_shapes_that_do_not_fit():
    window = native.PoolWindow([2, 2], [2, 2], [1, 1], [0, 0], [0, 0])
    with pytest.raises(native.Error, match="batch or channels differ"):
        native.MaxPool([1, 1, 4, 4], [1, 2, 2, 2], window)
    with pytest.raises(native.Error, match="need 3 entries each"):
        native.AveragePool([1, 1, 4, 4, 4], [1, 1, 2, 2, 2], window)
    with pytest.raises(native.Error, match="one to three spatial dimensions"):
        native.AveragePool([1, 1], [1, 1], window)
    with pytest.raises(native.Error, match="must be positive"):
        native.MaxPool([1, 1, 4, 4], [1, 1, 2, 2], native.PoolWindow([0, 2], [2, 2], [1, 1], [0, 0], [0, 0]))


def channels_last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def with_channels(case, channels):
    shape, attrs = case
    return (shape[0], channels, *shape[2:]), attrs


CASES_OF_CHANNELS = [with_channels(case, (1, 3, 16, 20, 37)[i % 5]) for i, case in enumerate(CASES)]


@in_one_item()
@pytest.mark.parametrize("case", CASES_OF_CHANNELS, ids=str)
def test_max_with_taps_and_its_gradient(case, isa):
    shape, attrs = case
    op = ChannelsLastMaxPoolIndices(**attrs)
    x = channels_last(data(shape))
    pooled, window = geometry(op, shape)
    y = np.full((pooled[0], *pooled[2:], pooled[1]), np.nan, np.float32)
    taps = np.full(y.shape, 255, np.uint8)
    native.ChannelsLastMaxPoolIndices(shape, pooled, window, 2)([x], [y, taps])
    expected, where = op.reference(numpy_xp, x)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(taps, where)
    alone = np.full(y.shape, 255, np.uint8)
    native.ChannelsLastMaxPoolIndices(shape, pooled, window, 2)([x], [None, alone])
    np.testing.assert_array_equal(alone, where)
    maxima = np.full(y.shape, np.nan, np.float32)
    native.ChannelsLastMaxPoolIndices(shape, pooled, window, 2)([x], [maxima, None])
    np.testing.assert_array_equal(maxima, expected)
    dy, dx = data(y.shape, 4), np.full(x.shape, np.nan, np.float32)
    native.ChannelsLastMaxPoolGrad(pooled, shape, window, 2)([dy, taps], [dx])
    np.testing.assert_array_equal(dx, ChannelsLastMaxPoolGrad(**attrs).reference(numpy_xp, dy, taps, x))
    # Where every window has elements, it is the gradient by flat indices.
    _, indices = MaxPool(**attrs).reference(numpy_xp, np.moveaxis(x, -1, 1))
    by_index = MaxPoolGrad().reference(numpy_xp, np.moveaxis(dy, -1, 1), indices, np.moveaxis(x, -1, 1))
    np.testing.assert_array_equal(dx, channels_last(by_index))


def test_taps_of_nan_and_infinity(isa):
    x = np.full((1, 2, 2, 18), -np.inf, np.float32)
    x[0, 1, 0, 1] = np.nan
    x[0, 1, 1, 2] = 3
    y, taps = np.empty((1, 1, 1, 18), np.float32), np.empty((1, 1, 1, 18), np.uint8)
    window = native.PoolWindow((2, 2), (1, 1), (1, 1), (0, 0), (0, 0))
    native.ChannelsLastMaxPoolIndices((1, 18, 2, 2), (1, 18, 1, 1), window)([x], [y, taps])
    assert list(taps[0, 0, 0, :3]) == [0, 2, 3]
    assert np.isnan(y[0, 0, 0, 1])
    assert np.all(taps[0, 0, 0, 3:] == 0)


@in_one_item()
@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize("case", CASES_OF_CHANNELS, ids=str)
def test_gradient_of_averages_with_channels_last(case, include_pad, isa):
    shape, attrs = case
    op = ChannelsLastAveragePoolGrad(**attrs, count_include_pad=include_pad)
    pooled, window = geometry(op, shape)
    dy = channels_last(data(pooled))
    dx = np.full((shape[0], *shape[2:], shape[1]), np.nan, np.float32)
    native.ChannelsLastAveragePoolGrad(pooled, shape, window, include_pad, 2)([dy], [dx])
    expected = op.reference(numpy_xp, dy.astype(np.float64), dx)
    np.testing.assert_allclose(dx, expected, atol=1e-5)


@in_one_item()
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64], ids=lambda t: t.__name__)
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_unpool(dtype, across, threads):
    """Elements go to their positions, in their own plane or another one; NaN and infinities keep their bits."""
    rng = np.random.default_rng(8)
    shape, spatial = (3, 5, 6, 7), (12, 14)
    planes, size = 15, 12 * 14
    x = special(shape).astype(dtype)
    if across:
        indices = rng.permutation(planes * size)[: x.size].reshape(shape)
    else:
        own = np.stack([rng.permutation(size)[:42] + plane * size for plane in range(planes)])
        indices = own.reshape(shape)
    expected = np.zeros(planes * size, dtype)
    expected[indices.reshape(-1)] = x.reshape(-1)
    y = np.full((3, 5, *spatial), 7, dtype)
    native.MaxUnpool(shape, y.shape, np.dtype(dtype).name, threads)([x, indices], [y])
    np.testing.assert_array_equal(y.view(f"u{y.itemsize}").reshape(-1), expected.view(f"u{y.itemsize}"))


@in_one_item()
@pytest.mark.parametrize("bad", [-1, 16, 10**12])
def test_unpool_refuses_indices_outside_the_result(bad):
    x, y = np.ones((1, 2, 1, 2), np.float32), np.empty((1, 2, 2, 4), np.float32)
    indices = np.array([3, 1, bad, 9]).reshape(x.shape)
    with pytest.raises(native.Error, match=rf"index {bad} \(element 2 of the indices\) is outside the result"):
        native.MaxUnpool(x.shape, y.shape, "float32")([x, indices], [y])
    with pytest.raises(native.Error, match="batch or channels differ"):
        native.MaxUnpool(x.shape, (2, 1, 2, 4), "float32")


def test_unpool_without_larger_shape_is_one_step():
    x, indices = np.ones((1, 1, 2, 2), np.float32), np.array([[[[0, 3], [9, 15]]]])
    node = Node(MaxUnpool(kernel_shape=(2, 2), strides=(2, 2)), [value_of(x), value_of(indices)])
    assert runs_whole("cpu", node)
    larger = np.array([1, 1, 5, 5])
    node = Node(MaxUnpool(kernel_shape=(2, 2), strides=(2, 2)), [value_of(v) for v in (x, indices, larger)])
    assert not runs_whole("cpu", node)


@in_one_item()
@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_lp_pool(seed, p, isa):
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel, strides, dilations = (tuple(int(v) for v in rng.integers(1, high, rank)) for high in (4, 4, 3))
    pads = tuple(int(rng.integers(0, k)) for k in kernel * 2)
    spatial = tuple((k - 1) * d + 1 + int(rng.integers(0, 6)) for k, d in zip(kernel, dilations, strict=True))
    shape = (2, 3, *spatial)
    op = LpPool(
        kernel_shape=kernel, strides=strides, dilations=dilations, pads=pads, p=p, ceil_mode=bool(rng.integers(0, 2))
    )
    x = rng.standard_normal(shape).astype(np.float32)
    expected = op.reference(numpy_xp, x)
    window = op.window_of(spatial)
    geometry = native.PoolWindow(window.kernel, window.strides, window.dilations, window.begin, window.end)
    y = np.full(expected.shape, np.nan, np.float32)
    native.LpPool(shape, expected.shape, geometry, p, 2)([x], [y])
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


HUGE = [
    ((2, 10, 4), dict(kernel_shape=(1 << 40,), strides=(1 << 50,), pads=(0, 0))),  # fits nowhere
    ((1, 1, 4), dict(kernel_shape=(1 << 30,), pads=(1 << 29, (1 << 29) - 2))),
    ((1, 2, 3, 2), dict(kernel_shape=(1 << 30, 1 << 30), strides=(9, 7), pads=(1 << 29,) * 4)),
    ((0, 2, 3), dict(kernel_shape=(2,), pads=(1 << 30, 1 << 30))),
    ((1, 1, 2, 1), dict(kernel_shape=(1, 3), strides=(1, 9), pads=(1 << 30, 0, 1 << 30, 0))),
]


@in_one_item()
@pytest.mark.parametrize("case", HUGE, ids=str)
@pytest.mark.parametrize("op", [MaxPool, AveragePool, LpPool], ids=lambda c: c.name)
def test_windows_much_larger_than_the_image(op, case):
    """The time depends on the size of the image, not of the window. Windows without a position have no results."""
    shape, attrs = case
    x = data(shape)
    node = Node(op(**attrs), [value_of(x)])
    kernel = make_kernel("cpu", node, KernelContext(threads=2))
    wanted = node.outputs[0].tensor.static_shape
    if kernel is None:
        assert max(attrs["kernel_shape"]) > 1 << 31, "no more than what the kernels do not count"
        results = op(**attrs).reference(numpy_xp, x)
        assert (results[0] if isinstance(results, tuple) else results).shape == wanted
        return
    results = [np.full(v.tensor.static_shape, np.nan if v.dtype.is_float else 7, v.dtype.numpy) for v in node.outputs]
    kernel([x], results)
    assert np.isfinite(results[0]).all()
    if op is MaxPool and results[0].size:
        ends = x.max(axis=tuple(range(2, x.ndim)))
        np.testing.assert_array_equal(results[0].reshape(*ends.shape, -1)[..., results[0][0, 0].size // 2], ends)
