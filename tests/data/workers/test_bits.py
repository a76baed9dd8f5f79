"""Batches that workers make are those that this process makes."""

from __future__ import annotations

import numpy as np
import pytest
from combinations import full

from graphkit.data import Dataset, Splits, Workers, sources
from graphkit.data.stacking import form_of, parted
from graphkit.errors import InputError, UsageError


def bits(value):
    form = form_of(value)
    return form, [(a.dtype.name, a.shape, a.tobytes()) for a in parted(value, form)]


def content(batches):
    return [(bits(b.inputs), bits(b.targets), b.size, b.global_size, b.replaced) for b in batches]


@pytest.fixture(scope="module")
def workers():
    with Workers(2) as found:
        yield found


@pytest.mark.parametrize(
    ("count", "shuffle"), [(1, False), (3, True), full(1, True), full(2, True), full(2, False), full(3, False)]
)
def test_any_number_of_workers(sets, count, shuffle):
    found = sets.Noisy(23, name="noisy")
    options = {"seed": 3, "epoch": 2, "shuffle": shuffle}
    expected = content(found.batches(4, **options))
    assert len(expected) == 6
    assert expected[0][0][1][1][0] == "bfloat16"
    with Workers(count, ahead=count) as pool:
        batches = found.batches(4, workers=pool, **options)
        assert content(batches) == expected
        assert batches.position == (3, 0)
        later = {**options, "epoch": 3}
        assert content(batches) == content(found.batches(4, **later)), "the processes live on"
        assert content(found.batches(4, workers=pool, start=4, **options)) == expected[4:]


@pytest.mark.full
@pytest.mark.parametrize("ahead", [2, full(1), full(9)])
def test_ranks_and_resumption(sets, workers, ahead):
    found = sets.Noisy(9)
    for ranks in (2, 4):
        for rank in range(ranks):
            options = {"seed": 1, "rank": rank, "ranks": ranks}
            with Workers(1, ahead=ahead) as pool:
                parts = content(found.batches(2, workers=pool, **options))
            assert parts == content(found.batches(2, **options))
    assert [size for _, _, size, _, _ in parts] == [2, 1], "9 samples: 8, and one that the last rank gets"
    first = content(found.batches(2, workers=workers, rank=0, ranks=4, seed=1))
    assert first[1][0][1][0][1] == (0, 3), "an empty part has the shape of the others"


def test_a_position_is_set_within_an_epoch(sets, workers):
    found = sets.Plain(40, np.arange(40))
    batches = found.batches(4, shuffle=False, workers=workers)
    seen = []
    for batch in batches:
        seen.append(int(batch.targets[0]))
        if seen == [0, 4, 8]:
            batches.position = (0, 7)
    assert seen == [0, 4, 8, 28, 32, 36]


def test_sizes_that_differ_and_outgrow_their_memory(sets, workers):
    found = sets.Growing(64)
    expected = content(found.batches(3, seed=5))
    assert content(found.batches(3, seed=5, workers=workers)) == expected
    assert content(found.batches(3, seed=5, epoch=1, workers=workers)) == content(found.batches(3, seed=5, epoch=1))


