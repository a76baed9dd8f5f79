"""Compare several steps of each optimizer with its formula in numpy, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.errors import UsageError

STEPS = 6


def norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.sum(x * x)))


# Each formula takes (weight, gradient, dict of states, step from 1), and returns the new weight.
Formula = Callable[[np.ndarray, np.ndarray, dict[str, Any], int], np.ndarray]


def rmsprop(lr: float, alpha: float, eps: float, momentum: float, centered: bool, decay: float) -> Formula:
    """torch.optim.RMSprop's documented loop."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        g = g + decay * w
        s["v"] = alpha * s.get("v", 0.0) + (1 - alpha) * g**2
        v = s["v"]
        if centered:
            s["a"] = s.get("a", 0.0) * alpha + (1 - alpha) * g
            v = v - s["a"] ** 2
        d = g / (np.sqrt(v) + eps)
        if momentum:
            d = s["b"] = momentum * s.get("b", 0.0) + d
        return w - lr * d

    return step


def adagrad(lr: float, lr_decay: float, initial: float, eps: float, decay: float) -> Formula:
    """torch.optim.Adagrad's documented loop."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        g = g + decay * w
        s["sum"] = s.get("sum", initial) + g**2
        return w - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)

    return step


def adadelta(lr: float, rho: float, eps: float, decay: float) -> Formula:
    """torch.optim.Adadelta's documented loop."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        g = g + decay * w
        s["v"] = s.get("v", 0.0) * rho + g**2 * (1 - rho)
        change = np.sqrt(s.get("u", 0.0) + eps) / np.sqrt(s["v"] + eps) * g
        s["u"] = s.get("u", 0.0) * rho + change**2 * (1 - rho)
        return w - lr * change

    return step


def ftrl(lr: float, beta: float, l1: float, l2: float) -> Formula:
    """McMahan et al. 2013, algorithm 1. z starts at a value that gives the initial weight."""

    def weight_of(z: np.ndarray, n: np.ndarray) -> np.ndarray:
        return np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / lr + l2))

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        if not s:
            s["n"] = np.zeros_like(w)
            s["z"] = -w * (beta / lr + l2) - np.sign(w) * l1
            np.testing.assert_allclose(weight_of(s["z"], s["n"]), w, rtol=1e-12)
        sigma = (np.sqrt(s["n"] + g**2) - np.sqrt(s["n"])) / lr
        s["z"] = s["z"] + g - sigma * w
        s["n"] = s["n"] + g**2
        return weight_of(s["z"], s["n"])

    return step


def lars(lr: float, momentum: float, trust: float, decay: float, vectors: bool) -> Formula:
    """You, Gitman and Ginsburg 2017, algorithm 1."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        ratio = 1.0
        if vectors or w.ndim > 1:
            if norm(w) > 0 and norm(g) > 0:
                ratio = trust * norm(w) / (norm(g) + decay * norm(w))
            g = g + decay * w
        s["v"] = momentum * s.get("v", 0.0) + lr * ratio * g
        return w - s["v"]

    return step


def lamb(lr: float, b1: float, b2: float, eps: float, decay: float, vectors: bool) -> Formula:
    """You et al. 2020, algorithm 2."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g**2
        r = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps)
        if not vectors and w.ndim < 2:
            return w - lr * r
        r = r + decay * w
        ratio = norm(w) / norm(r) if norm(w) > 0 and norm(r) > 0 else 1.0
        return w - lr * ratio * r

    return step


