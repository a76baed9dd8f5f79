"""Stores with servers: effects of pushes and pulls, waiting, and optimizers."""

import numpy as np
import pytest
from combinations import in_one_item
from serving import add_twice, begun, workers

import graphkit as gk
from graphkit.dist.servers import remote
from graphkit.dist.servers.sharding import LARGE
from graphkit.dist.wire.packing import pack, unpack
from graphkit.errors import InputError, InvalidModel, RuntimeFailure, UsageError


def fails(key, gradient, stored):
    raise ValueError("not today")


def ends(values, number):
    return {key: float(value.sum()) + number for key, value in values.items()}


# --- pushes and pulls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 3])
def test_sums_of_pushes_have_their_closed_form(servers):
    values = {
        "a": np.ones((4, 4)),
        9: np.ones(100, np.float32),
        "large": np.ones((1100, 1000), np.float32),
        "0": np.ones(()),
    }
    stores, _ = workers(3, servers)
    begun(stores, values)
    for store in stores:
        store.set_updater(add_twice)
    for _ in range(4):
        for store in stores:
            store.begin_step()
            store.push(list(values), [np.full(v.shape, store.rank + 1, v.dtype) for v in values.values()])
    for store in stores:
        store.wait()
        for found, value in zip(store.pull(list(values)), values.values(), strict=True):
            assert found.shape == value.shape
            assert (found == 3 * 4 // 2 * 2 * 4 + 1).all()


def test_without_an_updater_a_push_replaces():
    (store,), _ = workers(1)
    begun([store], {"w": np.zeros(3)})
    store.push("w", [np.ones(3), np.ones(3)])  # a value for each device
    assert store.pull("w").tolist() == [2, 2, 2]
    out = np.empty(3)
    assert store.pushpull("w", np.full(3, 5.0), out) is out
    assert out.tolist() == [5, 5, 5]


def test_what_has_not_changed_is_not_sent_again_and_zeros_are_a_word():
    (store,), (server,) = workers(1)
    begun([store], {"w": np.ones(10_000), "v": np.ones(10_000)})
    store.set_updater(add_twice)
    store.pull(["w", "v"])
    sent = []
    handle = server.handle
    server.handle = lambda worker, message: ((to, sent.append(a.nbytes) or a) for to, a in handle(worker, message))
    store.push("w", np.ones(10_000))
    assert (store.pull(["w", "v"])[0] == 3).all()
    assert 80_000 < sent[-1] < 81_000  # w alone
    store.pull(["w", "v"])
    assert sent[-1] < 1000
    before = store.sent_bytes
    store.push("w", np.zeros(10_000))
    assert store.sent_bytes - before < 200
    assert (store.pull("w") == 3).all()
    store.push("w", np.full(10_000, np.nan))  # is not 0
    assert np.isnan(store.pull("w")).all()


def test_who_only_pushes_is_answered_now_and_then(monkeypatch):
    """So that servers that are slower have no more than a window of each worker to hold."""
    monkeypatch.setattr(remote, "WINDOW", 1000)
    (store,), _ = workers(1)
    begun([store], {"w": np.zeros(100)})
    before = len(store._client._connection.sent)
    for _ in range(10):
        store.push("w", np.ones(100))
    assert [fields["call"] for fields in store._client._connection.sent[before:]] == ["push", "push", "wait"] * 5


def test_keys_are_named_once():
    (store,), _ = workers(1)
    begun([store], {"a key with a long name": np.ones(3)})
    for _ in range(3):
        store.push("a key with a long name", np.ones(3))
    assert ["names" in fields for fields in store._client._connection.sent] == [True, False, False, False]


def test_what_a_push_did_wrong_is_told_with_the_next_answer():
    (store,), _ = workers(1)
    begun([store], {"w": np.zeros(3)})
    with pytest.raises(InputError, match=r"key 'w' is float64\[3\]; pushed float64\[4\]"):
        store.push("w", np.ones(4))
    with pytest.raises(UsageError, match="key 'q' is not initialised"):
        store.push("q", np.ones(4))
    with pytest.raises(UsageError, match="key 'w' is already initialised"):
        store.init("w", np.zeros(3))
    store.set_updater(fails)
    store.push("w", np.ones(3))
    with pytest.raises(RuntimeFailure, match="push failed on a server: ValueError: not today"):
        store.wait()
    store.wait()  # said once
    with pytest.raises(InputError, match="by module and name"):
        store.set_updater(lambda key, gradient, stored: None)


def test_a_function_of_the_users_runs_on_every_server():
    (store,), _ = workers(1, servers=2)
    begun([store], {f"k{n}": np.full(2, n) for n in range(8)})
    found = store.call_servers(ends, 100)
    assert len(found) == 2
    assert found[0] | found[1] == {f"k{n}": 2 * n + 100 for n in range(8)}


@in_one_item()
@pytest.mark.parametrize("options", ["2bit:0.5", "float16", "top_k:0.5"])
def test_pushes_in_fewer_bytes_lose_nothing(options):
    (store,), _ = workers(1)
    begun([store], {"w": np.zeros(64, np.float32)})
    store.set_updater(add_twice)
    store.set_gradient_compression(options)
    for _ in range(40):
        store.push("w", np.full(64, 0.25, np.float32))
    assert np.abs(store.pull("w") - 20).max() <= 2


def test_what_is_left_out_of_a_key_that_is_divided_is_whole():
    (store,), _ = workers(1, servers=3)
    begun([store], {"w": np.zeros(LARGE + 5, np.float32)})
    store.set_updater(add_twice)
    store.set_gradient_compression("float16")
    given = np.random.default_rng(0).standard_normal((2, LARGE + 5)).astype(np.float32)
    for gradient in given:
        store.push("w", gradient)
    left = store.residuals()["w"]
    np.testing.assert_allclose(store.pull("w") / 2 + left, given.sum(axis=0), rtol=1e-5, atol=1e-5)
    assert left.any()
    assert store.compressing == (0,)


# --- clocks ---------------------------------------------------------------------------------------------


@in_one_item()
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_worker_waits_for_the_slowest_one_beyond_the_bound(bound):
    (fast, slow), (server,) = workers(2, type="dist_bounded", bound=bound)
    begun([fast, slow], {"w": np.zeros(2)})
    slow.begin_step()
    slow.pull("w")
    for _ in range(bound + 1):
        fast.begin_step()
        fast.pull("w")
        fast.push("w", np.ones(2))
    fast.begin_step()
    with pytest.raises(TimeoutError):
        fast.pull("w")
    assert not fast._client._connection.inbox[0]
    slow.push("w", np.full(2, 7.0))
    slow.begin_step()
    # Its step is over with this: who waited gets an answer with all of it in.
    message = {"call": "pull", "asks": True, "parts": [[0, -1]], "clock": 1, "bound": bound}
    answers = dict(server.handle(1, pack(message)))
    assert sorted(answers) == [0, 1]
    fields, _ = unpack(answers[0])
    assert fields["behind"] == bound
    assert server.stalest == bound


@pytest.mark.parametrize("how", ["wait", "leave"])
def test_nobody_waits_for_a_worker_that_has_come_to_its_end(how):
    (first, second), _ = workers(2, type="dist_bounded", bound=0)
    begun([first, second], {"w": np.zeros(2)})
    second.begin_step()
    second.pull("w")
    second.push("w", np.ones(2))
    getattr(second, how)()
    first.begin_step()
    first.pull("w")
    first.begin_step()
    first.pull("w")
    if how == "leave":
        for _ in range(5):
            first.begin_step()
            first.pull("w")


def test_nobody_waits_for_a_worker_that_has_come_to_a_barrier():
    (first, second), (server,) = workers(2, type="dist_bounded", bound=0)
    begun([first, second], {"w": np.zeros(2)})
    second.begin_step()
    second.pull("w")
    meetings = []

    def meet(call, arrays):
        assert call == "barrier"
        for _ in range(0 if meetings else 5):
            first.begin_step()
            first.pull("w")
        meetings.append(server._clocks[1])

    second.transport.communicator.perform = meet
    second.barrier()
    assert meetings[-1] == 1  # the bound holds again before any worker continues


# --- optimizers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 3])
def test_an_optimizer_on_servers_is_that_of_one_process(servers, tmp_path):
    values = {"a": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4), "large": np.ones((1000, 1001), np.float32)}
    local = gk.kvstore.create("local")
    (remote,), _ = workers(1, servers)
    for store in (local, remote):
        begun([store], values)
        store.set_optimizer(gk.optim.Adam(0.1))
    for step in range(3):
        for store in (local, remote):
            store.push(list(values), [np.full(v.shape, 0.1 * (step + 1), v.dtype) for v in values.values()])
    for mine, other in zip(remote.pull(list(values)), local.pull(list(values)), strict=True):
        np.testing.assert_array_equal(mine, other)
    for store in (local, remote):
        store.save_optimizer_states(tmp_path / f"{store.type}.safetensors")
    (again,), _ = workers(1, 2)
    begun([again], dict(zip(values, remote.pull(list(values)), strict=True)))
    again.set_optimizer(gk.optim.Adam(0.1))
    again.load_optimizer_states(tmp_path / "local.safetensors")
    for store in (local, again):
        store.push(list(values), [np.full(v.shape, 0.7, v.dtype) for v in values.values()])
    for mine, other in zip(again.pull(list(values)), local.pull(list(values)), strict=True):
        np.testing.assert_array_equal(mine, other)
    again.set_optimizer(gk.optim.SGD(0.1))
    with pytest.raises(InvalidModel, match="is not a slot of SGD"):
        again.load_optimizer_states(tmp_path / "dist_async.safetensors")


