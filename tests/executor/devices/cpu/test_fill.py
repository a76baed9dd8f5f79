"""OneHot against the reference, for every type of index."""

import numpy as np
import pytest
from kernel_runs import value_of

from graphkit.executor.devices.kernel import KernelContext
from graphkit.executor.devices.registry import make_kernel
from graphkit.ops import F
from graphkit.ops.evaluate import run_node


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
