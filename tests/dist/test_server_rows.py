"""Rows of keys on servers: pushes and pulls of some of them, of keys that are whole and of those that are divided."""

import numpy as np
import pytest
from combinations import in_one_item
from serving import begun, workers

import graphkit as gk
from graphkit.dist.kvstore import RowSparse
from graphkit.dist.servers import sharding
from graphkit.dist.servers.sharding import Sharding
from graphkit.dist.wire.packing import unpack
from graphkit.errors import InputError, RuntimeFailure, UsageError

TABLE = np.arange(21, dtype=np.float32).reshape(7, 3)


@pytest.fixture(params=["whole", "divided", "fewer rows than servers"])
def table(request, monkeypatch):
    """`table(count)`: make stores of `count` workers with the key "table" of 7 rows, on some servers."""
    if request.param != "whole":
        monkeypatch.setattr(sharding, "LARGE", 1)

    def stores(count=1, **options):
        made, _ = workers(count, 9 if request.param == "fewer rows than servers" else 3, **options)
        return begun(made, {"table": TABLE})

    return stores


def add(key, pushed, stored):
    if isinstance(pushed, RowSparse):
        stored[pushed.indices] += pushed.values
    else:
        stored += pushed


def test_large_keys_are_divided_between_rows(monkeypatch):
    monkeypatch.setattr(sharding, "LARGE", 1)
    assert Sharding(3).parts("k", 21, 7) == [(0, 0, 2), (1, 2, 4), (2, 4, 7)]
    assert Sharding(3).parts("k", 1000, 2) == [(1, 0, 1), (2, 1, 2)]
    assert [p.server for p in Sharding(3).parts("k", 1000)] == [0, 1, 2]


def test_rows_are_pulled_once_each_and_in_order(table):
    (store,) = table()
    found = store.row_sparse_pull("table", [6, 1, 6, 2])
    assert found.indices.tolist() == [1, 2, 6]
    np.testing.assert_array_equal(found.values, TABLE[[1, 2, 6]])
    out = np.full((7, 3), -1, np.float32)
    first, second = store.row_sparse_pull(["table", "table"], [np.array([4], np.int32), []], out=[out, None])
    np.testing.assert_array_equal(out[4], TABLE[4])
    assert (np.delete(out, 4, 0) == -1).all()
    assert first.indices.tolist() == [4]
    assert second.values.shape == (0, 3)
    found.values[:] = 0  # a copy
    np.testing.assert_array_equal(store.pull("table"), TABLE)


def test_a_push_of_rows_stands_for_an_array_that_is_0_elsewhere(table):
    (store,) = table()
    values = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    store.push("table", [RowSparse([6, 1, 6], values), RowSparse([1], values[:1])])
    expected = np.zeros_like(TABLE)
    expected[6], expected[1] = values[0] + values[2], values[1] + values[0]
    np.testing.assert_array_equal(store.pull("table"), expected)


def test_pushes_of_several_workers_add_up_in_whatever_order(table):
    stores = table(3)
    for store in stores:
        store.set_updater(add)
    for _ in range(4):
        for store in stores:
            store.begin_step()
            store.push("table", RowSparse([store.rank, 6], np.full((2, 3), store.rank + 1, np.float32)))
            store.push("table", np.ones((7, 3), np.float32))
            store.push("table", RowSparse([], np.zeros((0, 3), np.float32)))
    expected = TABLE + 12
    expected[6] += 4 * 6
    expected[:3] += 4 * np.arange(1, 4)[:, None]
    for store in stores:
        np.testing.assert_array_equal(store.pull("table"), expected)
        np.testing.assert_array_equal(store.row_sparse_pull("table", [6, 0]).values, expected[[0, 6]])


@in_one_item()
@pytest.mark.parametrize("dtype", ["float16", "float64", "int64"])
def test_rows_of_other_types_and_vectors(table, dtype):
    (store,) = table()
    vector = np.arange(50, dtype=dtype)
    store.init("vector", vector)
    store.set_updater(add)
    store.push("vector", RowSparse([49, 20], np.array([1, 2], dtype)))
    vector[[49, 20]] += np.array([1, 2], dtype)
    found = store.pull("vector")
    assert found.dtype == vector.dtype
    np.testing.assert_array_equal(found, vector)


