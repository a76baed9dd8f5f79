"""Operations that ranks post in different orders run in the same order. If ranks wait for each other, all report it."""

import re
import threading
import time
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from clocks import wait_until
from combinations import in_one_item

from graphkit.dist import kvstore
from graphkit.dist.collectives.layout import Slices
from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.job import mpi
from graphkit.dist.job.mpi import _summands
from graphkit.dist.progress.engine import OVERLAPS
from graphkit.dist.transport import FIXED_BUCKET, Transport
from graphkit.errors import InputError, RuntimeFailure, UsageError


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_any_order_of_pushes_and_pulls(on_ranks, overlap, processes):
    keys = [f"key {number}" for number in range(7)]

    def work(store):
        store.transport.communicator.engine.overlap = overlap
        rng = np.random.default_rng(store.rank)
        sizes = {key: number * 1000 for number, key in enumerate(keys)}  # none to some that are sent alone
        store.init(keys, [np.zeros(sizes[key]) for key in keys])
        for step in range(30):
            for key in rng.permutation(keys):
                store.push(str(key), np.full(sizes[key], step + 10.0 * store.rank))
            for key in rng.permutation(keys):
                found = store.pull(str(key))
                assert (found == processes * step + 10 * sum(range(processes))).all()
        store.barrier()
        return True

    assert all(on_ranks(work, processes))


def test_a_key_keeps_its_order(on_ranks):
    seen = {}

    def work(store):
        store.init(["a", "b"], [np.zeros(1), np.zeros(1)])
        mine = seen[store.rank] = []
        store.set_updater(lambda key, total, stored: mine.append((key, float(total[0]))))
        for number in range(20):
            first, second = ("a", "b") if store.rank else ("b", "a")
            store.push(first, np.full(1, float(number)))
            store.push(second, np.full(1, float(number)))
        store.wait()
        return True

    assert all(on_ranks(work))
    assert seen[0] == seen[1]  # between keys, too: one order for all
    for key in "ab":
        assert [total for found, total in seen[0] if found == key] == [2 * n for n in range(20)]


def test_higher_priorities_go_first(on_ranks):
    seen = {}

    def work(store):
        store.transport.communicator.engine.overlap = "funnelled"  # operations run only while a caller waits
        keys = [0, 1, 2, 3]
        store.init(keys, [np.zeros(9000)] * 4)
        mine = seen[store.rank] = []
        store.set_updater(lambda key, total, stored: mine.append(key))
        for key in keys if store.rank else keys[::-1]:
            # Ranks that differ about a priority take the highest.
            store.push(key, np.zeros(9000), priority=-5 if key == 2 and store.rank else key)
        store.wait()

    on_ranks(work)
    assert seen[0] == seen[1] == [3, 2, 1, 0]


def test_small_sums_travel_together_and_large_ones_alone(on_ranks):
    def work(store):
        store.transport.communicator.engine.overlap = "funnelled"
        calls = []
        summed = store.transport.communicator.allreduce
        store.transport.communicator.allreduce = lambda array, out=None: (
            calls.append(array.nbytes) or summed(array, out)
        )
        keys = [f"small {n}" for n in range(50)] + ["large", "text"]
        values = [np.full(4, n, np.float32) for n in range(50)] + [np.ones(1 << 20, np.float32), np.ones(3, np.int64)]
        found = store.pushpull(keys, values)
        for total, value in zip(found, values, strict=True):
            assert total.dtype == value.dtype
            assert (total == 2 * value).all()
        assert len({id(total.base) for total in found if total.base is not None}) in (0, len(found))  # nothing shared
        return sorted(calls)

    for calls in on_ranks(work):
        assert calls == [24, 46 * 16, 4 << 20]  # four have gone with the announcement