def test_samples_that_do_not_fit_each_other(sets):
    found = sets.Plain(6, name="uneven")
    found.sample = lambda number, draw: (np.zeros(number // 3), None)
    with pytest.raises(InputError, match=r"uneven: samples of one batch must have one shape, but have \[0\] and \[1\]"):
        found.take(slice(None))
    found.sample = lambda number, draw: ({"a": 1} if number else {"a": 1, "b": 2}, None)
    with pytest.raises(InputError, match=r"one batch must be \{a, b\} and nothing, but are \{a\} and nothing"):
        found.take(slice(None))
    found.sample = lambda number, draw: ((number, number + 0.5 * (number > 2)), np.int8(number))
    (first, second), targets = found.take(slice(None))
    assert (first.dtype, second.dtype, targets.dtype) == (np.int64, np.float64, np.int8)
    assert second.tolist() == [0, 1, 2, 3.5, 4.5, 5.5]


def test_two_data_sets_at_once_and_epochs_given_up(sets, workers):
    train, test = sets.Noisy(30, np.arange(30) % 3).split(0.4)
    for _ in range(3):
        for batch in train.batches(2, workers=workers):
            assert batch.size == 2
            break
    pairs = zip(train.batches(3, seed=2, workers=workers), test.batches(2, shuffle=False, workers=workers), strict=True)
    first, second = zip(*pairs, strict=True)
    assert content(first) == content(train.batches(3, seed=2))
    assert content(second) == content(test.batches(2, shuffle=False))


def test_counts_of_workers(sets):
    found = sets.Plain(8, np.arange(8))
    train, test = found.split(0.5)
    for part in (train, test, train):
        assert content(part.batches(2, workers=2, seed=1)) == content(part.batches(2, seed=1))
    assert train._pool(2) is test._pool(2), "parts share processes"
    pool = train._pool(2)
    assert len(pool.pids) == 2
    assert pool.pids == pool.pids
    chosen = found.configured(workers=2)
    assert chosen.batches(2)._workers is pool
    assert chosen.batches(2, workers=0)._workers is None
    assert found.batches(2)._workers is None
    for wrong in (-1, "two", 1.5):
        with pytest.raises(UsageError, match="workers must be a number of processes"):
            found.batches(2, workers=wrong)
    with pytest.raises(UsageError, match="ahead=0"):
        Workers(1, ahead=0)
    pool.close()


def test_sources_take_the_choices_of_lazy_data(sets, monkeypatch):
    def rusty(path, *, test_fraction=0.25, seed=0, count=12):
        found = sets.Rusty(count, {3})
        return found if test_fraction is None else found.split(test_fraction, seed)

    rows = (*sources.SOURCES, sources.Source("rusty", "nowhere:load"))
    monkeypatch.setattr(sources, "SOURCES", rows)
    monkeypatch.setattr(sources, "_imported", lambda where: rusty)
    parts = sources.load("rusty:x", workers=1, on_damaged="skip", shuffle_window=4, count=16)
    assert isinstance(parts, Splits)
    assert [len(part) for part in parts] == [12, 4]
    assert parts.train.workers is parts.test.workers
    assert parts.train.workers.count == 1
    whole = sources.read("rusty:x", on_damaged="skip")
    assert (whole.on_damaged, whole.workers, len(whole)) == ("skip", 0, 12)
    with pytest.raises(UsageError, match="on_damaged must be 'raise' or 'skip', not 'ignore'"):
        sources.load("rusty:x", on_damaged="ignore")
    with pytest.raises(UsageError, match="shuffle_window must be a number of samples, not 0"):
        sources.load("rusty:x", shuffle_window=0)


def test_data_in_memory_have_no_workers():
    with pytest.raises(UsageError, match=r"digits.*: workers is only for lazy data sets"):
        sources.load("digits", workers=2)
    assert isinstance(sources.load("digits", workers=None).train, Dataset)


def test_workers_import_little(sets, workers):
    for batch in sets.Imports(4).batches(2, workers=workers):
        assert not batch.inputs.any(), [sets.Imports.names[i] for i in np.flatnonzero(batch.inputs[0])]
        assert batch.targets.tolist() == [1, 1]


def test_pillow_keeps_memory_in_workers_unless_the_user_says_how_much(sets, monkeypatch):
    monkeypatch.delenv("PILLOW_BLOCKS_MAX", raising=False)
    for given, wanted in ((None, 4), ("1", 1)):
        if given is not None:
            monkeypatch.setenv("PILLOW_BLOCKS_MAX", given)
        with Workers(1) as pool:
            (batch,) = sets.Environment(2).batches(2, workers=pool)
        assert batch.inputs.tolist() == [wanted, wanted]
