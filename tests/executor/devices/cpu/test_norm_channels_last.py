"""Batch normalisation in training, channels last: the native kernels against the references in float64."""

import itertools

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.ops.internal.channels_last_norm import ChannelsLastBatchNorm, ChannelsLastBatchNormGrad
from graphkit.ops.xp import numpy_xp

SHAPES = [(2, 3, 4, 5), (1, 1), (5, 1), (1, 7, 3), (3, 33), (16, 9, 9, 16), (8, 30, 30, 24), (4, 7, 7, 130), (700, 65)]


def operands(shape, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) + rng.uniform(-2, 2, shape[-1]) + offset).astype(np.float32)
    scale, b, mean = (rng.standard_normal(shape[-1], dtype=np.float32) for _ in range(3))
    return x, scale, b, mean, rng.uniform(0.5, 2, shape[-1]).astype(np.float32)


def wide(arrays):
    return [None if a is None else a.astype(np.float64) for a in arrays]


def run(make, inputs, shapes, threads=(1, 3)):
    """The results, which have the same bits for every number of threads."""
    found = []
    for count in threads:
        results = [np.full(s, np.nan, np.float32) for s in shapes]
        make(count)(list(inputs), results)
        found.append(results)
    for results in found[1:]:
        for got, want in zip(results, found[0], strict=True):
            np.testing.assert_array_equal(got, want)
    return found[0]


def check_close(results, expected, tolerance=3e-6):
    for got, want in zip(results, expected, strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale)


@in_one_item()
@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(isa, shape, residual):
    inputs = list(operands(shape))
    if residual:
        inputs.append(np.random.default_rng(5).standard_normal(shape, dtype=np.float32))
    for activation, alpha, beta in (("", 0.0, 0.0), ("Relu", 0.0, 0.0), ("Clip", -0.25, 0.5)):
        op = ChannelsLastBatchNorm(
            activation=activation, activation_alpha=alpha, activation_beta=beta, momentum=0.75, epsilon=1e-3
        )
        low, high = op.limits

        def make(threads, low=low, high=high):
            options = dict(low=low, high=high, residual=residual, threads=threads)
            return native.ChannelsLastBatchNorm(shape, 1e-3, 0.75, **options)

        results = run(make, inputs, [shape, *(shape[-1:],) * 4])
        # A single row has variance 0: x - mean, and nothing else, decides on its result.
        check_close(results, op.reference(numpy_xp, *wide(inputs)), 3e-6 if np.prod(shape[:-1]) > 1 else 1e-4)


@in_one_item()
@pytest.mark.parametrize("offset", [30.0, 1000.0])
def test_variance_far_from_zero(offset):
    """The moments are taken about a value near the mean."""
    x, *others = operands((64, 10, 10, 8), offset=offset)
    kernel = native.ChannelsLastBatchNorm(x.shape, 1e-5, 0.9, low=-np.inf, high=np.inf)
    results = [np.empty_like(x), *(np.empty(8, np.float32) for _ in range(4))]
    kernel([x, *others], results)
    expected = ChannelsLastBatchNorm().reference(numpy_xp, *wide([x, *others]))
    for got, want in zip(results[1:], expected[1:], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(results[0], expected[0], atol=3e-7 * offset)


@in_one_item("values")
@pytest.mark.parametrize("addend", [False, True], ids=["", "addend"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient(isa, shape, addend):
    x, scale, b, _, r = operands(shape)
    rng = np.random.default_rng(9)
    mean = x.reshape(-1, shape[-1]).mean(0)
    dy, y, more = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    cases = [("", None, None), ("Relu", (0.0, np.inf), None), ("Relu", (0.0, np.inf), y), ("Clip", (-0.25, 0.5), None)]
    for (activation, passed, looked_at), stored in itertools.product(cases, (False, True)):
        low, high = (0.0, 0.0) if passed is None else passed
        op = ChannelsLastBatchNormGrad(activation=activation, activation_alpha=low, activation_beta=high)
        inputs = [dy, x, scale, b, mean, r, looked_at, more if addend else None]

        def make(threads, passed=passed, from_y=looked_at is not None):
            options = dict(passed=passed, from_y=from_y, addend=addend, threads=threads)
            return native.ChannelsLastBatchNormGrad(shape, **options)

        expected = op.reference(numpy_xp, *wide(inputs))
        if stored:
            check_close(run(make, inputs, [shape, shape[-1:], shape[-1:], shape]), expected, 1e-5)
        else:
            results = [np.full(e.shape, np.nan, np.float32) for e in expected[:3]]
            make(2)(inputs, [*results, None])
            check_close(results, expected[:3], 1e-5)


def test_results_in_place_of_operands():
    x, scale, b, _, r = operands((6, 5, 5, 20))
    mean = x.reshape(-1, 20).mean(0)
    rng = np.random.default_rng(4)
    dy, y, more = (rng.standard_normal(x.shape, dtype=np.float32) for _ in range(3))
    kernel = native.ChannelsLastBatchNormGrad(x.shape, passed=(0.0, np.inf), from_y=True, addend=True, threads=2)
    assert set(kernel.inplace) == {(0, 0), (0, 3), (7, 0), (7, 3)}

    def gradients(dy, more, dx, stored):
        kernel([dy, x, scale, b, mean, r, y, more], [dx, None, None, stored])
        return dx.copy(), stored.copy()

    expected = gradients(dy, more, np.empty_like(x), np.empty_like(x))
    first, second = dy.copy(), more.copy()
    for got, want in zip(gradients(first, second, first, second), expected, strict=True):
        np.testing.assert_array_equal(got, want)
    first, second = dy.copy(), more.copy()
    for got, want in zip(gradients(first, second, second, first), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_gradient_passes_at_the_limits_of_clip_and_not_at_zero_of_relu():
    x = np.zeros((1, 3), np.float32)
    x[0] = (0, 6, 7)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    stored = np.empty_like(x)
    below = float(np.nextafter(np.float32(0), np.float32(-1)))
    for passed, expected in (((below, 6.0), [1, 1, 0]), ((0.0, np.inf), [0, 1, 1])):
        kernel = native.ChannelsLastBatchNormGrad(x.shape, passed=passed)
        kernel([np.ones_like(x), x, ones, zeros, zeros, ones, None, None], [np.empty_like(x), None, None, stored])
        np.testing.assert_array_equal(stored[0], expected)
