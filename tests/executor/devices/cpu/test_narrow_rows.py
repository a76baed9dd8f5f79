"""Rows of a few elements, which kernels exchange with their columns in registers, on all instruction sets."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_runs import bit_patterns

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.operands import row_major

SIZES = range(2, 10)
# Fewer rows than a vector has lanes, whole vectors, and more than a tile.
ROWS = (1, 15, 64, 150, 1003)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64], ids=str)
def test_transposes_of_narrow_rows(dtype, every_isa):
    for shape in ((rows, size) for rows in ROWS for size in SIZES):
        for x in (bit_patterns(shape, dtype), bit_patterns(shape[::-1], dtype), bit_patterns((3, *shape), dtype)):
            result = np.ascontiguousarray(np.swapaxes(x, -1, -2))
            strides = row_major(x.shape)
            strides = [*strides[:-2], strides[-1], strides[-2]]
            y = np.ones(result.shape, dtype)
            native.StridedView("Transpose", x.shape, y.shape, y.shape, strides, 0, x.dtype.name, 1)([x], [y])
            assert y.tobytes() == result.tobytes(), shape


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_softmax_and_reductions_of_narrow_rows(name, every_isa):
    rng, tolerance = np.random.default_rng(1), {"float32": 2e-6, "float64": 1e-14}[name]
    for shape in ((rows, size) for rows in ROWS for size in SIZES):
        x = rng.standard_normal(shape).astype(name)
        wide = x.astype(np.float64)
        log_sum = np.log(np.exp(wide).sum(1))
        y = np.empty_like(x)
        for log, wanted in ((False, np.exp(wide - log_sum[:, None])), (True, wide - log_sum[:, None])):
            native.Softmax(shape, 1, name, log, 1)([x], [y])
            np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=tolerance)
        total = np.empty(shape[0], x.dtype)
        reductions = {"Sum": wide.sum(1), "Max": wide.max(1), "Min": wide.min(1), "LogSumExp": log_sum}
        for function, wanted in reductions.items():
            native.Reduce(function, shape, [1], total.shape, name, 1)([x], [total])
            np.testing.assert_allclose(total, wanted, rtol=tolerance, atol=tolerance * shape[1])


@pytest.mark.parametrize("name", ["float32", "float64", "uint8", "int64"])
def test_extreme_positions_of_narrow_rows(name, every_isa):
    rng = np.random.default_rng(2)
    for shape in ((rows, size) for rows in ROWS for size in SIZES):
        x = rng.integers(0, 4, shape).astype(name)
        y = np.empty(shape[0], np.int64)
        for largest, wanted in ((True, x.argmax(1)), (False, x.argmin(1))):
            native.ArgExtreme(shape, 1, y.shape, name, largest, False, 1)([x], [y])
            np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("size", [3, 4, 6, 8])
def test_row_has_the_same_bits_in_any_batch(size, every_isa):
    x = np.random.default_rng(3).standard_normal((203, size)).astype(np.float32)
    whole, logs, one = np.empty_like(x), np.empty_like(x), np.empty((1, size), np.float32)
    total, single = np.empty(203, np.float32), np.empty(1, np.float32)
    for log, y in ((False, whole), (True, logs)):
        native.Softmax(x.shape, 1, "float32", log, 1)([x], [y])
    native.Reduce("Sum", x.shape, [1], [203], "float32", 1)([x], [total])
    for i in range(0, 203, 5):
        for log, y in ((False, whole), (True, logs)):
            native.Softmax(one.shape, 1, "float32", log, 1)([x[i : i + 1]], [one])
            assert one.tobytes() == y[i].tobytes()
        native.Reduce("Sum", one.shape, [1], [1], "float32", 1)([x[i : i + 1]], [single])
        assert single.tobytes() == total[i : i + 1].tobytes()


@pytest.mark.parametrize("size", [3, 5, 12, 63])
def test_short_rows_are_repeated(size):
    x = np.random.default_rng(4).standard_normal((2, 1, size)).astype(np.float32)
    y = np.empty((2, 3001, size), np.float32)
    native.StridedView("Expand", x.shape, y.shape, y.shape, [size, 0, 1], 0, "float32", 1)([x], [y])
    np.testing.assert_array_equal(y, np.broadcast_to(x, y.shape))


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_columns_are_joined_and_split(dtype, threads):
    for rows, sizes in (
        (1, [1, 1]),
        (1003, [1, 1, 1]),
        (5000, [1] * 8),
        (5000, [1] * 9),
        (777, [1, 2, 3]),
        (64, [0, 1]),
    ):
        parts = [bit_patterns((rows, size), dtype, size) for size in sizes]
        whole = np.concatenate(parts, axis=1)
        y = np.ones(whole.shape, dtype)
        native.Concat([p.shape for p in parts], 1, y.dtype.name, threads)(parts, [y])
        assert y.tobytes() == whole.tobytes()
        outputs = [np.ones(p.shape, dtype) for p in parts]
        split = native.Split(whole.shape, sizes, 1, y.dtype.name, threads)
        split([whole], outputs)
        assert [o.tobytes() for o in outputs] == [p.tobytes() for p in parts]
        outputs[-1][...] = 1
        split([whole], [None] * (len(parts) - 1) + outputs[-1:])
        assert outputs[-1].tobytes() == parts[-1].tobytes()
