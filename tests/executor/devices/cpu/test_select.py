"""Triangles of matrices, and elements chosen by conditions, against the reference and numpy."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, same_bits, small_integers

from graphkit.executor.devices.cpu import native
from graphkit.ops import F


@in_one_item("values")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("upper", [True, False])
def test_triangles(dtype, upper):
    for shape in [(7, 5), (3, 40, 60), (2, 1, 9)]:
        for k in (-(2**62), -70, -3, 0, 2, 70, 2**62):
            same_bits(lambda x, k: F.trilu(x, k, upper=upper), [small_integers(shape, dtype), np.int64(k)])
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    expected = np.triu(x) if upper else np.tril(x)
    native.Trilu([3, 4], upper, None, "float32")([x], [x])
    np.testing.assert_array_equal(x, expected)


@in_one_item()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_positions_that_are_not_zero(dtype):
    rng = np.random.default_rng(1)
    shapes = [(0,), (5,), (2, 0, 3), (100, 3, 7), (40000,), (3, 70000), (40000, 3), (33, 1025), (2,) * 9]
    for shape in shapes:
        for kept in (0, 0.01, 0.5, 1):
            x = (rng.random(shape) < kept).astype(dtype)
            if dtype.kind in "fV" and x.size:
                x.reshape(-1)[::3] *= np.array(-1).astype(dtype)  # -0 among them
                x.reshape(-1)[::11] = np.nan
            wanted = np.stack(np.nonzero(x.astype(np.float64)))
            for threads in (1, 3):
                (found,) = native.NonZero(dtype.name, threads)([x])
                assert found.dtype == np.int64
                np.testing.assert_array_equal(found, wanted)
    for number in (0, 3):
        (found,) = native.NonZero(dtype.name)([np.array(number).astype(dtype)])
        assert found.shape == (0, int(number != 0))


def test_positions_that_are_not_zero_of_all_bits():
    """Subnormal numbers are not 0."""
    for dtype in (np.float16, np.float32, np.float64):
        tiny = np.nextafter(dtype(0), dtype(1))
        (found,) = native.NonZero(np.dtype(dtype).name)([np.array([tiny, 0, -tiny, -0.0, np.nan, np.inf], dtype)])
        assert found.tolist() == [[0, 2, 4, 5]]


@in_one_item()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_that_a_condition_chooses(dtype):
    rng = np.random.default_rng(2)
    for shape in [(0,), (7,), (3, 4), (2, 0, 3), (5, 600, 3), (300, 200), (70000,)]:
        x = small_integers(shape, dtype)
        for axis in (None, *range(-len(shape), len(shape))):
            size = x.size if axis is None else shape[axis]
            for length in {0, size // 2, size}:
                for kept in (0, 0.4, 1):
                    condition = rng.random(length) < kept
                    wanted = np.compress(condition, x, axis)
                    for threads in (1, 3):
                        (y,) = native.Compress(dtype.name, axis, threads)([x, condition])
                        assert y.dtype == dtype
                        assert y.shape == wanted.shape
                        assert y.tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_every_byte_but_0_is_true():
    condition = np.array([2, 0, 255, 1], np.uint8).view(bool)
    (y,) = native.Compress("float32", 0)([np.arange(4, dtype=np.float32), condition])
    assert y.tolist() == [0, 2, 3]


def test_a_condition_beyond_the_axis():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = native.Compress("float32", 1)([x, np.array([True, False, True, False])])
    assert y.tolist() == [[0, 2], [3, 5]]
    for axis, length in ((0, 3), (1, 4), (None, 7)):
        with pytest.raises(native.Error, match=f"is true at position {length - 1}, which is outside the axis"):
            native.Compress("float32", axis)([x, np.ones(length, bool)])
    with pytest.raises(native.Error, match="must be a vector"):
        native.Compress("float32", 0)([x, np.ones((1, 2), bool)])
    with pytest.raises(native.Error, match="axis 2 of 2"):
        native.Compress("float32", 2)([x, np.ones(2, bool)])