@in_one_item()
@pytest.mark.parametrize(
    "optimizer", [gk.optim.SGD(0.1, momentum=0.9, weight_decay=0.1), gk.optim.Adam(0.01)], ids=lambda o: o.kind
)
def test_an_optimizer_updates_these_rows_and_their_slots_as_in_one_process(table, optimizer):
    local = gk.kvstore.create("local")
    (remote,) = table()
    local.init("table", TABLE)
    found = []
    for store in (remote, local):
        store.set_optimizer(optimizer)
        for step in range(3):
            store.push("table", RowSparse([2, 6, step], np.full((3, 3), 0.1 * (step + 1), np.float32)))
        found.append(store.pull("table"))
    np.testing.assert_array_equal(*found)
    states = local._stateful().states()
    for name, array in remote.optimizer_states().items():
        np.testing.assert_array_equal(array, states[name])


def test_a_push_of_rows_counts_as_an_update_where_a_server_has_none_of_them(table):
    """All parts have the same bias corrections and averages."""
    (store,) = table()
    store.set_optimizer(gk.optim.Adam(0.01))
    for _ in range(3):
        store.push("table", RowSparse([0], np.ones((1, 3), np.float32)))
    store.push("table", np.ones((7, 3), np.float32))
    assert store.optimizer_states()["s:table/updates"] == 4
    moved = TABLE - store.pull("table")
    np.testing.assert_allclose(moved[1:], np.full((6, 3), moved[1, 0]), rtol=1e-3)
    assert (moved[0] > 2 * moved[1]).all()


def test_rows_are_not_compressed(table):
    (store,) = table()
    store.set_updater(add)
    store.set_gradient_compression("2bit:0.5")
    store.push("table", RowSparse([5], np.full((1, 3), 0.125, np.float32)))
    np.testing.assert_array_equal(store.pull("table")[5], TABLE[5] + 0.125)


def test_nan_and_infinity_travel(table):
    (store,) = table()
    store.push("table", RowSparse([0, 6], np.array([[np.nan] * 3, [np.inf] * 3], np.float32)))
    found = store.row_sparse_pull("table", [0, 6]).values
    assert np.isnan(found[0]).all()
    assert np.isposinf(found[1]).all()


@in_one_item()
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda kv: kv.push("table", RowSparse([7], TABLE[:1])), InputError, "7 rows, so index 7 is out of range"),
        (lambda kv: kv.push("table", RowSparse([0], TABLE[:1, :2])), InputError, "pushed rows of float32[2]"),
        (lambda kv: kv.push("table", RowSparse([0], TABLE[:1].astype(float))), InputError, "pushed rows of float64[3]"),
        (
            lambda kv: kv.push("table", [RowSparse([0], TABLE[:1]), TABLE]),
            InputError,
            "all RowSparse or all arrays",
        ),
        (lambda kv: kv.push("q", RowSparse([0], TABLE[:1])), UsageError, "key 'q' is not initialised"),
        (lambda kv: kv.row_sparse_pull("table", [2, 7]), InputError, "'table' has 7 rows, so index 7 is out of range"),
        (lambda kv: kv.row_sparse_pull("table", [-1]), InputError, "must be at least 0, not -1"),
        (lambda kv: kv.row_sparse_pull("table", [0.5]), InputError, "a vector of integers"),
        (lambda kv: kv.row_sparse_pull("q", [0]), UsageError, "key 'q' is not initialised"),
        (lambda kv: kv.init("s", np.zeros(())) or kv.row_sparse_pull("s", [0]), InputError, "'s' has no rows"),
    ],
)
def test_what_are_no_rows_of_the_key_is_named(table, call, error, message):
    (store,) = table()
    with pytest.raises(error) as caught:
        call(store)
    assert message in str(caught.value)
    np.testing.assert_array_equal(store.pull("table"), TABLE)


