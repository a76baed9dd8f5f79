"""Native losses and their gradients against the references in float64."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native

TOLERANCE = {"float32": 2e-5, "float64": 1e-11, "float16": 5e-3, "bfloat16": 4e-2}


def draw(rng, shape, name, low=-1.0, high=2.0):
    return np.asarray(rng.uniform(low, high, shape)).astype(name)


SCORES = [(7, 10), (300, 5), (4, 9000), (2, 21, 13, 17), (2, 5, 1300), (3, 1), (1, 2, 3, 4, 5)]


@in_one_item("pairs")
@pytest.mark.parametrize("shape", SCORES, ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", TOLERANCE)
def test_losses(shape, reduction, weighted, name, isa, near_float64):
    rng = np.random.default_rng(7)
    scores = draw(rng, shape, name, -3.0, 3.0)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    labels.flat[1] = ignored = -100
    weights = draw(rng, shape[1:2], name, 0.5, 2.0) if weighted else None
    tolerance, options = TOLERANCE[name], {"reduction": reduction, "ignore_index": ignored}
    near_float64("softmax_cross_entropy_loss", [scores, labels, weights], tolerance, **options)
    near_float64("softmax_cross_entropy_loss", [scores, labels, weights], tolerance, unused=(1,), **options)
    near_float64("negative_log_likelihood_loss", [scores, labels.astype(np.int32), weights], tolerance, **options)
    log_prob = scores.astype(np.float64) - 4
    dloss = draw(rng, labels.shape if reduction == "none" else (), name)
    arrays = [dloss, log_prob.astype(scores.dtype), labels, weights]
    near_float64("softmax_cross_entropy_grad", arrays, tolerance, **options)


@in_one_item()
@pytest.mark.parametrize("bad", [-1, 4, 10**12])
@pytest.mark.parametrize("softmax", [False, True])
def test_labels_outside_the_classes_are_refused(bad, softmax):
    scores, labels = np.zeros((2, 4), np.float32), np.array([1, bad])
    loss = np.zeros((), np.float32)
    kernel = native.ClassLoss([2, 4], "float32", "int64", False, "mean", None, softmax)
    with pytest.raises(native.Error, match="is outside"):
        kernel([scores, labels], [loss])


def test_a_loss_over_ignored_labels_only_is_nan():
    scores, labels = np.zeros((2, 4), np.float32), np.array([-1, -1])
    loss = np.zeros((), np.float32)
    native.ClassLoss([2, 4], "float32", "int64", False, "mean", -1, True)([scores, labels], [loss])
    assert np.isnan(loss)
