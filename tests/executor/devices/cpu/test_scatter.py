"""Scatters, and the gradient of a gather: random shapes and element types against the references."""

import numpy as np
import pytest
from combinations import in_one_item
from kernel_runs import DTYPES, FLOATS, same_bits, small_integers

from graphkit.executor.devices.cpu import native
from graphkit.ops import F


@in_one_item()
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_gather_gradient_adds_repeated_slices(dtype):
    rng = np.random.default_rng(dtype.num)
    shapes = [
        ((50, 64), 0, (200,)),
        ((7, 300), 0, (9, 4)),
        ((3, 20, 5), 1, (33,)),
        ((8, 5, 40), -2, (6,)),
        ((90,), 0, (500,)),
    ]
    for shape, axis, picked in shapes:
        x = np.zeros(shape, dtype)
        indices = rng.integers(-shape[axis], shape[axis], picked)
        dy = small_integers(np.take(x, indices, axis=axis).shape, dtype)
        same_bits(lambda dy, x, i, axis=axis: F.gather_grad(dy, x, i, axis=axis), [dy, x, indices])


@in_one_item("values")
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scatters(dtype, reduction):
    rng = np.random.default_rng(dtype.num)
    for shape, axis in [((40, 33), 0), ((40, 33), 1), ((5, 6, 70), 1), ((5, 6, 70), -1), ((5, 6, 70), 0), ((300,), 0)]:
        picked = [max(n // 2, 1) for n in shape]
        if reduction != "none":
            picked[axis] = 2 * shape[axis]
        indices = rng.integers(-shape[axis], shape[axis], picked)
        if reduction == "none":  # each element once
            indices = np.argsort(rng.random(shape), axis=axis)[tuple(slice(0, n) for n in picked)]
        operands = [small_integers(shape, dtype, 1), indices, small_integers(picked, dtype, 2)]
        same_bits(lambda x, i, u, axis=axis: F.scatter_elements(x, i, u, axis=axis, reduction=reduction), operands)
    for shape, depth, count in [((50, 8), 1, 30), ((50, 200), 1, 30), ((9, 9), 2, 40), ((6, 5, 4), 2, 20)]:
        flat = rng.integers(0, int(np.prod(shape[:depth])), count)
        if reduction == "none":
            flat = rng.permutation(int(np.prod(shape[:depth])))[:count]
        indices = np.stack(np.unravel_index(flat, shape[:depth]), axis=-1)
        indices = indices - rng.integers(0, 2, indices.shape) * np.array(shape[:depth])
        operands = [small_integers(shape, dtype, 3), indices, small_integers((len(flat), *shape[depth:]), dtype, 4)]
        same_bits(lambda x, i, u: F.scatter_nd(x, i, u, reduction=reduction), operands)


def test_extremes_keep_nan():
    x = np.array([np.nan, 1, 2, 3], np.float32)
    indices, updates = np.array([0, 1, 2, 3]), np.array([5, np.nan, 7, 1], np.float32)
    for reduction in ("max", "min"):
        same_bits(lambda x, i, u, r=reduction: F.scatter_elements(x, i, u, reduction=r), [x, indices, updates])


def test_scatters_in_place():
    x = np.zeros((40, 8), np.float32)
    kernel = native.ScatterND([40, 8], [3, 1], "add", "float32")
    assert kernel.inplace == [(0, 0)]
    kernel([x, np.array([[1], [1], [-1]]), np.ones((3, 8), np.float32)], [x])
    assert x.sum(axis=1).tolist() == [0, 16, *[0] * 37, 8]
