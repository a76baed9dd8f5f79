"""Range, OneHot and EyeLike against the reference: every type of index, diagonals beyond the matrix."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import value_of

from graphkit.executor.devices.cpu import native
from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ops import F
from graphkit.ops.evaluate import run_node


@in_one_item()
@pytest.mark.parametrize("index_type", [np.int8, np.int32, np.int64, np.uint8, np.float32, np.float64, np.float16])
def test_one_hot(index_type):
    rng = np.random.default_rng(5)
    for shape, axis in [((40,), -1), ((40,), 0), ((6, 7), 1), ((6, 7), -3), ((), 0), ((3, 0), 1)]:
        indices = rng.integers(0 if np.dtype(index_type).kind == "u" else -12, 12, shape).astype(index_type)
        values = np.array([2, 9], np.int16)
        node = F.one_hot(value_of(indices), np.int64(10), value_of(values), axis=axis).node
        (expected,) = run_node(node, [indices, np.array(10), values])
        y = np.zeros(expected.shape, np.int16)
        make_kernel("cpu", node, KernelContext(threads=3))([indices, np.array(10), values], [y])
        np.testing.assert_array_equal(y, expected)


@in_one_item()
@pytest.mark.parametrize("k", [0, 1, -1, 3, -3, 4, 2**31, 2**63 - 1, -(2**63) + 1, -(2**63)])
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1, 1), (0, 2)])
def test_eye_like(shape, k):
    x = np.zeros(shape, np.int8)
    node = F.eye_like(value_of(x), k=k).node
    around = np.full((x.size + 128,), 7, np.int8)
    y = around[64 : 64 + x.size].reshape(shape)
    make_kernel("cpu", node, KernelContext(threads=1))([x], [y])
    np.testing.assert_array_equal(y, np.eye(*shape, k=max(min(k, 9), -9), dtype=np.int8))
    assert (around[:64] == 7).all()
    assert (around[64 + x.size :] == 7).all()


@in_one_item()
@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64, np.float16])
def test_ranges_of_any_length(dtype):
    wide = np.float64 if dtype is np.float64 else np.float32 if np.dtype(dtype).kind == "f" else np.int64
    for delta in (3, -7) if wide is np.int64 else (3, -7, 0.3, -1 / 3):
        for length in (0, 1, 7, 8, 9, 1000, 4001):
            start, step = dtype(5), dtype(delta)
            limit = dtype(5 + (length - 0.5) * float(step))
            expected = (wide(start) + np.arange(length).astype(wide) * wide(step)).astype(dtype)
            for threads in (1, 3):
                (y,) = native.SizedRange(np.dtype(dtype).name, threads)([np.array(v) for v in (start, limit, step)])
                # A limit in float16 may be rounded beyond some elements.
                count = min(length, len(y)) if dtype is np.float16 else length
                np.testing.assert_array_equal(y[:count], expected[:count])
                assert dtype is np.float16 or len(y) == length