def lion(lr: float, b1: float, b2: float, decay: float) -> Formula:
    """Chen et al. 2023, algorithm 2."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        m = s.get("m", 0.0)
        s["m"] = b2 * m + (1 - b2) * g
        return w - lr * (np.sign(b1 * m + (1 - b1) * g) + decay * w)

    return step


def nadam(lr: float, b1: float, b2: float, eps: float, decay: float, psi: float, decoupled: bool) -> Formula:
    """torch.optim.NAdam's documented loop."""

    def step(w: np.ndarray, g: np.ndarray, s: dict[str, Any], t: int) -> np.ndarray:
        if decoupled:
            w = w - lr * decay * w
        else:
            g = g + decay * w
        mu, following = (b1 * (1 - 0.5 * 0.96 ** (n * psi)) for n in (t, t + 1))
        s["product"] = s.get("product", 1.0) * mu
        s["m"] = b1 * s.get("m", 0.0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0.0) + (1 - b2) * g**2
        m = following * s["m"] / (1 - s["product"] * following) + (1 - mu) * g / (1 - s["product"])
        return w - lr * m / (np.sqrt(s["v"] / (1 - b2**t)) + eps)

    return step


CASES = [
    (gk.optim.NAdam(0.01), nadam(0.01, 0.9, 0.999, 1e-8, 0.0, 4e-3, False)),
    (
        gk.optim.NAdam(0.01, beta1=0.5, beta2=0.75, epsilon=0.01, weight_decay=0.1, momentum_decay=0.5),
        nadam(0.01, 0.5, 0.75, 0.01, 0.1, 0.5, False),
    ),
    (
        gk.optim.NAdam(0.01, weight_decay=0.1, decoupled_weight_decay=True, momentum_decay=0.0),
        nadam(0.01, 0.9, 0.999, 1e-8, 0.1, 0.0, True),
    ),
    (gk.optim.NAdam(0.01, beta1=0.0, beta2=0.0), nadam(0.01, 0.0, 0.0, 1e-8, 0.0, 4e-3, False)),
    (gk.optim.RMSProp(0.01), rmsprop(0.01, 0.99, 1e-8, 0.0, False, 0.0)),
    (gk.optim.RMSProp(0.01, momentum=0.9, weight_decay=0.1), rmsprop(0.01, 0.99, 1e-8, 0.9, False, 0.1)),
    (gk.optim.RMSProp(0.01, alpha=0.8, epsilon=0.01, centered=True), rmsprop(0.01, 0.8, 0.01, 0.0, True, 0.0)),
    (
        gk.optim.RMSProp(0.01, alpha=0.8, epsilon=0.01, centered=True, momentum=0.5),
        rmsprop(0.01, 0.8, 0.01, 0.5, True, 0.0),
    ),
    (gk.optim.Adagrad(), adagrad(0.01, 0.0, 0.0, 1e-10, 0.0)),
    (gk.optim.Adagrad(0.1, lr_decay=0.5, initial=0.25, weight_decay=0.1), adagrad(0.1, 0.5, 0.25, 1e-10, 0.1)),
    (gk.optim.Adadelta(), adadelta(1.0, 0.9, 1e-6, 0.0)),
    (gk.optim.Adadelta(0.5, rho=0.8, epsilon=1e-4, weight_decay=0.1), adadelta(0.5, 0.8, 1e-4, 0.1)),
    (gk.optim.Ftrl(0.5), ftrl(0.5, 1.0, 0.0, 0.0)),
    (gk.optim.Ftrl(0.5, beta=0.5, l1=0.3, l2=0.1), ftrl(0.5, 0.5, 0.3, 0.1)),
    (gk.optim.LARS(0.5, trust=0.1, weight_decay=0.1), lars(0.5, 0.9, 0.1, 0.1, False)),
    (gk.optim.LARS(0.5, trust=0.1, vectors=True), lars(0.5, 0.9, 0.1, 0.0, True)),
    (gk.optim.Lamb(0.1), lamb(0.1, 0.9, 0.999, 1e-6, 0.01, False)),
    (gk.optim.Lamb(0.1, beta1=0.5, beta2=0.75, vectors=True), lamb(0.1, 0.5, 0.75, 1e-6, 0.01, True)),
    (gk.optim.Lion(0.01), lion(0.01, 0.9, 0.99, 0.0)),
    (gk.optim.Lion(0.01, beta1=0.5, beta2=0.75, weight_decay=0.1), lion(0.01, 0.5, 0.75, 0.1)),
]