def test_an_optimizer_of_norms_takes_no_rows():
    (store,), _ = workers(1)
    begun([store], {"table": TABLE})
    store.set_optimizer(gk.optim.Lamb(0.1))
    store.push("table", RowSparse([0], TABLE[:1]))
    with pytest.raises(UsageError, match="lamb takes norms of whole parameters"):
        store.wait()
    assert not store.optimizer_states()


# --- clocks ---------------------------------------------------------------------------------------------


def test_rows_wait_for_the_slowest_worker_as_whole_keys_do():
    (fast, slow), _ = workers(2, type="dist_bounded", bound=1)
    begun([fast, slow], {"table": TABLE})
    for store in (slow, fast, fast):
        store.begin_step()
        store.row_sparse_pull("table", [0])
    assert fast.staleness == 1
    fast.begin_step()
    with pytest.raises(TimeoutError):
        fast.row_sparse_pull("table", [5, 2])
    slow.push("table", RowSparse([2], np.full((1, 3), 9, np.float32)))
    slow.begin_step()
    slow.row_sparse_pull("table", [0])
    fields, (values,) = unpack(fast._client._connection.inbox[0].popleft())
    assert fields["behind"] == 1
    np.testing.assert_array_equal(values, [[9, 9, 9], [0, 0, 0]])


def test_a_server_hears_of_steps_that_ask_nothing_of_it():
    """Nobody waits there for a worker that has gone on elsewhere."""
    (one, other), _ = workers(2, 2, type="dist_bounded", bound=1)
    begun([one, other], dict.fromkeys(range(20), TABLE))
    first, second = (
        next(k for k in range(20) if one._client.specs[k].parts[0].server == server) for server in range(2)
    )
    for _ in range(5):
        one.begin_step()
        one.pull(first)
        other.begin_step()
        assert other.row_sparse_pull(second, [0, 6]).values.shape == (2, 3)


# --- averages -------------------------------------------------------------------------------------------


def test_moving_averages_are_those_of_the_values(table):
    (store,) = table()
    store.init("other", np.ones(5, np.float32))
    with pytest.raises(UsageError, match="the store keeps no moving averages"):
        store.averages(["table"])
    store.set_optimizer(gk.optim.SGD(0.5))
    with pytest.raises(UsageError, match="key 'table' has no moving average: the optimizer was set without ema"):
        store.averages(["table"])
    store.set_optimizer(gk.optim.KeyedOptimizer(gk.optim.SGD(0.5), ema=gk.optim.EMA(0.75)))
    np.testing.assert_array_equal(store.averages(["table"])[0], TABLE)
    expected = TABLE
    for _ in range(3):
        store.push("table", RowSparse([1, 5], np.ones((2, 3), np.float32)))
        expected = 0.75 * expected + 0.25 * store.pull("table")
    found, other = store.averages(["table", "other"])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(other, np.ones(5))


def test_factors_of_a_key_are_on_its_rate_and_its_decay(table):
    (store,) = table()
    begun([store], {"other": np.ones(5, np.float32)})
    store.set_optimizer(gk.optim.KeyedOptimizer(gk.optim.SGD(0.5, weight_decay=0.1), {"other": 0.5}, {"table": 0}))
    store.push(["table", "other"], [np.ones_like(TABLE), np.ones(5, np.float32)])
    np.testing.assert_allclose(store.pull("table"), TABLE - 0.5, rtol=1e-6)
    np.testing.assert_allclose(store.pull("other"), np.full(5, 1 - 0.25 * (1 + 0.1)), rtol=1e-6)


def test_an_updater_that_fails_on_rows_is_told():
    (store,), _ = workers(1)
    begun([store], {"table": TABLE})
    store.set_updater(fails)
    store.push("table", RowSparse([0], TABLE[:1]))
    with pytest.raises(RuntimeFailure, match="push failed on a server: ValueError: rows"):
        store.wait()


def fails(key, pushed, stored):
    raise ValueError("rows" if isinstance(pushed, RowSparse) else "whole")
