"""The shared memory of batches: ownership, amount, and release."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from graphkit import config
from graphkit.data import Workers
from graphkit.errors import InputError, UsageError

MIB = 1 << 20


# Shared memory that earlier tests have left, by number. It is not counted.
_others: set[int] = set()


def _each():
    """Number and bytes of each memory without a name that this process has open, once for each descriptor."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            if "memfd:graphkit batch" in os.readlink(link):
                status = os.stat(link)
                yield status.st_ino, status.st_size


@pytest.fixture(autouse=True)
def _alone():
    gc.collect()
    _others.clear()
    _others.update(number for number, _ in _each())


def files():
    """Bytes of each memory that this test has made."""
    return [size for number, size in _each() if number not in _others]


def held():
    """Each batch's file is open twice: by itself, and by its mapping."""
    return sum(files()) / MIB / 2


def test_batches_may_be_kept_and_written(sets):
    found = sets.Plain(600, np.arange(600))
    with Workers(2) as workers:
        kept = list(found.batches(4, shuffle=False, workers=workers))
        for number, batch in enumerate(kept):
            assert batch.inputs[:, 0].tolist() == [number * 4 + i for i in range(4)]
            assert batch.inputs.flags.writeable
            assert batch.inputs.flags.aligned
            batch.inputs[:] = -1
        assert len(files()) <= 2 * (64 + 4 + 1), "150 batches do not take a file each"
        again = list(found.batches(4, shuffle=False, workers=workers))
        assert all((batch.inputs == -1).all() for batch in kept)
        assert [int(batch.inputs[0, 0]) for batch in again] == list(range(0, 600, 4))
        view = again[3].inputs[1:, ::2]
        del kept, again, batch
        gc.collect()
        list(found.batches(4, workers=workers))
    assert view.tolist() == [[13.0] * 3, [14.0] * 3, [15.0] * 3], "beyond the end of the workers too"


def test_nothing_is_copied(sets):
    with Workers(1) as workers:
        addresses = set()
        for batch in sets.Heavy(40).batches(1, workers=workers):
            assert not batch.inputs.flags.owndata
            addresses.add(batch.inputs.ctypes.data)
            del batch
        assert len(addresses) <= 5, "memory is used again"


@pytest.mark.full
def test_what_is_ahead_is_bounded(sets):
    found = sets.Heavy(64)
    most = 0.0
    with Workers(3, ahead=20, ahead_bytes=9 * MIB) as workers:
        for batch in found.batches(2, workers=workers):
            time.sleep(0.02)
            del batch
            most = max(most, held())
    # One batch is held by the consumer.
    assert 4 <= most <= 9 + 2 + 0.1
    with Workers(3, ahead=2) as workers:
        for _ in found.batches(2, workers=workers):
            time.sleep(0.01)
            assert held() <= 2 * (2 + 2) + 0.1
    with Workers(1, ahead=20, ahead_bytes=1) as workers:
        assert len(list(found.batches(8, workers=workers))) == 8, "one is always made"


@pytest.mark.full
def test_memory_of_one_huge_batch_is_given_back(sets):
    found = sets.Growing(64)
    with Workers(2, ahead_bytes=4 * MIB) as workers:
        most = 0.0
        for batch in found.batches(1, shuffle=False, workers=workers):
            most = max(most, held())
            del batch
        assert most > 11
        for batch in found.batches(1, shuffle=False, start=44, workers=workers):
            del batch
        assert held() <= 4.1


def test_nothing_is_left(sets, gone):
    def count():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def names():
        return {name for name in os.listdir("/dev/shm") if "graphkit" in name or "psm" in name}

    named, before = names(), count()
    for _ in range(2):
        workers = Workers(2)
        for _ in sets.Plain(30, np.arange(30)).batches(4, workers=workers):
            assert names() <= named
        del _
        pids = workers.pids
        assert len(pids) == 2
        workers.close()
        assert not workers.pids
        assert gone(pids)
        assert count() == before
    found = sets.Plain(30, np.arange(30))
    next(iter(found.batches(4, workers=2)))
    pids = found._pool(2).pids
    del found
    assert count() == before, "a data set that is gone takes its workers along"
    assert gone(pids)


def test_a_data_set_that_is_gone_leaves_no_file(sets):
    def count():
        gc.collect()
        open_files = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return sum("data set" in os.readlink(path) for path in open_files)

    with Workers(1) as workers:
        for _ in range(5):
            for _ in sets.Plain(8, np.arange(8)).batches(4, workers=workers):
                pass
        assert count() <= 2


def test_strings_are_refused_by_name(sets):
    found = sets.Words(4, name="words")
    assert next(iter(found.batches(2, shuffle=False))).inputs["word"].tolist() == ["a", "bc"]
    with pytest.raises(InputError, match=r"words: input 'word' contains <U2, which workers cannot share"):
        next(iter(found.batches(2, shuffle=False, workers=1)))


def test_arrays_of_a_data_set_are_sent_once(sets):
    """Workers share one copy of the table. If a worker writes to it, it gets its own copy."""
    from graphkit.data import MapDataset

    data = sets.Mapped(4000)
    found = MapDataset(data, ("x",))
    with Workers(2) as workers:
        inputs = np.concatenate([b.inputs for b in found.batches(500, shuffle=False, workers=workers)])
    np.testing.assert_array_equal(inputs, data.table)


def test_the_settings(monkeypatch):
    monkeypatch.setenv("GRAPHKIT_AHEAD_MEMORY", "3MB")
    monkeypatch.setenv("GRAPHKIT_WORKER_TIMEOUT", "7")
    workers = Workers(1)
    assert (workers._memory, workers._timeout) == (3_000_000, 7.0)
    monkeypatch.setenv("GRAPHKIT_WORKER_TIMEOUT", "soon")
    with pytest.raises(UsageError, match="GRAPHKIT_WORKER_TIMEOUT='soon'"):
        config.WORKER_TIMEOUT.get()


def test_deletion_of_a_batch_calls_no_python(sets):
    """Python ignores exceptions of functions that a deletion calls: a KeyboardInterrupt there would be lost."""
    with Workers(1) as workers:
        batch = next(iter(sets.Noisy(9).batches(4, workers=workers)))
        arrays, called = [batch.inputs, batch.targets], []
        del batch
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            arrays.clear()
        finally:
            sys.setprofile(None)
    assert called == []