def linear_model() -> gk.Model:
    x = gk.input("x", ["N", 3])
    return gk.Model({"y": gk.nn.linear(x, 2, name="fc")}, name="linear", seed=0)


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((8, 3), np.float32), rng.standard_normal((8, 2), np.float32)


@in_one_item()
@pytest.mark.parametrize(("optimizer", "formula"), CASES, ids=[f"{o.kind}-{i}" for i, (o, _) in enumerate(CASES)])
def test_the_trainer_follows_the_formula(optimizer: Any, formula: Formula) -> None:
    net = linear_model()
    weights = [net.params[n].astype(np.float64) for n in ("fc_weight", "fc_bias")]
    states: list[dict[str, Any]] = [{}, {}]
    trainer = gk.Trainer(net, "mse", optimizer)
    x, t = batch()
    for step in range(1, STEPS + 1):
        trainer.step(x, t)
        difference = 2 * (x @ weights[0].T + weights[1] - t) / t.size
        gradients = (difference.T @ x, difference.sum(0))
        weights = [formula(w, g, s, step) for w, g, s in zip(weights, gradients, states, strict=True)]
    np.testing.assert_allclose(net.params["fc_weight"], weights[0], rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(net.params["fc_bias"], weights[1], rtol=2e-4, atol=1e-6)


@in_one_item()
@pytest.mark.parametrize("optimizer", [o for o, _ in CASES], ids=[f"{o.kind}-{i}" for i, (o, _) in enumerate(CASES)])
def test_updates_have_native_kernels(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # With this variable, a node without a native kernel raises an error.
    monkeypatch.setenv("GRAPHKIT_STRICT", "1")
    x = gk.input("x", ["N", 3])
    net = gk.Model({"y": gk.nn.linear(x, 2, bias=False, name="fc")}, seed=0)
    start = net.params["fc_weight"].copy()
    gk.Trainer(net, "mse", optimizer, ema=0.9).step(*batch())
    assert not np.array_equal(net.params["fc_weight"], start)


def test_ftrl_gives_exact_zeros() -> None:
    x = gk.input("x", ["N", 4])
    net = gk.Model({"y": gk.nn.linear(x, 1, bias=False, name="fc")}, seed=0)
    start = net.params["fc_weight"].copy()
    rng = np.random.default_rng(0)
    data = rng.standard_normal((64, 4)).astype(np.float32)
    data[:, 3] = 0
    target = (2 * data[:, :1]).astype(np.float32)
    trainer = gk.Trainer(net, "mse", gk.optim.Ftrl(1.0, l1=2.0))
    for _ in range(200):
        trainer.step(data, target)
    weight = net.params["fc_weight"][0]
    assert weight[0] > 1
    assert list(weight[1:3]) == [0, 0]
    np.testing.assert_allclose(weight[3], start[0, 3], rtol=1e-5)


@in_one_item()
@pytest.mark.parametrize("name", gk.optim.names())
def test_every_optimizer_learns_and_reads_back(name: str) -> None:
    optimizer = gk.optim.get(name, lr=1.0 if name in ("adadelta", "ftrl") else 0.05)
    assert gk.optim.get(optimizer.describe()).describe() == optimizer.describe()
    if name == "lars":
        optimizer = gk.optim.LARS(1.0, trust=0.05)
    trainer = gk.Trainer(linear_model(), "mse", optimizer)
    x, t = batch()
    losses = [float(trainer.step(x, t)) for _ in range(60)]
    assert losses[-1] < 0.95 * losses[0]


def test_optimizer_by_name_has_default_learning_rate() -> None:
    assert gk.Trainer(linear_model(), "mse", "adadelta").learning_rate == 1.0
    assert gk.Trainer(linear_model(), "mse", "sgd").learning_rate == 0.05


# --- selected parameters and multipliers ------------------------------------------------------------


def test_multipliers_and_exclusion_from_decay() -> None:
    x = gk.input("x", ["N", 3])
    with gk.attr_scope(wd_mult="0"):
        h = gk.nn.linear(x, 3, bias_init="zeros", name="a")
    with gk.attr_scope(lr_mult="0.5"):
        net = gk.Model({"y": gk.nn.linear(h, 2, bias_init="zeros", name="b")}, seed=0)
    start = {n: net.params[n].copy() for n in net.params}
    # Input, target and biases are zero, so gradients are zero, and only the decay changes weights.
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1, weight_decay=0.5))
    trainer.step(np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(net.params["a_weight"], start["a_weight"])
    np.testing.assert_allclose(net.params["b_weight"], start["b_weight"] * (1 - 0.1 * 0.5 * 0.5), rtol=1e-6)

    # Patterns override attributes, and the last matching pattern counts.
    for name, array in start.items():
        net.params[name] = array
    options = {"wd_mult": {"*": 0.0, "a_*": 2.0}, "lr_mult": {"*": 1.0}}
    gk.Trainer(net, "mse", gk.optim.SGD(0.1, weight_decay=0.5), **options).step(
        np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32)
    )
    np.testing.assert_allclose(net.params["a_weight"], start["a_weight"] * (1 - 0.1 * 0.5 * 2), rtol=1e-6)
    np.testing.assert_array_equal(net.params["b_weight"], start["b_weight"])


