"""The numeric gradient check of operators whose types the standard fixes: in double precision, or a named error."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.checks.gradcheck import check_gradient
from graphkit.errors import UnsupportedError, UsageError
from graphkit.ops import F

ROWS = {"x": np.array([[0.5, -1.0, 2.0], [0.25, 3.0, -0.75]], np.float32)}
SCALE = np.float32(0.1)


def classify(x):
    return gk.svm_regressor(x, coefficients=[1.0, -0.5], support_vectors=[0.1, 0.2, 0.3, -1.0, 0.4, 0.5], n_supports=2,
                            kernel_type="RBF", kernel_params=[0.3, 0.0, 0.0], rho=[0.2])  # fmt: skip


LAYERS = {
    "Scaler": lambda x: gk.scaler(x, offset=[1.0, 2.0, 3.0], scale=[0.5, 2.0, 1.0]),
    "Normalizer-MAX": lambda x: gk.normalizer(x, norm="MAX"),
    "Normalizer-L1": lambda x: gk.normalizer(x, norm="L1"),
    "Normalizer-L2": lambda x: gk.normalizer(x, norm="L2"),
    "LinearRegressor": lambda x: gk.linear_regressor(x, coefficients=[1.0, -2.0, 0.5], intercepts=[0.1]),
    "FeatureVectorizer": lambda x: gk.feature_vectorizer(x, x, inputdimensions=[3, 3]),
    "SVMRegressor": classify,
}


@in_one_item()
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float32_results_are_checked_in_float64(layer, dtype):
    x = gk.input("x", ["N", 3], dtype)
    y = LAYERS[layer](x)
    report = check_gradient(gk.Model({"y": y * y}), {"x": ROWS["x"].astype(dtype)})
    assert report.passed, str(report)
    assert any(entry.symbolic or entry.max_abs for entry in report.entries)


def test_they_stand_before_other_layers():
    x = gk.input("x", ["N", 3])
    h = LAYERS["Normalizer-L2"](LAYERS["Scaler"](x))
    assert check_gradient(gk.Model({"y": gk.tanh(gk.nn.linear(h, 2, name="fc"))}), ROWS).passed


def test_statistics_of_layer_normalization():
    x, scale = gk.input("x", [2, 8]), gk.parameter("scale", [8], init="ones")
    y, mean, deviation = F.layer_normalization(x, scale)
    report = check_gradient(gk.Model({"y": y, "mean": mean, "deviation": deviation}))
    assert report.passed, str(report)


def quantised():
    x = gk.input("x", ["N", 3])
    q = F.quantize_linear(gk.nn.linear(x, 4, name="first"), SCALE, np.uint8(128), name="quantise")
    return gk.Model({"y": gk.nn.linear(F.dequantize_linear(q, SCALE, np.uint8(128)), 2, name="last")})


def test_quantisation_on_the_way_is_a_named_error():
    with pytest.raises(UnsupportedError, match=r"quantise.*QuantizeLinear.*float64.*wrt="):
        check_gradient(quantised(), ROWS)


def test_what_stands_behind_quantisation_is_checked():
    report = check_gradient(quantised(), ROWS, wrt=["last_weight", "last_bias"])
    assert report.passed, str(report)


def test_straight_through_gradients_are_a_named_error():
    x = gk.input("x", ["N", 3])
    y = gk.fake_quantize(x, SCALE, np.uint8(128), name="fake")
    with pytest.raises(UnsupportedError, match=r"'fake'.*QuantizeLinear has no float64"):
        check_gradient(gk.Model({"y": y}), ROWS)


def test_integers_alone_have_no_gradient():
    q = F.quantize_linear(gk.input("x", ["N", 3]), SCALE, np.uint8(128))
    with pytest.raises(UsageError, match="none of q contains floats"):
        check_gradient(gk.Model({"q": q}), ROWS)
