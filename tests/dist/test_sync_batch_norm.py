"""Statistics of BatchNormalization over the samples of all processes."""

from pathlib import Path

import numpy as np
import pytest
from jobs import finish, start

import graphkit as gk


def net(seed=1):
    """Two branches with a BatchNormalization each, and one behind them, of vectors. No bias goes before one: its
    gradient would be nothing but rounding."""
    x = gk.input("x", ["N", 2, 4, 4])
    a = gk.relu(gk.nn.batch_norm(gk.nn.conv2d(x, 3, 3, bias=False, name="ca"), name="na"))
    b = gk.tanh(gk.nn.batch_norm(gk.nn.conv2d(x, 3, 3, bias=False, name="cb"), name="nb"))
    h = gk.reduce_mean(a * b + b, [2, 3], keepdims=False)
    h = gk.tanh(gk.nn.batch_norm(gk.nn.linear(h, 5, bias=False, name="fc"), name="nf"))
    return gk.Model(gk.nn.linear(h, 2, name="out"), seed=seed)


def samples(count, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 2, 4, 4), np.float32) * rng.uniform(0.2, 3, (count, 1, 1, 1)).astype(np.float32)
    return x, rng.standard_normal((count, 2), np.float32)


def trained(store, steps=4, count=32, sizes=None, model=net, data=samples, **options):
    trainer = gk.Trainer(
        model(), "mse", options.pop("optimizer", None) or gk.optim.SGD(0.1, momentum=0.9), kvstore=store, threads=1,
        seed=3, sync_batch_norm=True, **options,
    )  # fmt: skip
    rank, ranks = (0, 1) if store is None else (store.rank, store.num_workers)
    losses = []
    for step in range(steps):
        x, y = data(count, step)
        mine = slice(rank * count // ranks, (rank + 1) * count // ranks)
        if sizes is not None and store is not None:
            mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        losses.append(float(trainer.step(x[mine], y[mine])))
    trainer.flush()
    return trainer, losses


def assert_same(found, expected, bound=1e-5):
    for name, array in expected.net.params.items():
        difference = np.linalg.norm(found.net.params[name].astype(np.float64) - array)
        assert difference <= bound * np.linalg.norm(array), name


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_are_one_with_all_samples(on_ranks, processes):
    whole, losses = trained(None)
    found = on_ranks(lambda store: trained(store), processes)
    for trainer, seen in found:
        assert_same(trainer, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
    for name, array in found[0][0].net.params.items():
        for trainer, _ in found[1:]:
            np.testing.assert_array_equal(trainer.net.params[name], array)  # running statistics as well


@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 0.05},
        {"ema": 0.9},
        {"recompute": "sqrt"},
        {"deterministic": True},
        {"on_nonfinite": "skip"},
        {"on_nonfinite": "ignore"},
        {"precision": "bf16"},
        {"freeze": ["na_scale", "na_bias"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [None, (20, 12), (1, 31), (0, 32), (32, 0)])
def test_whatever_else_a_step_does_and_however_many_samples_each_has(on_ranks, sizes, options):
    whole, losses = trained(None, **options)
    bound = 3e-2 if "precision" in options else 1e-5
    for trainer, seen in on_ranks(lambda store: trained(store, sizes=sizes, **options)):
        assert_same(trainer, whole, bound)
        np.testing.assert_allclose(seen, losses, rtol=bound)
