"""Triangles of matrices against the reference."""

import numpy as np
import pytest
from kernel_runs import DTYPES, same_bits, small_integers

from graphkit.executor.devices.cpu import native
from graphkit.ops import F


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
