"""SVMClassifier as one product for all pairs of classes."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


@pytest.mark.parametrize("rho", [np.inf, -np.inf, 1e9, 0.25])
def test_any_rho(rho: float) -> None:
    """What is added at the end takes nothing from the others."""
    x = gk.input("x", [3, 2])
    label, scores = F.svm_classifier(
        x, kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0], support_vectors=[0.0, 1.0, 1.0, 0.0, -1.0, 1.0, 2.0, 2.0],
        coefficients=[1.0, 0.5, -2.0, 1.0, 0.25, -1.0, 1.0, 0.5], rho=[rho, -0.25, 0.375], vectors_per_class=[2, 1, 1],
        classlabels_ints=[4, 5, 6],
    )  # fmt: skip
    net = gk.Model({"label": label, "scores": scores})
    data = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]], np.float32)
    wanted = evaluate(net.graph, [data])
    found = net.run({"x": data})
    np.testing.assert_array_equal(found["label"], wanted[0])
    np.testing.assert_allclose(found["scores"], wanted[1], rtol=1e-5)
