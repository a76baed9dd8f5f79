"""Orders that read nearly from front to back."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import in_one_item

from graphkit.data import LazyDataset, order


@in_one_item()
@pytest.mark.parametrize(("count", "window"), [(1, 1), (10, 1), (10, 3), (1000, 64), (1000, 100), (999, 5000)])
def test_each_sample_once_and_no_epoch_as_another(count, window):
    first = order.windowed(count, 5, 0, window)
    assert first.dtype == np.int64
    assert np.array_equal(np.sort(first), np.arange(count))
    assert np.array_equal(first, order.windowed(count, 5, 0, window))
    if count > 1:
        assert not np.array_equal(first, order.windowed(count, 5, 1, window))
        assert not np.array_equal(first, order.windowed(count, 6, 0, window))


@in_one_item()
@pytest.mark.parametrize("window", [64, 100, 512])
def test_few_places_are_open(window):
    """A window reads from at most 17 blocks, and an epoch reads each block once, except at borders of windows."""
    found = order.windowed(10_000, 1, 2, window)
    block = -(-window // 16)
    touched = [np.unique(found[i : i + window] // block) for i in range(0, len(found), window)]
    assert max(map(len, touched)) <= 17
    # A block is in one window, or in two that follow each other.
    assert sum(map(len, touched)) <= 10_000 / block + len(touched)


def test_windows_are_mixed():
    """As much as samples of a window can be: neighbours in the order are seldom neighbours in the data."""
    found = order.windowed(10_000, 1, 2, 512)
    assert np.mean(np.abs(np.diff(found)) == 1) < 0.02
    # And windows hold samples of everywhere.
    assert np.mean([np.ptp(found[i : i + 512]) for i in range(0, 9_728, 512)]) > 8_000


class Numbers(LazyDataset):
    def sample(self, number, draw):
        return np.array([number]), None


def test_batches_in_windows():
    found = Numbers(100).configured(shuffle_window=32)
    seen = [int(x[0]) for batch in found.batches(7, seed=2, epoch=3) for x in batch.inputs]
    assert seen == order.windowed(100, 2, 3, 32).tolist()
    later = [int(x[0]) for batch in found.batches(7, seed=2, epoch=3, start=5) for x in batch.inputs]
    assert later == seen[35:]
    parts = [[b.inputs[:, 0] for b in found.batches(5, seed=2, epoch=3, rank=r, ranks=2)] for r in range(2)]
    assert np.concatenate([np.concatenate(pair) for pair in zip(*parts, strict=True)]).tolist() == seen
    assert found.orders_samples, "batches may change their size within an epoch"
    assert Numbers(4).batches(2, seed=1).order(0).tolist() == order.permutation(4, 1, 0).tolist()
