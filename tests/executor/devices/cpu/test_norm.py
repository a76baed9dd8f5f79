"""Native normalisations and their gradients against the references in float64, on shapes of many kinds."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native

TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 5e-3, "bfloat16": 4e-2}


def draw(rng, shape, name, low=-1.0, high=2.0):
    return np.asarray(rng.uniform(low, high, shape)).astype(name)


# --- layers ---------------------------------------------------------------------------------------

LAYERS = [
    ((5, 768), -1, (768,), (768,)),
    ((300, 33), -1, (33,), (33,)),
    ((2, 3, 5000), -1, (5000,), None),
    ((4, 6, 7), 1, (7,), (6, 7)),
    ((4, 6, 7), 1, (6, 1), ()),
    ((3, 4, 5, 6), 2, (1, 5, 6), (6,)),
    ((6, 7), 0, (6, 7), (7,)),
    ((2, 1), -1, (1,), (1,)),
    ((0, 5), -1, (5,), (5,)),
]


@in_one_item()
@pytest.mark.parametrize(("x", "axis", "scale", "bias"), LAYERS, ids=str)
@pytest.mark.parametrize("name", TOLERANCE)
def test_layers(x, axis, scale, bias, name, isa, near_float64):
    rng = np.random.default_rng(0)
    arrays = [draw(rng, x, name), draw(rng, scale, name), None if bias is None else draw(rng, bias, name)]
    stash = 11 if name == "float64" else 1
    near_float64("layer_normalization", arrays, TOLERANCE[name], axis=axis, epsilon=1e-3, stash_type=stash)
    near_float64(
        "layer_normalization", arrays, TOLERANCE[name], unused=(1, 2), axis=axis, epsilon=1e-3, stash_type=stash
    )
    near_float64("rms_normalization", arrays[:2], TOLERANCE[name], axis=axis, epsilon=1e-3)


@in_one_item()
@pytest.mark.parametrize(("x", "axis", "scale", "bias"), LAYERS, ids=str)
@pytest.mark.parametrize("name", TOLERANCE)
def test_gradients_of_layers(x, axis, scale, bias, name, isa, near_float64):
    rng = np.random.default_rng(1)
    arrays = [draw(rng, x, name), draw(rng, x, name), draw(rng, scale, name)]
    near_float64("layer_norm_grad", arrays, TOLERANCE[name], axis=axis, epsilon=1e-3)
    near_float64("rms_norm_grad", arrays, TOLERANCE[name], axis=axis, epsilon=1e-3)
    near_float64("layer_norm_grad", arrays, TOLERANCE[name], unused=(1, 2), axis=axis, epsilon=1e-3)
    near_float64("layer_norm_grad", arrays, TOLERANCE[name], unused=(0,), axis=axis, epsilon=1e-3)
    rank = len(x)
    shape = (*x[: axis % rank], *(1,) * (rank - axis % rank))
    given = [draw(rng, shape, "float32"), draw(rng, shape, "float32", 0.5, 1.5)]
    near_float64("layer_norm_grad", arrays + given, TOLERANCE[name], axis=axis)


def test_the_variance_of_a_large_mean_is_exact(isa, near_float64):
    x = np.random.default_rng(2).standard_normal((4, 1000)).astype(np.float32) + np.float32(1e4)
    ones = np.ones(1000, np.float32)
    near_float64("layer_normalization", [x, ones, None], 3e-4)
    planes = x.reshape(4, 1, 10, 100)
    one = np.ones(1, np.float32)
    near_float64("instance_normalization", [planes, one, one], 3e-4)
    near_float64("batch_normalization", [planes, one, one, one, one], 3e-4, training_mode=True)


def test_nan_stays_in_its_row(isa):
    x = np.random.default_rng(3).standard_normal((3, 100)).astype(np.float32)
    x[1, 99] = np.nan
    y = np.empty_like(x)
    native.LayerNorm(x.shape, -1, [100], None, "float32", 1e-5)([x, np.ones(100, np.float32)], [y])
    assert np.isnan(y[1]).all()
    assert not np.isnan(y[[0, 2]]).any()


# --- channels and groups --------------------------------------------------------------------------

IMAGES = [(4, 6, 9, 11), (2, 8, 70), (3, 4, 2, 3, 5), (1, 4, 1500), (5, 2, 1), (0, 4, 3), (2, 12, 1, 1)]


@in_one_item()
@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("name", TOLERANCE)
def test_instances_and_groups(shape, name, isa, near_float64):
    rng = np.random.default_rng(4)
    arrays = [draw(rng, shape, name), *(draw(rng, shape[1:2], name) for _ in range(2))]
    near_float64("instance_normalization", arrays, TOLERANCE[name], epsilon=1e-3)
    for groups in {1, 2, shape[1]}:
        near_float64("group_normalization", arrays, TOLERANCE[name], epsilon=1e-3, num_groups=groups)


@in_one_item("values")
@pytest.mark.parametrize("shape", [*IMAGES, (1, 6, 8500), (20, 6, 37)], ids=str)
@pytest.mark.parametrize("name", TOLERANCE)
def test_gradients_of_instances_and_groups(shape, name, isa, near_float64):
    rng = np.random.default_rng(7)
    arrays = [draw(rng, shape, name), draw(rng, shape, name), draw(rng, shape[1:2], name)]
    for groups in (1, 2, None):
        near_float64("group_norm_grad", arrays, TOLERANCE[name], epsilon=0.1, num_groups=groups)
    near_float64("group_norm_grad", arrays, TOLERANCE[name], unused=(1, 2), epsilon=0.1, num_groups=2)
    near_float64("group_norm_grad", arrays, TOLERANCE[name], unused=(0,), epsilon=0.1, num_groups=2)


@in_one_item("pairs")
@pytest.mark.parametrize("shape", [*IMAGES, (300, 7), (9, 300), (6, 2000), (4,)], ids=str)
@pytest.mark.parametrize("name", TOLERANCE)
@pytest.mark.parametrize("vectors", ["same", "float32"])
def test_batches(shape, name, vectors, isa, near_float64):
    rng = np.random.default_rng(5)
    channels = shape[1:2] or (1,)
    vector = name if vectors == "same" else vectors
    x, scale, b, mean = (draw(rng, s, n) for s, n in ((shape, name), *[(channels, vector)] * 3))
    var = draw(rng, channels, vector, 0.5, 2.0)
    tolerance = max(TOLERANCE[name], TOLERANCE[vector])
    near_float64("batch_normalization", [x, scale, b, mean, var], tolerance, epsilon=1e-3)
    if 0 not in shape and len(shape) > 1:
        training = {"epsilon": 0.1, "training_mode": True, "momentum": 0.75}
        near_float64("batch_normalization", [x, scale, b, mean, var], tolerance, **training)
        near_float64("batch_norm_grad", [draw(rng, shape, name), x, scale], tolerance, epsilon=0.1)
        near_float64("batch_norm_grad", [draw(rng, shape, name), x, scale], tolerance, unused=(1, 2), epsilon=0.1)


@in_one_item()
@pytest.mark.parametrize("shape", [(2, 7, 5, 6), (1, 64, 30, 31), (2, 3), (1, 5, 1100), (2, 0, 3)], ids=str)
@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.75), (1, 0.5), (9, 1.0)])
@pytest.mark.parametrize("name", TOLERANCE)
def test_neighbouring_channels(shape, size, beta, name, isa, near_float64):
    x = draw(np.random.default_rng(6), shape, name)
    near_float64("lrn", [x], TOLERANCE[name], size=size, beta=beta, alpha=0.5, bias=1.5)


def test_gradients_of_groups_without_elements_are_zeros():
    x, scale = np.zeros((2, 4, 0), np.float32), np.ones(4, np.float32)
    dx, dscale, db = np.empty_like(x), np.full(4, np.nan, np.float32), np.full(4, np.nan, np.float32)
    kernel = native.GroupNormGrad(x.shape, 2, "float32", 1e-5)
    kernel([x, x, scale], [dx, dscale, db])
    assert [*dscale, *db] == [0] * 8
