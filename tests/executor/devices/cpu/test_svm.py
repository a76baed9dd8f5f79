"""Probabilities from decisions of pairs: the kernel against the reference of CoupledProbabilities."""

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.executor.devices.cpu import native
from graphkit.ops.ml.svm import coupled


@in_one_item()
@pytest.mark.parametrize("classes", [2, 3, 10, 30])
@pytest.mark.parametrize("threads", [1, 3])
def test_many_rows(classes: int, threads: int) -> None:
    rng = np.random.default_rng(classes)
    pairs = classes * (classes - 1) // 2
    decisions = rng.normal(0, 2, (500, pairs)).astype(np.float32)
    decisions[:3] = [[np.nan], [np.inf], [-np.inf]]
    a, b = (-1 - rng.random(pairs)).astype(np.float32), rng.normal(size=pairs).astype(np.float32)
    got = np.empty((500, classes), np.float32)
    native.CoupledProbabilities(500, classes, threads)([decisions, a, b], [got])
    # The order of sums differs, and with it, rarely, the sweep after which a row changes little enough.
    np.testing.assert_allclose(got, coupled(decisions, a, b, classes), rtol=0, atol=1e-4)
    np.testing.assert_allclose(got.sum(axis=1), 1, atol=1e-5)


def test_no_rows() -> None:
    operands = [np.empty((0, 3), np.float32), np.ones(3, np.float32), np.ones(3, np.float32)]
    native.CoupledProbabilities(0, 3, 1)(operands, [np.empty((0, 3), np.float32)])
