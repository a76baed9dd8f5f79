"""Row-sparse values of a KVStore: pushes and pulls of some rows, and their results."""

import numpy as np
import pytest

import graphkit as gk
from graphkit.dist import kvstore
from graphkit.dist.kvstore import RowSparse
from graphkit.errors import InputError, RuntimeFailure, UsageError


def add(key, summed, stored):
    """The updater of MXNet's nightly test: it adds the pushed values to the stored ones."""
    if isinstance(summed, RowSparse):
        stored[summed.indices] += summed.values
    else:
        stored += summed


@pytest.fixture
def local():
    kv = kvstore.create("local")
    kv.init("table", np.arange(12, dtype=np.float32).reshape(6, 2))
    return kv


def test_rows_are_pulled_once_each_and_in_order(local):
    found = local.row_sparse_pull("table", [4, 1, 4])
    assert found.indices.tolist() == [1, 4]
    assert found.values.tolist() == [[2, 3], [8, 9]]
    out = np.full((6, 2), -1, np.float32)
    local.row_sparse_pull("table", np.array([0], np.int32), out=out)
    assert out.tolist() == [[0, 1], *[[-1, -1]] * 5]
    first, second = local.row_sparse_pull(["table", "table"], [[0], []])
    assert len(first.indices) == 1
    assert second.values.shape == (0, 2)
    found.values[:] = 0  # a copy
    assert local.pull("table")[1].tolist() == [2, 3]


def test_a_push_of_rows_stands_for_an_array_that_is_0_elsewhere(local):
    local.push("table", RowSparse([1, 3, 1], np.array([[1, 2], [3, 4], [5, 6]], np.float32)))
    assert local.pull("table").tolist() == [[0, 0], [6, 8], [0, 0], [3, 4], [0, 0], [0, 0]]
    ones = np.ones((1, 2), np.float32)
    local.push("table", [RowSparse([2], ones), RowSparse([2], 2 * ones)])  # of two devices
    assert local.pull("table")[2].tolist() == [3, 3]


def test_pushpull_needs_a_stored_value(local):
    rows = RowSparse([0], np.ones((1, 2), np.float32))
    with pytest.raises(UsageError, match="call init, then push and pull"):
        local.pushpull("table", rows)
    local.set_updater(add)
    assert local.pushpull("table", rows)[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda kv: RowSparse([-1], np.ones((1, 2))), "must be at least 0, not -1"),
        (lambda kv: RowSparse([0.5], np.ones((1, 2))), "a vector of integers, not float64"),
        (lambda kv: RowSparse([[0]], np.ones((1, 2))), "a vector of integers"),
        (lambda kv: RowSparse([0, 1], np.ones((1, 2))), "one row per index (2)"),
        (lambda kv: RowSparse([0], 1.0), "one row per index (1)"),
        (
            lambda kv: kv.push("table", RowSparse([6], np.ones((1, 2), np.float32))),
            "6 rows, so index 6 is out of",
        ),
        (lambda kv: kv.push("table", RowSparse([0], np.ones((1, 3), np.float32))), "pushed rows of float32[3]"),
        (lambda kv: kv.push("table", RowSparse([0], np.ones((1, 2)))), "pushed rows of float64[2]"),
        (
            lambda kv: kv.push("table", [RowSparse([0], np.ones((1, 2), np.float32)), np.ones(2)]),
            "all RowSparse or all",
        ),
        (lambda kv: kv.row_sparse_pull("table", [2, 6]), "'table' has 6 rows, so index 6 is out of range"),
    ],
)
def test_what_are_no_rows_of_the_key_is_named(local, call, message):
    with pytest.raises(InputError) as caught:
        call(local)
    assert message in str(caught.value)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_sums_over_processes_of_as_many_rows_as_each_has(on_ranks, processes):
    """Rank r pushes r rows, some of them those of others; the last push is empty everywhere."""

    def work(kv):
        kv.init("table", np.zeros((10, 3)))
        kv.set_updater(add)
        sent = kv.sent_bytes
        for rank_rows in (list(range(kv.rank)), [5, 5], []):
            kv.push("table", RowSparse(rank_rows, np.full((len(rank_rows), 3), kv.rank + 1.0)))
        return kv.pull("table"), kv.sent_bytes - sent

    expected = np.zeros((10, 3))
    for rank in range(processes):
        expected[:rank] += rank + 1
        expected[5] += 2 * (rank + 1)
    for rank, (found, sent) in enumerate(on_ranks(work, processes)):
        np.testing.assert_array_equal(found, expected)
        assert sent == (rank + 1) * (8 + 3 * 8)  # index and row; the repeated one is sent once


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64])
def test_the_order_of_sums_is_that_of_the_ranks(on_ranks, dtype):
    values = np.random.default_rng(0).integers(-50, 50, (3, 4, 2)).astype(dtype)
    if dtype != np.int64:
        values += np.random.default_rng(1).standard_normal(values.shape).astype(dtype)

    def work(kv):
        kv.init("t", np.zeros((4, 2), dtype))
        kv.push("t", RowSparse([3, 1, 0, 2], values[kv.rank]))
        return kv.pull("t")

    wide = np.float32 if dtype == np.float16 else dtype
    total = ((values[0].astype(wide) + values[1]) + values[2].astype(wide)).astype(dtype)
    for found in on_ranks(work, 3):
        np.testing.assert_array_equal(found[[3, 1, 0, 2]], total)


