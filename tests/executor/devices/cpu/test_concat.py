"""Joining and splitting along an axis against numpy."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, bit_patterns

from graphkit.executor.devices.cpu import native


@in_one_item("values")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pieces(dtype, threads):
    rng = np.random.default_rng(dtype.num)
    for seed in range(20):
        rank = int(rng.integers(1, 4))
        shape = [int(n) for n in rng.choice([1, 3, 8, 50], rank)]
        axis = int(rng.integers(0, rank))
        sizes = [int(n) for n in rng.choice([0, 1, 2, 5, 64, 300], int(rng.integers(1, 6)))]
        parts = [bit_patterns((*shape[:axis], n, *shape[axis + 1 :]), dtype, seed + i) for i, n in enumerate(sizes)]
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
    with pytest.raises(native.Error, match="must be equal except on axis 0"):
        native.Concat([[2, 3], [2, 4]], 0, "float32")
    with pytest.raises(native.Error, match="add up to the size of axis 1"):
        native.Split([2, 3], [1, 1], 1, "float32")
