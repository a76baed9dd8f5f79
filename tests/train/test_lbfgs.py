"""L-BFGS against PyTorch's and scipy's, on Rosenbrock's function, least squares and a small network."""

from __future__ import annotations

import numpy as np
import pytest

import graphkit as gk
from graphkit.errors import NotFinite, UsageError

RNG = np.random.default_rng(0)
X, T = RNG.standard_normal((30, 3)), RNG.standard_normal((30, 2))


def network(seed=0, dtype="float64", hidden=5):
    x = gk.input("x", ["N", 3], dtype=dtype)
    h = gk.tanh(gk.nn.linear(x, hidden, name="fc1"))
    return gk.Model({"y": gk.nn.linear(h, 2, name="fc2")}, seed=seed)


def rosenbrock():
    """(1 - a)^2 + 100 (b - a^2)^2 of two parameters; the input is not used."""
    x = gk.input("x", ["N", 1], dtype="float64")
    a, b = (gk.parameter(name, (), {"type": "constant", "value": value}, dtype="float64") for name, value in
            (("a", -1.2), ("b", 1.0)))  # fmt: skip
    error = gk.add(gk.pow(1.0 - a, 2.0), 100.0 * gk.pow(b - a * a, 2.0))
    return gk.Model({"y": gk.add(gk.mul(gk.reduce_mean(x, keepdims=False), 0.0), error)})


def test_minimum_of_rosenbrocks_function():
    net = rosenbrock()
    trainer = gk.LBFGS(net, lambda y: y, targets={}, max_iter=100, tolerance_change=1e-14)
    assert trainer.step(np.ones((1, 1)), {}) == pytest.approx(24.2)
    np.testing.assert_allclose([net.params["a"], net.params["b"]], 1.0, atol=1e-6)
    assert trainer.evaluations < 80


def test_least_squares_solution():
    x = gk.input("x", ["N", 3], dtype="float64")
    net = gk.Model({"y": gk.nn.linear(x, 2, name="fc", bias=False)})
    gk.LBFGS(net, "mse", max_iter=50, tolerance_change=1e-14).step(X, T)
    np.testing.assert_allclose(net.params["fc_weight"].T, np.linalg.lstsq(X, T, rcond=None)[0], atol=1e-6)


def test_minimum_is_that_of_scipy():
    from scipy import optimize

    net = network()
    names = list(net.params)
    start = net.state_dict()
    trainer = gk.LBFGS(net, "mse", max_iter=500)
    trainer.step(X, T)
    ours = float(np.mean((net.run({"x": X})["y"] - T) ** 2))

    def loss(flat):
        parts = np.split(flat, np.cumsum([start[n].size for n in names])[:-1])
        w1, b1, w2, b2 = (part.reshape(start[n].shape) for part, n in zip(parts, names, strict=True))
        return np.mean((np.tanh(X @ w1.T + b1) @ w2.T + b2 - T) ** 2)

    flat = np.concatenate([start[n].reshape(-1) for n in names])
    assert loss(flat) > 2 * ours
    theirs = optimize.minimize(loss, np.concatenate([net.params[n].reshape(-1) for n in names]), method="L-BFGS-B")
    assert ours <= theirs.fun + 1e-4


def test_frozen_parameters_stay():
    net = network()
    before = net.state_dict()
    gk.LBFGS(net, "mse", freeze=["fc1*"]).step(X, T)
    changed = [name for name, array in net.state_dict().items() if not np.array_equal(array, before[name])]
    assert changed == ["fc2_weight", "fc2_bias"]


def test_loss_that_is_not_finite_restores_the_parameters():
    x = gk.input("x", ["N", 1], dtype="float64")
    weight = gk.parameter("w", (1,), "ones", dtype="float64")
    net = gk.Model({"y": gk.reduce_mean(gk.log(gk.mul(x, weight)), keepdims=False)})
    trainer = gk.LBFGS(net, lambda y: y, targets={}, line_search=None, lr=50.0)
    with pytest.raises(NotFinite, match="try a smaller lr"):
        trainer.step(np.ones((2, 1)), {})
    assert net.params["w"] == 1.0


@pytest.mark.parametrize("line_search", ["strong_wolfe", None])
def test_interrupt_of_a_move_restores_the_parameters(monkeypatch, line_search):
    net = network()
    trainer = gk.LBFGS(net, "mse", max_iter=2, line_search=line_search)
    trainer.step(X, T)
    before = net.state_dict()
    evaluate, calls = trainer._evaluate, iter(range(9))

    def interrupted(feeds):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return evaluate(feeds)

    monkeypatch.setattr(trainer, "_evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.step(X, T)
    for name, array in net.state_dict().items():
        np.testing.assert_array_equal(array, before[name])
    monkeypatch.undo()
    pairs = len(trainer._history.pairs)
    first = trainer.step(X[:5], T[:5])  # other samples must not count as a change of the gradient along a move
    assert len(trainer._history.pairs) <= pairs + 1
    assert np.mean((net.run({"x": X[:5]})["y"] - T[:5]) ** 2) < first


def test_wrong_arguments():
    with pytest.raises(UsageError, match="line_search must be 'strong_wolfe' or None"):
        gk.LBFGS(network(), "mse", line_search="armijo")
    with pytest.raises(UsageError, match="max_iter"):
        gk.LBFGS(network(), "mse", max_iter=0)
    for lr in (0, -1.0):
        with pytest.raises(UsageError, match="lr must be a finite number above 0"):
            gk.LBFGS(network(), "mse", lr=lr)


@pytest.mark.pytorch
@pytest.mark.parametrize("line_search", ["strong_wolfe", None])
@pytest.mark.parametrize("options", [{}, {"max_iter": 7, "history_size": 3}, {"lr": 0.3, "max_eval": 9}], ids=str)
def test_iterations_are_those_of_pytorch(line_search, options):
    torch = pytest.importorskip("torch")
    net = network()
    parameters = [torch.tensor(np.array(a), requires_grad=True) for a in net.params.values()]
    optimizer = torch.optim.LBFGS(parameters, **{"lr": 1, **options}, line_search_fn=line_search)

    def closure():
        optimizer.zero_grad()
        w1, b1, w2, b2 = parameters
        output = torch.tanh(torch.as_tensor(X) @ w1.T + b1) @ w2.T + b2
        loss = torch.nn.functional.mse_loss(output, torch.as_tensor(T))
        loss.backward()
        return loss

    trainer = gk.LBFGS(net, "mse", line_search=line_search, **options)
    for _ in range(4):
        assert trainer.step(X, T) == pytest.approx(optimizer.step(closure).item(), rel=1e-5)
        state = optimizer.state[parameters[0]]
        assert (trainer.iterations, trainer.evaluations) == (state["n_iter"], state["func_evals"])
    for array, tensor in zip(net.params.values(), parameters, strict=True):
        np.testing.assert_allclose(array, tensor.detach().numpy(), rtol=1e-4, atol=1e-6)