def test_nan_and_infinity_travel(on_ranks):
    def work(kv):
        kv.init("t", np.zeros((3, 1), np.float32))
        kv.push("t", RowSparse([kv.rank], np.array([[np.nan if kv.rank else np.inf]], np.float32)))
        return kv.pull("t")

    for found in on_ranks(work):
        np.testing.assert_array_equal(found, [[np.inf], [np.nan], [0]])


def test_dense_pushes_and_those_of_rows_keep_their_order(on_ranks):
    def work(kv):
        kv.init("t", np.zeros((2, 1), np.float32))
        kv.set_updater(lambda key, summed, stored: np.copyto(stored, 2 * stored) or add(key, summed, stored))
        for step in range(4):
            one = np.ones((1, 1), np.float32)
            kv.push("t", RowSparse([0], one) if step % 2 else np.vstack([one, one]))
        return kv.pull("t").tolist()

    assert on_ranks(work) == [[[30], [20]]] * 2


def test_rows_in_one_process_and_a_whole_array_in_another_is_an_error(on_ranks):
    def work(kv):
        kv.init("t", np.zeros((2, 1), np.float32))
        one = np.ones((2, 1), np.float32)
        kv.push("t", RowSparse([0, 1], one) if kv.rank else one)
        with pytest.raises(RuntimeFailure, match=r"make different calls.*sum 't'"):
            kv.pull("t")
        return True

    assert all(on_ranks(work))


@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1, momentum=0.9), gk.optim.Adam(0.01)], ids=lambda o: o.kind)
def test_an_optimizer_updates_rows_that_were_pushed_and_their_slots_alone(on_ranks, optimizer):
    """As it would an array of these rows, each counted from the first push to the key; others keep their bits."""
    start_ = np.random.default_rng(0).standard_normal((5, 2), np.float32)
    gradient = np.random.default_rng(1).standard_normal((3, 2), np.float32)

    def work(kv):
        kv.init(["rows", "whole"], [start_, start_[[0, 2, 3]]])
        kv.set_optimizer(optimizer)
        for _ in range(3):
            mine = RowSparse([0, 3] if kv.rank else [2, 3], gradient[[0, 2] if kv.rank else [1, 2]])
            kv.push("rows", mine)
            kv.push("whole", mine.dense(4)[[0, 2, 3]])
        return kv.pull("rows"), kv.pull("whole"), kv._stateful().states()

    for rows, whole, states in on_ranks(work):
        np.testing.assert_array_equal(rows[[0, 2, 3]], whole)
        np.testing.assert_array_equal(rows[[1, 4]], start_[[1, 4]])
        for slot in optimizer.slots:
            np.testing.assert_array_equal(states[f"s:rows/{slot}"][[0, 2, 3]], states[f"s:whole/{slot}"])
            assert not states[f"s:rows/{slot}"][[1, 4]].any()


