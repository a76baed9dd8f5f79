"""SVMClassifier as one product for all pairs of classes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UnsupportedError
from graphkit.onnx_io.compare import OnnxRuntimeModel
from graphkit.ops import F
from graphkit.ops.evaluate import evaluate


def machine(x: Any, **changes: Any) -> gk.Model:
    """Of three classes and four vectors."""
    given = dict(
        kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0], support_vectors=[0.0, 1.0, 1.0, 0.0, -1.0, 1.0, 2.0, 2.0],
        coefficients=[1.0, 0.5, -2.0, 1.0, 0.25, -1.0, 1.0, 0.5], rho=[0.5, -0.25, 0.375], vectors_per_class=[2, 1, 1],
        classlabels_ints=[4, 5, 6],
    )  # fmt: skip
    label, scores = F.svm_classifier(x, **given | changes)
    return gk.Model({"label": label, "scores": scores})


DATA = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 0.5]], np.float32)


@in_one_item()
@pytest.mark.parametrize("rho", [np.inf, -np.inf, 1e9, 0.25])
def test_any_rho(rho: float) -> None:
    """A large or infinite rho of one pair does not change the scores of the others."""
    net = machine(gk.input("x", [3, 2]), rho=[rho, -0.25, 0.375])
    wanted = evaluate(net.graph, [DATA])
    found = net.run({"x": DATA})
    np.testing.assert_array_equal(found["label"], wanted[0])
    np.testing.assert_allclose(found["scores"], wanted[1], rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"post_transform": "LOGISTIC"}, "with post_transform='LOGISTIC' has no gradient; use post_transform='NONE'"),
        (
            {"vectors_per_class": [], "support_vectors": [], "coefficients": [1.0] * 6},
            "without support vectors (a linear model) has no gradient",
        ),
        (
            {"support_vectors": [0.0, 1.0, 1.0, 0.0, -1.0, np.nan, 2.0, 2.0]},
            "has no gradient if support_vectors or coefficients contain NaN or infinity",
        ),
    ],
)
def test_missing_gradients_say_why(changes: Any, message: str) -> None:
    net = machine(gk.input("x", [3, 2]), **changes)
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        gk.grad(net, of="scores", wrt="x")


@pytest.mark.parametrize(
    "changes",
    [
        {"coefficients": [1.0, 0.5, -2.0, 1.0, np.inf, -1.0, 1.0, 0.5]},
        {"coefficients": [1.0, 0.5, np.nan, 1.0, 0.25, -1.0, 1.0, 0.5]},
        {"support_vectors": [0.0, 1.0, 1.0, 0.0, -1.0, np.nan, 2.0, 2.0]},
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_what_is_no_number_spoils_the_pairs_of_its_class_alone(changes: Any) -> None:
    net = machine(gk.input("x", [3, 2]), **changes)
    found = net.run({"x": DATA})
    wanted = OnnxRuntimeModel(net.to_onnx()).run({"x": DATA})
    assert np.isnan(found["scores"]).any() or np.isinf(found["scores"]).any()
    assert np.isfinite(found["scores"]).any()
    np.testing.assert_array_equal(found["label"], wanted["label"])
    np.testing.assert_allclose(found["scores"], wanted["scores"], rtol=1e-5)
