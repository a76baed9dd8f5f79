"""Slices and their gradients against the references."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, bit_patterns, run_native, value_of

from graphkit.ops import F
from graphkit.ops.evaluate import run_node


@in_one_item()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_and_their_gradients(dtype):
    rng = np.random.default_rng(dtype.num)
    for seed in range(30):
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.integers(0, 20, rank))
        starts, ends = (rng.integers(-25, 25, rank) for _ in range(2))
        steps = rng.choice([-3, -2, -1, 1, 2, 3], rank)
        x = bit_patterns(shape, dtype, seed)
        bounds = [starts, ends, np.arange(rank), steps]
        node = F.slice(value_of(x), *bounds).node
        (expected,) = run_node(node, [x, *bounds])
        for threads in (1, 3):
            assert run_native(node, [x], threads)[0].tobytes() == np.ascontiguousarray(expected).tobytes()
        if dtype == np.float32:
            grad = F.slice_grad(value_of(expected), value_of(x), *bounds).node
            (spread,) = run_node(grad, [expected, x, *bounds])
            assert run_native(grad, [expected])[0].tobytes() == spread.tobytes()