def test_an_optimizer_of_norms_takes_no_rows(local):
    local.set_optimizer(gk.optim.Lamb())
    with pytest.raises(UsageError, match="lamb takes norms of whole parameters"):
        local.push("table", RowSparse([0], np.ones((1, 2), np.float32)))


# --- the closed form of MXNet's nightly test --------------------------------------------------------------

CLOSED_FORM = """
    import numpy as np, graphkit as gk
    from graphkit.dist.kvstore import RowSparse
    kv = gk.kvstore.create("dist_sync")
    n, mine, pushes = kv.num_workers, kv.rank + 1, 4

    def add(key, summed, stored):
        if isinstance(summed, RowSparse):
            stored[summed.indices] += summed.values
        else:
            stored += summed
    kv.set_updater(add)

    def closed_form(c):
        return n * (n + 1) / 2 * c * pushes + 1

    shapes = {"small": (4, 4), "big": (1200, 1100), "vector": (7,), "scalar": ()}
    for dtype, c in (("float32", 0.25), ("float16", 0.5), ("float64", 0.1), ("int64", 3)):
        keys = [f"{name} {dtype}" for name in shapes]
        kv.init(keys, [np.ones(shape, dtype) for shape in shapes.values()])
        for _ in range(pushes):
            kv.push(keys, [np.full(shape, mine * c, dtype) for shape in shapes.values()])
        for key, found in zip(keys, kv.pull(keys)):
            np.testing.assert_allclose(found, np.full(found.shape, closed_form(c)), rtol=1e-12, err_msg=key)

    # Rows: all push the first, one each of its own, and in turn one that only some have.
    for rows in (8, 1_200_000):
        for dtype in ("float32", "float16"):
            key = f"rows {rows} {dtype}"
            kv.init(key, np.ones((rows, 2), dtype))
            sent = kv.sent_bytes
            for _ in range(pushes):
                ids = np.array([0, rows - 1 - kv.rank, 0])
                kv.push(key, RowSparse(ids, np.full((3, 2), mine * 0.5, dtype)))
            found = kv.row_sparse_pull(key, [0, 1, *range(rows - 3, rows)])
            own = [1 + pushes * 0.5 * rank for rank in (3, 2, 1) if rank <= n]
            expected = [n * (n + 1) * 0.5 * pushes + 1, 1, *[1] * (3 - n), *own]
            np.testing.assert_array_equal(found.values, np.outer(expected, [1, 1]))
            assert kv.sent_bytes - sent == pushes * 2 * (8 + 2 * found.values.itemsize)
            assert kv.pull(key).sum(dtype=np.float64) == 2 * (sum(expected) + rows - 5)

    # Two bits: a push sends a threshold at most, and what waits follows with pushes of nothing.
    kv.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    for key, shape in (("2bit", (5, 3)), ("2bit big", (1100, 1000))):
        kv.init(key, np.ones(shape, np.float32))
        sent = kv.sent_bytes
        for _ in range(pushes):
            kv.push(key, np.full(shape, mine * 0.5, np.float32))
        for _ in range(n * pushes):
            kv.push(key, np.zeros(shape, np.float32))
        np.testing.assert_array_equal(kv.pull(key), np.full(shape, closed_form(0.5)))
        assert kv.sent_bytes - sent <= (n + 1) * pushes * 4 * -(-np.prod(shape) // 16)
    kv.barrier()
    print("done", flush=True)
"""


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.full)])
def test_stored_values_after_pushes_have_their_closed_form(jobs, processes):
    """n(n + 1) / 2 * c * i + 1 after i pushes of (rank + 1) * c to ones: MXNet's tests/nightly/dist_sync_kvstore.py."""
    assert jobs.run(CLOSED_FORM, processes) == ["done\n"] * processes
