from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.data import Dataset, order
from graphkit.errors import InputError, UsageError


def numbered(count=10):
    return Dataset(np.arange(count, dtype=np.float32)[:, None], np.arange(count), name="numbers")


def seen(batches):
    return [batch.targets.tolist() for batch in batches]


def test_an_epoch_visits_every_sample_once_and_inputs_stay_with_targets():
    batches = numbered().batches(3, seed=5)
    parts = list(batches)
    assert [b.size for b in parts] == [3, 3, 3, 1]
    assert len(batches) == 4
    assert sorted(np.concatenate([b.targets for b in parts])) == list(range(10))
    for inputs, targets in parts:
        np.testing.assert_array_equal(inputs[:, 0], targets)


def test_the_order_is_fixed_by_seed_and_epoch():
    assert order.permutation(10, 0, 0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert seen(numbered().batches(4, seed=1)) == seen(numbered().batches(4, seed=1))
    assert seen(numbered().batches(4, seed=1)) != seen(numbered().batches(4, seed=2))
    assert seen(numbered().batches(4, seed=1)) != seen(numbered().batches(4, seed=1, epoch=1))
    assert seen(numbered().batches(4, shuffle=False)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_permutations_are_uniform():
    first = np.array([order.permutation(5, seed, 3)[0] for seed in range(2000)])
    assert np.abs(np.bincount(first, minlength=5) - 400).max() < 80


def test_each_loop_is_an_epoch():
    batches = numbered().batches(4, seed=1)
    epochs = [seen(batches) for _ in range(3)]
    assert epochs == [seen(numbered().batches(4, seed=1, epoch=e)) for e in range(3)]
    assert batches.position == (3, 0)


@in_one_item()
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_resuming_continues_where_it_stopped(stop):
    whole = numbered().batches(4, seed=1, epoch=2)
    everything = seen(whole) + seen(whole)
    batches, before = numbered().batches(4, seed=1, epoch=2), []
    for batch in batches:
        before.append(batch.targets.tolist())
        if len(before) == stop:
            break
    epoch, start = batches.position
    assert (epoch, start) == ((2, stop) if stop < 3 else (3, 0))
    resumed = numbered().batches(4, seed=1, epoch=epoch, start=start)
    after = seen(resumed)
    if stop < 3:
        after += seen(resumed)
    assert before + after == everything

    batches.position = (2, 0)
    assert seen(batches) == everything[:3]


@in_one_item()
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("count", [24, 25, 30, 1])
def test_ranks_share_each_global_batch(ranks, count):
    alone = list(numbered(count).batches(2 * ranks, seed=9))
    shards = [list(numbered(count).batches(2, seed=9, rank=r, ranks=ranks)) for r in range(ranks)]
    assert {len(s) for s in shards} == {len(alone)}
    for parts, whole in zip(zip(*shards, strict=True), alone, strict=True):
        assert np.concatenate([p.targets for p in parts]).tolist() == whole.targets.tolist()
        assert {p.global_size for p in parts} == {whole.size}
        assert sum(p.size for p in parts) == whole.size
        assert max(p.size for p in parts) - min(p.size for p in parts) <= 1


def test_drop_last():
    assert [b.size for b in numbered().batches(4, drop_last=True)] == [4, 4]
    assert [b.size for b in numbered().batches(3, drop_last=True, ranks=2)] == [3]
    with pytest.raises(
        UsageError, match="numbers: drop_last leaves no batch: the data set has 10 samples, but a batch has 22"
    ):
        numbered().batches(11, ranks=2, drop_last=True)


@in_one_item()
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"batch_size": 2, "rank": 2, "ranks": 2},
        {"batch_size": 2, "start": 6},
        {"batch_size": 2, "epoch": -1},
    ],
)
def test_wrong_options(options):
    with pytest.raises(UsageError):
        numbered().batches(**options)


def test_seeds_have_a_range():
    with pytest.raises(UsageError, match=r"^the seed of a data set must be an integer from 0 to .*, not -1$"):
        list(numbered().batches(2, seed=-1))