def test_multipliers_survive_the_file(tmp_path: Any) -> None:
    x = gk.input("x", ["N", 3])
    with gk.attr_scope(lr_mult="0"):
        gk.Model({"y": gk.nn.linear(x, 2, name="fc")}, seed=0).save(tmp_path / "net.json")
    net = gk.load(tmp_path / "net.json")
    start = net.params["fc_weight"].copy()
    gk.Trainer(net, "mse", gk.optim.SGD(0.1)).step(*batch())
    np.testing.assert_array_equal(net.params["fc_weight"], start)


def test_train_patterns_are_the_inverse_of_freeze() -> None:
    net = linear_model()
    assert gk.Trainer(net, "mse", train=["*_bias"]).trained == ("fc_bias",)
    assert gk.Trainer(net, "mse", train=["fc*"], freeze=["*_bias"]).trained == ("fc_weight",)
    with pytest.raises(UsageError, match=r"train pattern 'conv\*' matches no parameter"):
        gk.Trainer(net, "mse", train=["conv*"])
    with pytest.raises(UsageError, match=r"lr_mult\['\*'\] is 'much', but lr_mult must be a dict of numbers"):
        gk.Trainer(net, "mse", lr_mult={"*": "much"})


# --- moving average ---------------------------------------------------------------------------------


