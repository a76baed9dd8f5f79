"""A Gaussian process and a Bayesian linear regression, trained by their marginal likelihood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import graphkit as gk
from graphkit.ops import F

STEPS, RATE = 80, 0.02
HALF_LOG_TURN = 0.5 * math.log(2 * math.pi)
POINTS = 25


def negative_log_likelihood(covariance: Any, y: Any) -> Any:
    """Return -log N(y; 0, covariance), by the Cholesky factor. covariance: [POINTS, POINTS]; y: [POINTS, 1]."""
    factor = F.potrf(covariance)
    white = F.trsm(factor, y)
    return F.reduce_sum(white * white, keepdims=False) * 0.5 + F.sumlogdiag(factor) + POINTS * HALF_LOG_TURN


def normal_loss(covariance: np.ndarray, y: np.ndarray) -> float:
    """Return -log N(y; 0, covariance), by a solution and a determinant of numpy."""
    distance = (y.T @ np.linalg.solve(covariance, y)).item()
    return 0.5 * (distance + np.linalg.slogdet(covariance).logabsdet) + POINTS * HALF_LOG_TURN


def trained(net: gk.Model, logs: dict[str, float], data: dict[str, np.ndarray]) -> tuple[list[float], dict[str, float]]:
    """Minimise a loss of the logarithms of hyperparameters. Return the losses, and the last logarithms."""
    loss = net.compile()
    gradients = gk.grad(net, of="loss", wrt=list(logs)).compile()
    losses = []
    for _ in range(STEPS):
        feeds = data | {name: np.array(value) for name, value in logs.items()}
        losses.append(float(loss.run(feeds)["loss"]))
        slopes = gradients.run(feeds).values()
        logs = {name: value - RATE * float(s) for (name, value), s in zip(logs.items(), slopes, strict=True)}
    return losses, logs


def inputs(*names: str) -> list[Any]:
    return [F.exp(gk.input(name, [], dtype="float64")) for name in names]


def test_gaussian_process() -> None:
    """With a squared exponential kernel, the loss equals scipy's density, falls, and finds the noise of the data."""
    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(-3, 3, (POINTS, 1)), axis=0)
    y = np.sin(2 * x) + 0.1 * rng.standard_normal(x.shape)
    squares = (x - x.T) ** 2
    length, amplitude, noise = inputs("length", "amplitude", "noise")
    eye = np.eye(POINTS)
    covariance = amplitude * F.exp(gk.input("squares", squares.shape, dtype="float64") * -0.5 / (length * length))
    covariance = covariance + noise * F.constant(value=eye)
    target = gk.input("y", y.shape, dtype="float64")
    net = gk.Model({"loss": negative_log_likelihood(covariance, target)}, name="gaussian_process")
    start = {"length": 0.0, "amplitude": 0.0, "noise": -1.0}
    losses, logs = trained(net, start, {"squares": squares, "y": y})
    first = np.exp(-0.5 * squares) + math.exp(-1.0) * eye
    expected = normal_loss(first, y)
    np.testing.assert_allclose(losses[0], expected, rtol=1e-10)
    assert losses[-1] < losses[0] - 5
    assert 0.003 < math.exp(logs["noise"]) < 0.1


def test_bayesian_linear_regression() -> None:
    """Find the precisions of prior and noise by maximising the evidence (Bishop 2006, 3.86).

    The evidence, computed in the space of the 4 weights, equals the density of the targets.
    """
    rng = np.random.default_rng(1)
    design = rng.standard_normal((POINTS, 4))
    y = design @ np.array([[1.0], [-2.0], [0.5], [0.0]]) + 0.3 * rng.standard_normal((POINTS, 1))
    alpha, beta = inputs("alpha", "beta")
    phi, target = gk.input("phi", design.shape, dtype="float64"), gk.input("y", y.shape, dtype="float64")
    precision = F.syrk(phi, transpose=True) * beta + alpha * F.constant(value=np.eye(4))
    factor = F.potrf(precision)
    mean = F.mat_mul(F.potri(factor), F.gemm2(phi, target, transpose_a=True)) * beta
    residual = target - F.mat_mul(phi, mean)
    energy = (F.reduce_sum(residual * residual) * beta + F.reduce_sum(mean * mean) * alpha) * 0.5
    energy = F.reshape(energy, np.zeros(0, np.int64))
    evidence = F.log(alpha) * 2.0 + F.log(beta) * (POINTS / 2) - energy - F.sumlogdiag(factor) - POINTS * HALF_LOG_TURN
    net = gk.Model({"loss": F.neg(evidence)}, name="bayesian_regression")
    losses, logs = trained(net, {"alpha": 0.0, "beta": 0.0}, {"phi": design, "y": y})
    covariance = design @ design.T + np.eye(POINTS)
    expected = normal_loss(covariance, y)
    np.testing.assert_allclose(losses[0], expected, rtol=1e-10)
    assert losses[-1] < losses[0] - 5
    assert 0.15 < math.exp(-0.5 * logs["beta"]) < 0.6