def test_a_sum_is_written_into_out_where_mpi_can_write_it():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    out = np.empty_like(array)
    source, total = _summands(array, out)
    assert source is array
    assert total is out
    source, total = _summands(array, array)
    assert source is total is array
    for out in (np.empty((2, 3)), np.empty(6, np.float32), np.empty((3, 2), np.float32).T, None):
        source, total = _summands(array, out)
        assert source is array
        assert total is not out
        assert (total.dtype, total.shape) == (array.dtype, array.shape)
        assert total.flags.c_contiguous
    both = np.zeros(9, np.float32)
    source, total = _summands(both[:6], both[3:])
    assert not np.may_share_memory(source, total)


@in_one_item()
@pytest.mark.parametrize(
    ("dtype", "by_mpi"), [(np.int16, True), (np.float32, True), (np.float16, False), (ml_dtypes.bfloat16, False)]
)
def test_only_halves_are_scattered_without_mpi(dtype, by_mpi):
    calls = []
    found = object.__new__(mpi.MpiCommunicator)
    found.rank, found.hosts = 0, SimpleNamespace(reduce_scatter=lambda array, bounds: calls.append("by MPI"))
    found.allreduce = lambda array: calls.append("all-reduce") or array
    found.reduce_scatter(np.zeros(4, dtype), [0, 2, 4])
    assert calls == ["by MPI" if by_mpi else "all-reduce"]


@in_one_item()
@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("cannot_finalize", [True, False])
@pytest.mark.parametrize("finalized", [True, False])
def test_mpi_is_closed_by_whom_it_was_opened_once(monkeypatch, opened, cannot_finalize, finalized):
    closed = []
    library = SimpleNamespace(Is_finalized=lambda: finalized, Finalize=lambda: closed.append("MPI"))
    monkeypatch.setattr(mpi, "_mpi", lambda: library)
    found = object.__new__(mpi.MpiCommunicator)
    found.engine, found._monitor = SimpleNamespace(close=lambda: closed.append("engine")), None
    found.messages = SimpleNamespace(close=lambda: closed.append("messages"))
    found._opened, found.cannot_finalize, found.job_rank, found.processes = opened, cannot_finalize, 0, 1
    found.finalize()
    assert closed == ["engine", "messages", *(["MPI"] if opened and not cannot_finalize and not finalized else [])]


def test_what_a_rank_waits_for_is_told_to_the_watch():
    """Without that, a job that hangs would not be ended."""
    watch = SimpleNamespace(for_progress=object(), for_heartbeats=object())
    waiting = [mpi.MpiCommunicator.waiting(SimpleNamespace(_monitor=watch), steps) for steps in (True, False)]
    assert waiting == [watch.for_progress, watch.for_heartbeats]
    with mpi.MpiCommunicator.waiting(SimpleNamespace(_monitor=None), True) as nothing:
        assert nothing is None


def test_several_ranks_use_the_bucket_that_rank_0_has_measured(on_ranks, monkeypatch):
    monkeypatch.setattr(Transport, "_measured_bucket", lambda store: 12_345 + store.rank)
    assert (
        on_ranks(lambda store: (store.transport.bucket_bytes(fixed=True), store.transport.bucket_bytes()))
        == [(FIXED_BUCKET, 12_345)] * 2
    )
    assert kvstore.create("local").transport.bucket_bytes() == FIXED_BUCKET


def test_what_was_pushed_may_be_changed_at_once(on_ranks):
    def work(store):
        array = np.ones(100_000)
        store.init("w", array)
        store.push("w", array)
        array[:] = np.nan
        return (store.pull("w") == 2).all()

    assert all(on_ranks(work))


def test_an_updater_that_fails_is_heard_of_where_the_value_is_read(on_ranks):
    def work(store):
        store.init(["w", "v"], [np.zeros(2), np.zeros(2)])

        def update(key, total, stored):
            if key == "w":
                raise InputError("not this one")
            stored += total

        store.set_updater(update)
        store.push(["w", "v"], [np.ones(2), np.ones(2)])
        with pytest.raises(InputError, match="not this one"):
            store.pull("w")
        assert (store.pull("w") == 0).all()  # said once
        return (store.pull("v") == 2).all()

    assert all(on_ranks(work))


