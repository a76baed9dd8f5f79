"""Samples that are made when their batch is."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit import data
from graphkit.errors import InputError


class Noisy(data.LazyDataset):
    """Sample n is n and, in training, a random number."""

    augments = True

    def sample(self, number, draw):
        noise = 0.0 if draw is None else draw.random()
        return np.array([number, noise]), None


def noise_of(found, **options):
    return {int(x[0]): x[1] for batch in found.batches(3, **options) for x in batch.inputs}


def test_changes_at_random_belong_to_seed_epoch_and_sample():
    found = Noisy(7, np.arange(7) % 2, name="noisy")
    first = noise_of(found, seed=3, epoch=1)
    assert len(set(first.values())) == 7
    assert noise_of(found, seed=3, epoch=1) == first
    # The random number of a sample does not depend on ranks or on the first sample.
    parts = [noise_of(found, seed=3, epoch=1, rank=r, ranks=2) for r in range(2)]
    assert parts[0] | parts[1] == first
    later = noise_of(found, seed=3, epoch=1, start=1)
    assert len(later) == 4
    assert later.items() <= first.items()
    # The last batch of an epoch too, behind which the position is in the next one.
    assert not set(noise_of(found, seed=3, epoch=2).values()) & set(first.values())
    assert not set(noise_of(found, seed=4, epoch=1).values()) & set(first.values())


def test_nothing_is_random_but_in_training():
    found = Noisy(7, np.arange(7) % 2)
    assert set(noise_of(found, shuffle=False).values()) == {0.0}
    assert not found.take(slice(0, 7))[0][:, 1].any()
    train, test = found.split(0.3)
    assert (len(train), len(test)) == (5, 2)
    kept = noise_of(train, seed=1)
    assert kept.items() <= noise_of(found, seed=1).items()
    assert train.targets.tolist() == [n % 2 for n in sorted(kept)]


def test_targets_and_empty_parts():
    found = Noisy(3, [5, 6, 7])
    inputs, targets = found.take(np.array([2, 0]))
    assert inputs[:, 0].tolist() == [2, 0]
    assert targets.tolist() == [7, 5]
    batches = list(found.batches(1, ranks=4, rank=0, shuffle=False))
    assert [b.size for b in batches] == [0]
    assert batches[0].inputs.shape == (0, 2)
    assert found.shape == (2,)
    with pytest.raises(InputError, match="the data set has no samples"):
        Noisy(0)
    with pytest.raises(InputError, match="3 samples, but 2 targets"):
        Noisy(3, [1, 2])
