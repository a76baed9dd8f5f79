"""Row-sparse tables over processes: the rows that any of them read follow one update, and no others travel."""

import numpy as np
import pytest

import graphkit as gk

USERS, ITEMS = 60, 40
TABLES = ["user*", "item*"]


def net(seed=1):
    return gk.models.build("matrix_factorization", users=USERS, items=ITEMS, factors=8)


def ratings(count, seed=0):
    rng = np.random.default_rng(seed)
    inputs = {"user": rng.integers(0, USERS, count), "item": rng.integers(0, ITEMS, count)}
    return inputs, rng.standard_normal(count, np.float32)


def part_of(store, count, sizes=None):
    rank, ranks = (0, 1) if store is None else (store.rank, store.num_workers)
    if sizes is None or store is None:
        return slice(rank * count // ranks, (rank + 1) * count // ranks)
    return slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def trained(store, steps=5, count=16, sizes=None, optimizer=None, data=ratings, **options):
    """A trainer after so many steps with this rank's part of the samples, and the losses."""
    optimizer = gk.optim.Adam(0.01) if optimizer is None else optimizer
    trainer = gk.Trainer(net(), "mse", optimizer, kvstore=store, threads=1, seed=3, lazy=TABLES, **options)
    losses = []
    for step in range(steps):
        inputs, target = data(count, step)
        mine = part_of(store, count, sizes)
        losses.append(float(trainer.step({n: a[mine] for n, a in inputs.items()}, target[mine])))
    return trainer, losses


def states(trainer):
    return {**trainer.net.params, **trainer._slots}


def assert_same(found, expected, bound=1e-5):
    for name, array in states(expected).items():
        difference = np.linalg.norm(states(found)[name].astype(np.float64) - array)
        assert difference <= bound * np.linalg.norm(array), name


@pytest.mark.parametrize("processes", [2, 3])
def test_a_step_is_that_of_one_process(on_ranks, processes):
    whole, losses = trained(None)
    for found, seen in on_ranks(lambda store: trained(store), processes):
        assert_same(found, whole)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