def test_each_pull_raises_the_next_error_of_its_key(on_ranks):
    def work(store):
        store.init("w", np.zeros(2))
        numbers = iter(range(1, 4))

        def update(key, total, stored):
            if (number := next(numbers)) < 3:
                raise InputError(f"not push {number}")
            stored += total

        store.set_updater(update)
        for _ in range(3):
            store.push("w", np.ones(2))
        for number in (1, 2):
            with pytest.raises(InputError, match=f"not push {number}"):
                store.pull("w")
        assert (store.pull("w") == 2).all()
        store.transport.communicator.flush()

    on_ranks(work)


def test_an_error_that_nobody_has_heard_is_raised_at_the_end(on_ranks):
    def work(store):
        store.init(["w", "v"], [np.zeros(2), np.zeros(2)])

        def update(key, total, stored):
            raise InputError(f"not {key}")

        store.set_updater(update)
        store.push(["v", "w"], [np.ones(2), np.ones(2)])
        with pytest.raises(InputError, match="not v"):
            store.wait("v")
        with pytest.raises(InputError, match="not w"):
            store.transport.communicator.flush()
        store.transport.communicator.flush()  # said once

    on_ranks(work)


def test_what_flies_arrives_before_what_is_done_to_its_key_next(on_ranks):
    class Slow:
        def __init__(self):
            self.end = time.monotonic() + 0.3

        def Test(self):  # noqa: N802 - MPI's name
            return time.monotonic() > self.end

    seen = {}

    def work(store):
        links = store.transport.communicator
        links.engine.overlap = "concurrent"
        links.start_allreduce = lambda array, out=None: (Slow(), links.allreduce(array, out))
        store.init(["a", "b"], [np.zeros(100), np.zeros(100)])
        mine = seen[store.rank] = []
        store.set_updater(lambda key, total, stored: mine.append((key, total[0])))
        store.push("a", np.full(100, 1.0))
        while not links.engine._running:
            time.sleep(0.001)
        store.push(["a", "b"], [np.full(100, 2.0), np.full(100, 3.0)])  # two small ones go together, at once
        links.flush()
        assert [total for key, total in mine if key == "a"] == [2.0, 4.0]
        assert ("b", 6.0) in mine

    on_ranks(work)
    assert seen[0] == seen[1]


def test_sums_in_flight_are_awaited_at_the_end(on_ranks):
    def work(store):
        links = store.transport.communicator
        links.engine.overlap = "concurrent"
        store.init("a", np.zeros(5000))
        store.push("a", np.ones(5000))
        links.flush()
        assert not links.engine._running
        return store._values["a"][0] == 2

    assert all(on_ranks(work))


