"""Masks in training with several processes."""

import numpy as np
import pytest
from test_shared_step import assert_same, net, samples, trained

import graphkit as gk
from graphkit.errors import RanksDiffer, UsageError

MASK = np.random.default_rng(0).random((40, 6)) < 0.5


def pruned(seed=1):
    made = net(seed)
    made.params["a_weight"] = np.where(MASK, made.params["a_weight"], np.float32(0))
    return made


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"accumulate": 2}, marks=pytest.mark.full),
        pytest.param({"ema": 0.9}, marks=pytest.mark.full),
        pytest.param({"shard_optimizer": True}, marks=pytest.mark.full),
        {"shard_optimizer": True, "clip_norm": 0.05, "ema": 0.9},
        {"shard_optimizer": True, "accumulate": 3},
    ],
    ids=str,
)
def test_masks_are_those_of_one_process(on_ranks, options, tmp_path):
    alone = {name: value for name, value in options.items() if name != "shard_optimizer"}
    whole, _ = trained(None, model=pruned, masks={"a_weight": MASK}, **alone)

    def work(store):
        made, _ = trained(store, model=pruned, masks={"a_weight": MASK}, **options)
        made.save(tmp_path / "run")
        return made

    for found in on_ranks(work):
        assert_same(found, whole)
        weight = np.asarray(found.net.params["a_weight"])
        assert not weight[~MASK].any()
        assert weight[MASK].all()
    resumed = gk.Trainer(
        net(1), "mse", gk.optim.Adam(0.01), masks={"a_weight": np.ones_like(MASK)}, threads=1, seed=3, **alone
    )
    resumed.resume(tmp_path / "run")
    np.testing.assert_array_equal(resumed.masks()["a_weight"], MASK)


def test_a_rank_without_samples_keeps_the_masks(on_ranks):
    def part(rank):
        return slice(0, 3) if rank == 0 else slice(0, 0)

    for found in on_ranks(lambda store: trained(store, model=pruned, part=part, masks={"a_weight": MASK})[0]):
        assert not np.asarray(found.net.params["a_weight"])[~MASK].any()


def test_different_masks_are_an_error_on_all_ranks(on_ranks):
    def work(store):
        masks = {"a_weight": MASK} if store.rank == 0 else None
        with pytest.raises(RanksDiffer, match="mask"):
            gk.Trainer(pruned(), "mse", "adam", kvstore=store, masks=masks)

    on_ranks(work)


def test_masks_that_one_rank_replaces_are_an_error_on_all_ranks(on_ranks):
    def work(store):
        made, _ = trained(store, model=pruned, masks={"a_weight": MASK}, steps=1)
        if store.rank == 1:
            made.set_masks({"a_weight": np.zeros_like(MASK)})
        with pytest.raises(RanksDiffer):
            made.step(*samples(8))

    on_ranks(work)


def test_masks_cannot_be_combined_with_groups(on_ranks):
    def work(store):
        with pytest.raises(UsageError, match=r"masks= .--keep-zeros."):
            gk.Trainer(pruned(), "mse", "adam", kvstore=store, masks={"a_weight": MASK}, groups={"g": 0})

    on_ranks(work)