def test_norms_of_whole_parameters_are_not_taken_of_parts():
    (store,), _ = workers(1, 2)
    begun([store], {"large": np.ones(LARGE, np.float32)})
    with pytest.raises(UsageError, match="takes norms of whole parameters, and key 'large' is divided"):
        store.set_optimizer(gk.optim.Lamb(0.1))


def test_elastic_averaging_keeps_what_it_moves():
    """Equations 2 and 3 of Zhang, Choromanska and LeCun (2015): the sum of workers and centre is constant."""
    stores, _ = workers(2, 2, type="elastic")
    centre = {"w": np.zeros(4), "large": np.zeros(LARGE)}
    begun(stores, centre)
    mine = {"w": np.arange(4.0), "large": np.ones(LARGE)}
    new = stores[1].exchange(mine, 0.25)
    assert (new["w"] == 0.75 * np.arange(4)).all()
    assert (new["large"] == 0.75).all()
    assert (stores[0].pull("w") == 0.25 * np.arange(4)).all()
    assert (mine["w"] == np.arange(4)).all()


@in_one_item()
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "dist_sync", "servers": 1}, "servers=1 only works with type dist_async"),
        ({"type": "dist_async", "servers": 0}, "servers must be an integer of at least 1, not 0"),
        (
            {"type": "dist_async", "staleness": 1},
            "staleness=1 only works with type dist_bounded, not with 'dist_async'",
        ),
        ({"type": "dist_bounded", "staleness": -1}, "staleness must be an integer of at least 0, not -1"),
        ({"type": "dist_async", "period": 5}, "period=5 only works with type elastic, not with 'dist_async'"),
        ({"type": "elastic", "period": 0}, "period must be an integer of at least 1, not 0"),
        ({"type": "elastic", "period": 1.5}, "period must be an integer of at least 1, not 1.5"),
        ({"type": "dist_sync", "strength": 0.5}, "strength=0.5 only works with type elastic, not with 'dist_sync'"),
        ({"type": "elastic", "strength": 0}, "strength must be a number above 0 and at most 1, not 0"),
        ({"type": "elastic", "strength": 1.5}, "strength must be a number above 0 and at most 1, not 1.5"),
        ({"type": "elastic", "strength": float("nan")}, "strength must be a number above 0 and at most 1, not nan"),
        ({"type": "dist_foo"}, "unknown kvstore 'dist_foo'. The types are local, dist_sync, dist_async, dist_bounded"),
        ({"type": "dist_asink"}, "unknown kvstore 'dist_asink'.*did you mean 'dist_async'"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(UsageError, match=message):
        gk.kvstore.create(**options)
