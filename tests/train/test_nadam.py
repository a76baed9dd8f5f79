"""The scalars of NAdam at many steps, and NAdam in PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from combinations import in_one_item

import graphkit as gk
from graphkit.ir.types import DType
from graphkit.train import nesterov


def scalars(optimizer: gk.optim.NAdam, dtype: str, steps: list[int]) -> np.ndarray:
    step = gk.input("step", [], "int64")
    names = ("of_grad", "of_mean", "correction")
    values = nesterov.factors(optimizer, step, DType[dtype.upper()])
    run = gk.Model(dict(zip(names, values, strict=True)), name="scalars").compile(threads=1).run
    return np.array([[run({"step": np.int64(t)})[name] for name in names] for t in steps], np.float64)


def exact(beta1: float, beta2: float, psi: float, steps: list[int]) -> np.ndarray:
    t = np.arange(1, max(steps) + 2, dtype=np.longdouble)
    mu = np.longdouble(beta1) * (1 - np.longdouble(0.5) * np.longdouble(0.96) ** (t * np.longdouble(psi)))
    product = np.cumprod(mu)
    at = np.array(steps) - 1
    of_grad, of_mean = (1 - mu[at]) / (1 - product[at]), mu[at + 1] / (1 - product[at + 1])
    return np.stack([of_grad, of_mean, 1 - np.longdouble(beta2) ** t[at]], 1).astype(np.float64)


@in_one_item()
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize(
    "psi", [4e-3, *(pytest.param(x, marks=pytest.mark.full) for x in (0.0, 1e-12, 0.1, 1.0, 100.0))]
)
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.0, 0.0), (0.9999, 0.99999), (0.3, 0.5)])
def test_scalars_are_exact_at_any_step(dtype: str, tolerance: float, psi: float, beta1: float, beta2: float) -> None:
    steps = [1, 2, 3, 10, 99, 100, 1000, 20_000]
    found = scalars(gk.optim.NAdam(beta1=beta1, beta2=beta2, momentum_decay=psi), dtype, steps)
    np.testing.assert_allclose(found, exact(beta1, beta2, psi, steps), rtol=tolerance * 4)


@pytest.mark.pytorch
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"momentum_decay": 0.5, "betas": (0.5, 0.75), "eps": 1e-3},
        {"momentum_decay": 0.0},
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_equal_those_of_pytorch(options: dict[str, Any], dtype: str) -> None:
    import torch

    rng = np.random.default_rng(0)
    start = rng.standard_normal((3, 2)).astype(dtype)
    theirs = torch.nn.Parameter(torch.tensor(start))
    torch_optimizer = torch.optim.NAdam([theirs], lr=0.01, **options)
    own = {k: v for k, v in options.items() if k not in ("betas", "eps")}
    if "betas" in options:
        own |= {"beta1": options["betas"][0], "beta2": options["betas"][1], "epsilon": options["eps"]}
    optimizer = gk.optim.NAdam(0.01, **own)
    weight, grad = gk.input("w", [3, 2], dtype), gk.input("g", [3, 2], dtype)
    slots = [gk.input(name, [3, 2], dtype) for name in optimizer.slots]
    lr, step = gk.input("lr", [], "float32"), gk.input("step", [], "int64")
    new, states = optimizer.apply(weight, grad, slots, lr, step)
    run = gk.Model({"new": new, **dict(zip(optimizer.slots, states, strict=True))}, name="step").compile(threads=1).run
    feeds: dict[str, Any] = {"w": start, **{name: np.zeros_like(start) for name in optimizer.slots}}
    for t in range(1, 41):
        g = rng.standard_normal((3, 2)).astype(dtype)
        theirs.grad = torch.tensor(g)
        torch_optimizer.step()
        found = run({**feeds, "g": g, "lr": np.float32(0.01), "step": np.int64(t)})
        feeds = {"w": found["new"], **{name: found[name] for name in optimizer.slots}}
    # The learning rate of a step is float32.
    np.testing.assert_allclose(feeds["w"], theirs.detach().numpy(), rtol=1e-5 if dtype == "float32" else 1e-7)


def network() -> gk.Model:
    ids = gk.input("ids", ["N"], "int64")
    h = gk.nn.embedding(ids, rows=50, features=4, name="embed")
    return gk.Model({"y": gk.nn.linear(gk.tanh(h), 2, name="fc")}, name="net", seed=0)


def trained(store: Any = None, steps: int = 4, **options: Any) -> gk.Trainer:
    made = gk.Trainer(network(), "mse", gk.optim.NAdam(0.05, weight_decay=0.1), threads=1, kvstore=store, **options)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        ids, y = rng.integers(0, 50, 12), rng.standard_normal((12, 2), np.float32)
        rows = slice(None) if store is None else slice(store.rank * 6, store.rank * 6 + 6)
        made.step(ids[rows], y[rows])
    return made


@pytest.mark.parametrize("shard", [False, True])
def test_ranks_and_shards_equal_one_process(on_ranks: Any, shard: bool) -> None:
    alone = trained()
    for made in on_ranks(lambda store: trained(store, shard_optimizer=shard)):
        for name, array in alone.net.params.items():
            np.testing.assert_allclose(made.net.params[name], array, rtol=1e-4, atol=1e-6)


def test_updater_of_a_store_equals_the_trainer() -> None:
    """Parameter servers update by this object."""
    rng = np.random.default_rng(0)
    optimizer = gk.optim.NAdam(0.05, weight_decay=0.1)
    updater, stored = optimizer.updater(), rng.standard_normal((3, 2), np.float32)
    net = gk.Model({"y": gk.mat_mul(gk.input("x", ["N", 3]), gk.parameter("w", [3, 2]))}, name="net")
    net.params["w"] = stored.copy()
    types = {"target": gk.TensorType("float32", ["N", 2])}
    made = gk.Trainer(
        net, lambda y, target: gk.reduce_sum(y * target, keepdims=False), optimizer, targets=types, threads=1
    )
    for _ in range(5):
        g = rng.standard_normal((3, 2), np.float32)
        updater("w", g, stored)
        made.step(np.eye(3, dtype=np.float32), g)
    np.testing.assert_allclose(stored, made.net.params["w"], rtol=1e-6)


def test_row_sparse_update_changes_only_the_rows_read() -> None:
    made = gk.Trainer(network(), "mse", gk.optim.NAdam(0.05, weight_decay=0.1), threads=1, lazy=["embed*"])
    before = np.array(made.net.params["embed_weight"])
    for _ in range(3):
        made.step(np.array([1, 7, 7]), np.ones((3, 2), np.float32))
    changed = (np.array(made.net.params["embed_weight"]) != before).any(1)
    assert np.flatnonzero(changed).tolist() == [1, 7]


def test_scalars_are_computed_once_for_all_parameters() -> None:
    made = trained(steps=1)
    steps = made.plan({"ids": [12], "target": [12, 2]}).steps
    count = sum("Tanh" in step.op for step in steps)
    assert 1 <= count <= 1 + 3, "one of the network, at most three of the scalars, not three per parameter"