# --- data sets --------------------------------------------------------------------------------------


def test_inputs_keep_their_form():
    a, b = np.zeros((4, 2), np.float32), np.ones((4, 3), np.int64)
    assert Dataset(a).inputs is a
    assert Dataset(a).names == ("x",)
    assert Dataset(a, names=["pixels"]).names == ("pixels",)
    pair = Dataset((a, b), names=["left", "right"])
    assert set(pair.inputs) == {"left", "right"}
    assert pair.targets is None
    assert Dataset([a, b]).names == ("x0", "x1")
    (batch,) = Dataset({"ids": b}, [0, 1, 2, 1]).batches(8, shuffle=False)
    assert batch.inputs["ids"].shape == (4, 3)
    assert batch.targets.tolist() == [0, 1, 2, 1]
    assert Dataset({"ids": b}, [0, 1, 2, 1]).num_classes == 3
    assert Dataset(a, a).num_classes is None
    assert Dataset(a, [0, 1, 0, 1], classes="abc").num_classes == 3
    assert pair.shape == (2,)


def test_split_is_stratified_disjoint_and_fixed():
    labels = np.array([0] * 50 + [1] * 30 + [2] * 20)
    data = Dataset(np.arange(100), labels)
    train, test = data.split(0.2, seed=3)
    assert np.bincount(test.targets).tolist() == [10, 6, 4]
    assert len(train) == 80
    assert sorted([*train.inputs, *test.inputs]) == list(range(100))
    assert (np.diff(train.inputs) > 0).all()
    np.testing.assert_array_equal(test.inputs, data.split(0.2, seed=3).test.inputs)
    assert test.inputs.tolist() != data.split(0.2, seed=4).test.inputs.tolist()


@in_one_item()
@pytest.mark.parametrize("stratify", [True, False])
@pytest.mark.parametrize("fraction", [0.1, 1 / 3, 0.5])
def test_split_sizes(stratify, fraction):
    data = Dataset(np.arange(37), np.arange(37) % 5)
    train, test = data.split(fraction, stratify=stratify)
    assert len(test) == round(37 * fraction)
    assert len(train) + len(test) == 37


def test_split_without_classes():
    data = Dataset(np.arange(10), np.linspace(0, 1, 10))
    assert len(data.split(0.3).test) == 3
    with pytest.raises(UsageError, match="test_fraction"):
        data.split(1.5)
    with pytest.raises(InputError, match=r"1 sample cannot be divided .*because one part would be empty"):
        Dataset(np.arange(1)).split()
    with pytest.raises(InputError, match=r"names of the samples\. To split by position instead, use split='position'"):
        order.hold_out("photos", 1, 0.5, 0, names=["a.jpg"])


@in_one_item()
@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            np.zeros((4, 2)),
            np.zeros(3),
            r"set: the arrays have different numbers of samples: x has 4, targets has 3; "
            r".*pass axes=\{'x': 1\} to gk.data.Dataset",
        ),
        (np.array([[1.0], [np.nan], [np.nan]]), None, "set: x holds NaN in 2 of 3 samples, first in sample 1"),
        (np.array([[1.0], [np.inf]]), None, "set: x holds infinity"),
        (np.zeros(2), np.array([0.0, np.nan]), "set: targets holds NaN"),
        (np.zeros((0, 2)), None, "the data set has no samples"),
        (np.float32(1), None, "single number"),
        (np.array(["a"]), None, "not numbers"),
        ({}, None, "at least one input array is required"),
    ],
)
def test_bad_data(inputs, targets, message):
    with pytest.raises(InputError, match=message):
        Dataset(inputs, targets, name="set")


def test_names_must_fit():
    with pytest.raises(UsageError, match="names= must have 2 different names"):
        Dataset((np.zeros(2), np.zeros(2)), names=["a", "a"])
    with pytest.raises(UsageError, match="the keys of a dict are the names"):
        Dataset({"a": np.zeros(2)}, names=["b"])
