"""Densities, and operators that check elements, against formulas of numpy and the standard library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.onnx_io.compare import OnnxRuntimeModel
from tests.mxnet_io.symbols import compare, imported

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.2)
COUNTS = np.floor(POSITIVE * 3)
A, B = np.float32([0.5, 1, 2.5]), np.float32([1, 2, 0.5])
P = np.float32([0.2, 0.5, 0.7])
_log_gamma = np.vectorize(math.lgamma)


def _negative_binomial(x, k, p):
    return _log_gamma(x + k) - _log_gamma(x + 1) - _log_gamma(k) + k * np.log(p) + x * np.log1p(-p)


# Distribution -> samples, parameters, logarithm of the density.
DENSITIES = {
    "normal": (X, (A, B), lambda x, m, s: -0.5 * ((x - m) / s) ** 2 - np.log(s * math.sqrt(2 * math.pi))),
    "uniform": (X, (A - 1, A + 1), lambda x, low, high: 0 * x - np.log(high - low)),
    "exponential": (POSITIVE, (B,), lambda x, rate: np.log(rate) - rate * x),
    "gamma": (POSITIVE, (A, B), lambda x, a, b: a * np.log(b) + (a - 1) * np.log(x) - b * x - _log_gamma(a)),
    "poisson": (COUNTS, (B,), lambda x, rate: x * np.log(rate) - _log_gamma(x + 1) - rate),
    "negative_binomial": (COUNTS, (A, P), _negative_binomial),
    "generalized_negative_binomial": (
        COUNTS, (A, P), lambda x, mean, alpha: _negative_binomial(x, 1 / alpha, 1 / (mean * alpha + 1)),
    ),
}  # fmt: skip


@in_one_item()
@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("name", DENSITIES)
def test_densities_are_those_of_their_formulas(tmp_path, name, is_log):
    samples, parameters, formula = DENSITIES[name]
    inputs = {"x": samples} | {f"p{i}": p for i, p in enumerate(parameters)}
    wide = [p.astype(np.float64)[:, None] for p in parameters]
    expected = formula(samples.astype(np.float64), *wide)
    expected = expected if is_log else np.exp(expected)
    compare(tmp_path, f"_random_pdf_{name}", inputs, {"is_log": is_log}, np.float32(expected), tolerance=2e-6)


def test_the_dirichlet_density_has_rows_as_samples(tmp_path):
    x = (POSITIVE / POSITIVE.sum(1, keepdims=True))[:, None].repeat(2, axis=1)
    alpha = POSITIVE.astype(np.float64)
    of_alpha = _log_gamma(alpha.sum(1)) - _log_gamma(alpha).sum(1)
    expected = np.float32(((alpha[:, None] - 1) * np.log(x)).sum(-1) + of_alpha[:, None])
    inputs = {"x": x, "a": POSITIVE}
    compare(tmp_path, "_random_pdf_dirichlet", inputs, {"is_log": True}, expected, tolerance=1e-5)


def _run(folder, op, inputs, attributes=None):
    """Return the output of graphkit, which must equal that of ONNX Runtime."""
    model = imported(folder, op, inputs, attributes)
    feeds = {name: inputs[name] for name in model.inputs}
    (found,) = model.run(feeds).values()
    (other,) = OnnxRuntimeModel(model.to_onnx(), threads=1).run(feeds).values()
    np.testing.assert_array_equal(found, other)
    assert found.dtype == other.dtype
    return found


@in_one_item()
@pytest.mark.parametrize(("odd", "expected"), [(0.0, 1.0), (np.nan, 0.0), (-np.inf, 0.0)])
def test_all_finite_finds_nan_and_infinity(tmp_path, odd, expected):
    x = X.copy()
    x[1, 2] = odd
    for op, inputs in (("all_finite", {"a": x}), ("multi_all_finite", {"a": X, "b": x})):
        found = _run(tmp_path, op, inputs, {"num_arrays": len(inputs)} if len(inputs) > 1 else {})
        assert found.tolist() == [expected]
        assert found.dtype == np.float32


def test_sums_of_squares_and_neighbours(tmp_path):
    expected = np.float32([(X**2).sum(), (B**2).sum()])
    compare(tmp_path, "multi_sum_sq", {"a": X, "b": B}, {"num_arrays": 2}, expected)
    compare(tmp_path, "_npi_ediff1d", {"a": X}, {}, np.ediff1d(X))
    ends = {"to_begin_scalar": 2.0, "to_end_scalar": 5.0}
    compare(tmp_path, "_npi_ediff1d", {"a": X}, ends, np.ediff1d(X, to_begin=np.float32(2), to_end=np.float32(5)))
    given = {"to_begin_arr_given": True, "to_end_arr_given": True}
    expected = np.ediff1d(X, to_begin=A, to_end=B)
    compare(tmp_path, "_npi_ediff1d", {"a": X, "begin": A, "end": B}, given, expected)


@in_one_item()
@pytest.mark.parametrize(
    ("b", "options", "expected"),
    [
        (X + np.float32(1e-7), {}, 1),
        (X + np.float32(0.01), {}, 0),
        (X + np.float32(0.01), {"atol": 0.02}, 1),
        (np.where(X > 0, np.float32(np.nan), X), {}, 0),
    ],
)
def test_allclose_has_the_tolerances_of_numpy(tmp_path, b, options, expected):
    assert int(np.allclose(X, b, equal_nan=True, **options)) == expected
    found = _run(tmp_path, "_contrib_allclose", {"a": X, "b": b}, options)
    assert found == expected
    assert found.dtype == np.uint8


def test_indices_of_a_diagonal_and_constraints(tmp_path):
    model = imported(tmp_path, "_npi_diag_indices_from", {"a": np.zeros((4, 4), np.float32)})
    (found,) = model.run({name: np.zeros((4, 4), np.float32) for name in model.inputs}).values()
    np.testing.assert_array_equal(found, np.stack(np.diag_indices(4)))
    model = imported(tmp_path, "_npx_constraint_check", {"a": X}, {"msg": "positive"})
    assert not next(iter(model.run({"a": np.maximum(X, 0)}).values()))
    assert next(iter(model.run({"a": POSITIVE}).values()))


def test_zeros_like_ignores_dtype(tmp_path):
    compare(tmp_path, "zeros_like", {"a": X}, {"dtype": "int64"}, np.zeros_like(X))


def test_a_gradient_is_multiplied(tmp_path):
    model = imported(tmp_path, "_contrib_gradientmultiplier", {"a": X}, {"scalar": -0.5})
    np.testing.assert_array_equal(model.run({"a": X})["made_output"], X)
    total = gk.Model({"total": gk.reduce_sum(model.graph.outputs[0], keepdims=False)})
    (found,) = gk.grad(total, wrt=["a"]).run({"a": X}).values()
    np.testing.assert_array_equal(found, np.full_like(X, -0.5))