@pytest.mark.full
def test_threads_that_wait_for_those_of_other_ranks_are_not_given_up(on_ranks):
    def work(store):
        found = {}

        def sums(key, late):
            found[key] = [store.pushpull(f"{key} before", 1.0)]
            if late:
                time.sleep(2)  # longer than ranks have patience in which every thread waits
            found[key].append(store.pushpull(key, 2.0))

        threads = [threading.Thread(target=sums, args=("ab"[i], i == store.rank)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found == {"a": [2.0, 4.0], "b": [2.0, 4.0]}

    assert all(on_ranks(work))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int8", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 1), (16,), (17,)])
def test_small_sums_of_all_types(on_ranks, dtype, shape):
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def work(store):
        calls = ["sums", "others"]
        values = [np.full(shape, store.rank + 1).astype(dtype), np.ones(3)]
        total, other = store.pushpull(calls, values)
        assert total.dtype == dtype
        assert total.shape == shape
        assert (total == np.asarray(6, dtype)).all()
        return (other == 3).all()

    assert all(on_ranks(work, 3))


HALF_SUMMANDS = {np.float16: (2048, 1, 1), ml_dtypes.bfloat16: (256, 1, 1)}  # 1 is half of the last digit of the first


@pytest.mark.parametrize("dtype", HALF_SUMMANDS)
@pytest.mark.parametrize("size", [3, 100, 50_000])
def test_ordered_sums_of_halves_round_once(on_ranks, dtype, size):
    summands = HALF_SUMMANDS[dtype]

    def work(store):
        array, out = np.full(size, summands[store.rank], dtype), np.empty(size, dtype)
        store.transport.start_sum("sum", array, out, ordered=True).wait()
        return out

    for found in on_ranks(work, 3):
        np.testing.assert_array_equal(found, np.full(size, sum(summands), dtype))


@pytest.mark.parametrize("dtype", HALF_SUMMANDS)
def test_values_of_devices_in_halves_are_rounded_once(dtype):
    values = [np.full(3, value, dtype) for value in HALF_SUMMANDS[dtype]]
    found = kvstore.create("local").pushpull("key", values)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.full(3, sum(HALF_SUMMANDS[dtype]), dtype))


def test_an_updater_cannot_wait_for_the_store(on_ranks):
    def work(store):
        store.init(["w", "other"], [np.zeros(2), np.zeros(2)])
        store.set_updater(lambda key, total, stored: store.pull("other") if store.push("other", total) is None else 0)
        store.push("w", np.ones(2))
        with pytest.raises(UsageError, match="a function that handles the result of an all-reduce must not wait"):
            store.pull("w")

    on_ranks(work)


@pytest.mark.parametrize("overlap", ["funnelled", "chained"])
def test_an_updater_cannot_use_a_store_with_servers(on_ranks, overlap):
    """Its messages would wait until no thread drives, and this thread does."""

    def work(store):
        engine = store.transport.communicator.engine
        engine.overlap = overlap

        def update(key, total, stored):
            with engine.driving():
                stored += total

        store.init("w", np.zeros(2))
        store.set_updater(update)
        store.push("w", np.ones(2))
        with pytest.raises(UsageError, match="an all-reduce must not use a store with servers"):
            store.pull("w")
        with engine.driving():
            pass

    on_ranks(work)


def test_ranks_that_wait_for_different_things_all_say_so(on_ranks):
    def work(store):
        store.init(["a", "b"], [np.zeros(1), np.zeros(1)])
        store.push("ab"[store.rank], np.zeros(1))
        with pytest.raises(RuntimeFailure) as caught:
            store.wait()
        with pytest.raises(RuntimeFailure, match="make different calls"):
            store.push("a", np.zeros(1))
        return str(caught.value)

    first, second = on_ranks(work)
    assert first == second
    assert re.search(r"rank 0: sum 'a' float64\[1\] as call \d; rank 1: sum 'b' float64\[1\] as call \d", first)


@pytest.mark.full
def test_a_rank_that_only_computes_is_waited_for(on_ranks):
    def work(store):
        store.init("a", np.zeros(1))
        if store.rank:
            time.sleep(1.5)  # longer than those that all wait have patience
        store.push("a", np.ones(1))
        return (store.pull("a") == 2).all()

    assert all(on_ranks(work))


def test_arrays_of_other_types_are_an_error_of_all(on_ranks):
    def work(store):
        with pytest.raises(RuntimeFailure) as caught:
            store.pushpull(["a", "b"], [np.zeros(1), np.zeros(2 + store.rank)])
        return str(caught.value)

    for message in on_ranks(work):
        assert "make different calls" in message


def test_an_overlap_that_there_is_not():
    with pytest.raises(UsageError, match=r"unknown overlap 'chain'.* did you mean 'chained'"):
        kvstore.create("local", overlap="chain")


def test_no_thread_is_left_waiting_when_nothing_is_posted(on_ranks):
    before = threading.active_count()

    def work(store):
        store.init("a", np.zeros(1))
        store.push("a", np.ones(1))
        store.wait()
        store.transport.communicator.engine.close()

    on_ranks(work)
    wait_until(lambda: threading.active_count() <= before, "no thread is left")


@pytest.mark.parametrize("overlap", OVERLAPS)
def test_small_sums_at_once_meet_those_that_others_have_pushed_before(on_ranks, overlap):
    def work(store):
        store.transport.communicator.engine.overlap = overlap
        store.init(["a", "b"], [np.zeros(3), np.zeros(70_000)])
        found = []
        for turn in range(20):
            first = (turn + store.rank) % 2
            if first:
                store.push("b", np.full(70_000, turn + 1.0))
            found.append(store.pushpull("c", np.full(2, store.rank + turn, np.float32)))
            if not first:
                store.push("b", np.full(70_000, turn + 1.0))
            assert (store.pull("b") == 2 * (turn + 1.0)).all()
        return found

    for found in on_ranks(work):
        assert [list(total) for total in found] == [[2.0 * turn + 1] * 2 for turn in range(20)]


def test_an_interrupted_small_sum_leaves_nobody_at_the_wheel(on_ranks):
    def work(store):
        store.barrier()
        if store.rank == 0:
            links = store.transport.communicator

            def interrupted(mine):
                raise KeyboardInterrupt

            links.allgather_bytes = interrupted
            with pytest.raises(KeyboardInterrupt):
                store.pushpull("a", np.zeros(1))
            assert links.engine.stop_driving(1)
            with pytest.raises(RuntimeFailure, match="rank 0 was interrupted in step 0, at sum 'a'"):
                store.pushpull("a", np.zeros(1))

    on_ranks(work)


def test_a_small_sum_at_once_comes_before_what_another_thread_posts_to_its_key_meanwhile(on_ranks):
    """Rank 0's sum is announced when another thread pushes to its key; rank 1 has posted something else as well."""

    def work(store):
        store.init(["k", "other"], [np.zeros(2), np.zeros(2)])
        links = store.transport.communicator
        if store.rank == 1:
            store.push("other", np.ones(2))
            found = store.pushpull("k", np.full(2, 1.0))
            store.push("k", np.full(2, 10.0))
        else:
            told, pushed = links.allgather_bytes, []

            def tell(mine):
                if not pushed:
                    pushed.append(threading.Thread(target=store.push, args=("k", np.full(2, 20.0))))
                    pushed[0].start()
                    pushed[0].join()
                return told(mine)

            links.allgather_bytes = tell
            found = store.pushpull("k", np.full(2, 2.0))
            store.push("other", np.ones(2))
        return found, store.pull("k"), store.pull("other")

    for found, last, other in on_ranks(work):
        assert list(found) == [3.0, 3.0]
        assert list(last) == [30.0, 30.0]
        assert list(other) == [2.0, 2.0]


def _plainly(store, array):
    return store.transport.start_sum("bucket 7", array, array)


def _in_order(store, array):
    return store.transport.start_sum("bucket 7", array, array, ordered=True)


def _in_slices(store, array):
    slices = Slices.of([array.size], array.itemsize, store.num_workers)
    whole = np.zeros(slices.bounds[-1], array.dtype)
    return store.transport.start_scattered_sum("bucket 7", whole, slices, False, lambda _: None)


def _by_rows(store, array):
    return store.transport.start_row_sum("bucket 7", RowSparse(np.arange(3), array.reshape(3, -1)))


@pytest.mark.parametrize(
    ("other", "named"),
    [(_in_order, "in the order of ranks"), (_in_slices, "by reduce-scatter"), (_by_rows, "of rows")],
    ids=["order", "slices", "rows"],
)
def test_another_operation_on_a_key_is_an_error_that_names_both(on_ranks, other, named):
    def work(store):
        array = np.ones(96, np.float32)

        def calls():
            if store.rank == 0:
                store.transport.start_sum("loss", array[:2], array[:2])
                _plainly(store, array)
            else:
                other(store, array)
                store.transport.start_sum("loss", array[:2], array[:2])
            store.transport.communicator.flush()

        # Whichever call comes to know of it.
        with pytest.raises(RuntimeFailure) as error:
            calls()
        return str(error.value)

    for said in on_ranks(work):
        assert re.search(rf"rank 0: sum of bucket 7 float32\[96\] as call \d; rank 1: sum of bucket 7 .*{named}", said)