# Adam has a slot named `mean`, too.
@in_one_item()
@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1), gk.optim.RMSProp(0.1, centered=True)])
@pytest.mark.parametrize("warmup", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_moving_average_follows_its_formula(warmup: bool, accumulate: int, optimizer: gk.optim.Optimizer) -> None:
    net = linear_model()
    average = net.params["fc_weight"].astype(np.float64)
    trainer = gk.Trainer(net, "mse", optimizer, ema=gk.optim.EMA(0.9, warmup=warmup), accumulate=accumulate)
    for step in range(1, 6):
        for _ in range(accumulate):
            trainer.step(*batch())
        decay = min(0.9, (1 + step) / (10 + step)) if warmup else 0.9
        average = decay * average + (1 - decay) * net.params["fc_weight"]
    weight = net.params["fc_weight"].copy()
    with trainer.averaged() as averaged:
        np.testing.assert_allclose(averaged.params["fc_weight"], average, rtol=1e-5)
        with pytest.raises(UsageError, match="call swap"):
            trainer.step(*batch())
        with pytest.raises(UsageError, match="call swap"):
            trainer.flush()
    np.testing.assert_array_equal(net.params["fc_weight"], weight)
    trainer.swap()
    np.testing.assert_allclose(net.params["fc_weight"], average, rtol=1e-5)
    trainer.swap()
    np.testing.assert_array_equal(net.params["fc_weight"], weight)


def test_evaluation_saved_model_and_resume_use_averages(tmp_path: Any) -> None:
    options = {"optimizer": gk.optim.Adagrad(0.5, initial=0.1), "ema": 0.8}
    straight = gk.Trainer(linear_model(), "mse", **options)
    x, t = batch()
    straight.fit((x, t), epochs=4, batch_size=4)
    first = gk.Trainer(linear_model(), "mse", **options)
    first.fit((x, t), epochs=2, batch_size=4, folder=tmp_path)
    saved = gk.load(tmp_path)
    with first.averaged() as net:
        np.testing.assert_array_equal(saved.params["fc_weight"], net.params["fc_weight"])
    assert not np.array_equal(saved.params["fc_weight"], first.net.params["fc_weight"])
    error = np.mean((saved.run({"x": x})["y"] - t) ** 2)
    assert first.evaluate((x, t), ["mse"])["mse"] == pytest.approx(error, rel=1e-5)

    resumed = gk.Trainer(saved, "mse", **options)
    resumed.resume(tmp_path)
    resumed.fit((x, t), epochs=4, batch_size=4)
    for name in straight.net.params:
        np.testing.assert_array_equal(resumed.net.params[name], straight.net.params[name])
    with straight.averaged() as a, resumed.averaged() as b:
        np.testing.assert_array_equal(a.params["fc_weight"], b.params["fc_weight"])


def test_errors_of_the_moving_average() -> None:
    with pytest.raises(UsageError, match=r"in \[0, 1\)"):
        gk.optim.EMA(1.0)
    with pytest.raises(UsageError, match="no moving average"):
        gk.Trainer(linear_model(), "mse").swap()


def test_a_dict_without_a_type_is_refused() -> None:
    with pytest.raises(UsageError, match="needs the key 'type': sgd, adam"):
        gk.optim.get({"name": "sgd", "lr": 0.1})


class _PicksOne(gk.optim.SGD):
    """Changes only the parameter called `second`."""

    def update(self, weight: Any, grad: Any, slots: Any, lr: Any, step: Any, decay: float) -> Any:
        return (weight - lr * grad if weight.name == "second" else weight,)


@pytest.mark.parametrize("in_subclass", [True, False])
def test_own_update_may_depend_on_the_parameter(in_subclass: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gk.optim.SGD, "update", _PicksOne.update)
    x = gk.input("x", ["N", 2])
    net = gk.Model({"y": x * gk.parameter("first", [2], "ones") * gk.parameter("second", [2], "ones")})
    trainer = gk.Trainer(net, "mse", (_PicksOne if in_subclass else gk.optim.SGD)(0.1), threads=1)
    trainer.step({"x": np.ones([1, 2], np.float32)}, np.zeros([1, 2], np.float32))
    changed = [name for name, array in trainer.net.state_dict().items() if not np.array_equal(array, np.ones(2))]
    assert changed == ["second"]


def test_copied_updates_equal_updates_built_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of parameters of equal types are copied, unless their decay differs."""
    calls: list[str] = []
    update = gk.optim.Adam.update

    def counted(self: Any, weight: Any, *given: Any) -> Any:
        calls.append(weight.name)
        return update(self, weight, *given)

    def step() -> list[str]:
        calls.clear()
        h = gk.input("x", ["N", 4])
        for i in range(6):
            h = gk.tanh(gk.nn.linear(h, 4, name=f"fc{i}"))
        factors: Any = {"lr_mult": {"fc4*": 0.5}, "wd_mult": {"fc5*": 0.0}}
        adam = gk.optim.Adam(0.1, weight_decay=0.1)
        trainer = gk.Trainer(gk.Model({"y": h}), "mse", adam, threads=1, **factors)
        return [str(graph) for graph in trainer.graphs]

    monkeypatch.setattr(counted, "__module__", gk.optim.Adam.__module__)
    monkeypatch.setattr(gk.optim.Adam, "update", counted)
    copied, copied_calls = step(), len(calls)
    monkeypatch.setattr(counted, "__module__", __name__)
    assert copied == step()
    assert (copied_calls, len(calls)) == (4, 12)
