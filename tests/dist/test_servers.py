"""Parameters on servers: what servers answer, what workers see, and how such jobs end."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections import deque

import numpy as np
import pytest
from jobs import FAILED, finish, start

import graphkit as gk
from graphkit.dist.communicator import LocalCommunicator
from graphkit.dist.messages import pack, pack_named, unpack, unpack_named
from graphkit.dist.servers import remote
from graphkit.dist.servers.remote import RemoteStore
from graphkit.dist.servers.server import Server
from graphkit.dist.servers.sharding import LARGE, Sharding
from graphkit.errors import InputError, InvalidModel, RuntimeFailure, UsageError
from graphkit.ir.types import dtype_of


class Alone(LocalCommunicator):
    """A worker of several that says nothing to the others."""

    def __init__(self, rank=0):
        self.rank, self.steps = rank, 0


class Counter:
    """Servers in this process, which answer at once; what is not answered yet is waited for in vain."""

    def __init__(self, servers, worker):
        self.all, self.worker = servers, worker
        self.servers, self.sent_bytes = len(servers), 0
        self.sent = []
        self.inbox = [deque() for _ in servers]

    def send(self, server, message):
        self.sent_bytes += message.nbytes
        self.sent.append(unpack(message)[0])
        for to, answer in self.all[server].handle(self.worker, message):
            if to == self.worker:
                self.inbox[server].append(answer)

    def answers(self, servers, call):
        if not all(self.inbox[s] for s in servers):
            raise TimeoutError(call)
        return [self.inbox[s].popleft() for s in servers]


def workers(count, servers=1, type="dist_async", bound=None):
    """The stores of so many workers, and their servers."""
    there = [Server(count) for _ in range(servers)]
    made = [RemoteStore(type, Alone(rank), Counter(there, rank), bound) for rank in range(count)]
    return made, there


def begun(stores, values):
    for store in stores:
        store.init(list(values), list(values.values()))
    return stores


def add_twice(key, gradient, stored):
    stored += 2 * gradient


def fails(key, gradient, stored):
    raise ValueError("not today")


def ends(values, number):
    return {key: float(value.sum()) + number for key, value in values.items()}


# --- messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int4", "bool", "complex64", "string"])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)])
def test_messages_bring_what_was_given(dtype, shape):
    kind = dtype_of(dtype)
    array = np.full(shape, "a text", object) if dtype == "string" else np.ones(shape).astype(kind.numpy)
    fields, (first, second) = unpack(pack({"call": "push", "key": "ä"}, [array, np.arange(3.0)]))
    assert fields == {"call": "push", "key": "ä"}
    assert first.shape == shape
    assert first.dtype == array.dtype
    assert (first == array).all()
    assert (second == np.arange(3.0)).all()
    assert second.flags.aligned
    assert unpack_named(pack_named({"x": array}))["x"].shape == shape


# --- where keys are -------------------------------------------------------------------------------------


def test_large_keys_are_divided_and_small_ones_spread():
    sharding = Sharding(3)
    parts = sharding.parts("large", LARGE + 1)
    assert [p.server for p in parts] == [0, 1, 2]
    assert parts[0].begin == 0
    assert parts[-1].end == LARGE + 1
    assert all(a.end == b.begin for a, b in itertools.pairwise(parts))
    owners = [sharding.parts(key, 10)[0].server for key in range(3000)]
    assert all(700 < owners.count(server) < 1300 for server in range(3))
    # One more server takes keys from all, and moves no others.
    moved = [(a, Sharding(4).parts(key, 10)[0].server) for key, a in enumerate(owners)]
    assert all(b in (a, 3) for a, b in moved)
    assert len(sharding.parts(1, 0)) == 1


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
    before = len(store._servers.sent)
    for _ in range(10):
        store.push("w", np.ones(100))
    assert [fields["call"] for fields in store._servers.sent[before:]] == ["push", "push", "wait"] * 5


def test_keys_are_named_once():
    (store,), _ = workers(1)
    begun([store], {"a key with a long name": np.ones(3)})
    for _ in range(3):
        store.push("a key with a long name", np.ones(3))
    assert ["names" in fields for fields in store._servers.sent] == [True, False, False, False]


def test_what_a_push_did_wrong_is_told_with_the_next_answer():
    (store,), _ = workers(1)
    begun([store], {"w": np.zeros(3)})
    with pytest.raises(InputError, match=r"key 'w' is float64\[3\]; pushed float64\[4\]"):
        store.push("w", np.ones(4))
    with pytest.raises(UsageError, match="key 'q' is not initialised"):
        store.push("q", np.ones(4))
    with pytest.raises(UsageError, match="key 'w' is initialised already"):
        store.init("w", np.zeros(3))
    store.set_updater(fails)
    store.push("w", np.ones(3))
    with pytest.raises(RuntimeFailure, match="push failed on a server: ValueError: not today"):
        store.wait()
    store.wait()  # said once
    with pytest.raises(InputError, match="by their module and name"):
        store.set_updater(lambda key, gradient, stored: None)


def test_a_function_of_the_users_runs_on_every_server():
    (store,), _ = workers(1, servers=2)
    begun([store], {f"k{n}": np.full(2, n) for n in range(8)})
    found = store.call_servers(ends, 100)
    assert len(found) == 2
    assert found[0] | found[1] == {f"k{n}": 2 * n + 100 for n in range(8)}


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
    assert not fast._servers.inbox[0]
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
    with pytest.raises(InvalidModel, match="is none of SGD"):
        again.load_optimizer_states(tmp_path / "dist_async.safetensors")


def test_norms_of_whole_parameters_are_not_taken_of_parts():
    (store,), _ = workers(1, 2)
    begun([store], {"large": np.ones(LARGE, np.float32)})
    with pytest.raises(UsageError, match="takes norms of whole parameters, and key 'large' is divided"):
        store.set_optimizer(gk.optim.Lamb(0.1))


def test_elastic_averaging_keeps_what_it_moves():
    """Equations 2 and 3 of Zhang, Choromanska and LeCun (2015): what workers lose, the centre gains."""
    stores, _ = workers(2, 2, type="elastic")
    centre = {"w": np.zeros(4), "large": np.zeros(LARGE)}
    begun(stores, centre)
    mine = {"w": np.arange(4.0), "large": np.ones(LARGE)}
    new = stores[1].exchange(mine, 0.25)
    assert (new["w"] == 0.75 * np.arange(4)).all()
    assert (new["large"] == 0.75).all()
    assert (stores[0].pull("w") == 0.25 * np.arange(4)).all()
    assert (mine["w"] == np.arange(4)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "dist_sync", "servers": 1}, "servers=1: a number above 0, of dist_async, dist_bounded, elastic"),
        ({"type": "dist_async", "servers": 0}, "servers=0: a number above 0"),
        ({"type": "dist_async", "staleness": 1}, "staleness=1: a number of steps, at least 0, of dist_bounded"),
        ({"type": "dist_bounded", "staleness": -1}, "staleness=-1"),
        ({"type": "dist_asink"}, "unknown kvstore 'dist_asink'.*did you mean 'dist_async'"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(UsageError, match=message):
        gk.kvstore.create(**options)


@pytest.mark.parametrize("option", [{"ema": 0.9}, {"accumulate": 2}, {"lr_mult": {"*": 0.5}}, {"wd_mult": {"*": 0}}])
def test_what_servers_do_not_do_is_refused(option):
    (store,), _ = workers(1)
    x = gk.input("x", ["N", 3])
    with pytest.raises(UsageError, match=f"{next(iter(option))}.*use dist_sync"):
        gk.Trainer(gk.Model(gk.nn.linear(x, 2, name="fc")), "mse", gk.optim.SGD(0.1), kvstore=store, **option)


@pytest.mark.parametrize("optimizer", [gk.optim.SGD(0.1, momentum=0.9), gk.optim.Adam(0.01)])
def test_one_worker_and_a_server_are_one_process(optimizer, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 3)).astype(np.float32), rng.normal(size=(64, 2)).astype(np.float32)

    def trained(kvstore, folder, resume=False):
        net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"))
        trainer = gk.Trainer(net, "mse", optimizer, kvstore=kvstore, threads=1, seed=5)
        for name in net.params:
            if not resume:
                net.params[name] = np.linspace(-1, 1, net.params[name].size, dtype=np.float32).reshape(
                    net.params[name].shape
                )
        trainer._stepper.spread()
        if resume:
            trainer.resume(folder)
        trainer.fit((x, y), epochs=4 if resume else 2, batch_size=16, folder=folder, progress=False)
        return {name: np.array(array) for name, array in net.params.items()}

    mine = trained(workers(1, 2)[0][0], tmp_path / "remote")
    other = trained(None, tmp_path / "local")
    for name in other:
        np.testing.assert_allclose(mine[name], other[name], rtol=1e-6, atol=1e-7)
    # Each goes on from the other's checkpoint.
    mine = trained(workers(1, 1)[0][0], tmp_path / "local", resume=True)
    other = trained(None, tmp_path / "remote", resume=True)
    for name in other:
        np.testing.assert_allclose(mine[name], other[name], rtol=1e-5, atol=1e-6)


def test_a_step_that_is_skipped_pushes_nothing():
    (store,), _ = workers(1)
    net = gk.Model(gk.nn.linear(gk.input("x", ["N", 3]), 2, name="fc"))
    trainer = gk.Trainer(net, "mse", gk.optim.SGD(0.1), kvstore=store, on_nonfinite="skip")
    before = {name: np.array(array) for name, array in net.params.items()}
    loss = trainer.step(np.full((4, 3), np.nan, np.float32), np.zeros((4, 2), np.float32))
    assert np.isnan(float(loss))
    trainer.flush()
    assert all((net.params[name] == before[name]).all() for name in before)
    assert trainer.skipped == 1


# --- jobs -----------------------------------------------------------------------------------------------

CLOSED = """
    import numpy as np, graphkit as gk
    def add(key, gradient, stored):
        stored += 2 * gradient
    kv = gk.kvstore.create({kind!r}, servers={servers})
    shapes = {{"a": (4, 4), 9: (100,), "large": (1100, 1000), "none": (0, 3)}}
    keys = list(shapes)
    kv.init(keys, [np.ones(shape, np.float32) for shape in shapes.values()])
    kv.set_updater(add)
    n, steps = kv.num_workers, 6
    for step in range(steps):
        kv.begin_step()
        kv.pull("a")
        kv.push(keys, [np.full(shape, kv.rank + 1, np.float32) for shape in shapes.values()])
    kv.barrier()
    for key, found in zip(keys, kv.pull(keys)):
        assert found.shape == shapes[key]
        assert (found == n * (n + 1) // 2 * 2 * steps + 1).all(), (key, found)
    assert kv.staleness <= {bound}, kv.staleness
    print(f"done {{kv.rank}} {{n}}\\n", end="", flush=True)
"""


@pytest.mark.parametrize(("kind", "servers"), [("dist_async", 1), ("dist_async", 2), ("dist_bounded", 1)])
def test_a_job_with_servers(kind, servers):
    bound = 3 if kind == "dist_bounded" else 6
    code = CLOSED.format(kind=kind, servers=servers, bound=bound)
    status, out, errors = finish(start(2 + servers, code, trainer=False))
    assert (status, errors) == (0, "")
    assert sorted(out.split("\n")) == ["", "done 0 2", "done 1 2"]


@pytest.mark.parametrize("bound", [0, 2])
def test_staleness_is_never_above_its_bound(bound):
    code = f"""
    import time, numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_bounded", servers=1, staleness={bound})
    kv.init("w", np.zeros(10))
    for step in range(60):
        kv.begin_step()
        kv.pull("w")
        if kv.rank == 0:
            time.sleep(0.003)
        kv.push("w", np.full(10, float(step)))
    kv.barrier()
    print(f"staleness {{kv.staleness}}\\n", end="", flush=True)
    """
    status, out, errors = finish(start(4, code, trainer=False))
    assert (status, errors) == (0, "")
    found = [int(text) for text in re.findall(r"staleness (\d+)", out)]
    assert len(found) == 3
    assert max(found) == bound  # as the first worker is slow


def digits(folder, kvstore, *more, processes=2, epochs=6):
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(folder / "net.json"), "--data", "digits",
               "--epochs", str(epochs), "--batch-size", "32", "--processes", str(processes), "--kvstore", kvstore,
               "-o", str(folder / kvstore), *more]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def net(tmp_path):
    hidden = gk.relu(gk.nn.linear(gk.flatten(gk.input("x", ["N", 1, 8, 8])), 64))
    gk.Model(gk.nn.linear(hidden, 10), name="net").save(tmp_path / "net.json")
    return tmp_path


@pytest.mark.parametrize("kvstore", ["dist_async", "dist_bounded", "elastic"])
def test_digits_are_learnt(net, kvstore):
    done = digits(net, kvstore)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (net / kvstore / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["epoch"] == 6
    assert lines[-1]["valid_accuracy"] > 0.93  # one process: 0.94 to 0.96
    done = digits(net, "dist_sync", "--resume", "-o", str(net / kvstore), epochs=7)  # by another kind
    assert done.returncode == 0, done.stderr


def test_a_worker_that_fails_ends_the_servers_too():
    code = """
    import numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_async")
    kv.init("w", np.zeros(3))
    if kv.rank == 1:
        raise ValueError("broken")
    while True:
        kv.pull("w")
    """
    status, _, errors = finish(start(3, code, trainer=False), 30)
    assert status in FAILED
    assert "rank 1: ValueError: broken; this ends the job" in errors


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("who", ["worker", "server"])
def test_who_is_lost_is_named(kind, who):
    code = f"""
    import os, signal, numpy as np, graphkit as gk
    def process(values):
        return os.getpid()
    kv = gk.kvstore.create("dist_bounded", timeout=6, staleness=1)
    kv.init("w", np.zeros(3))
    for step in range(10**9):
        kv.begin_step()
        kv.pull("w")
        kv.push("w", np.ones(3))
        if step == 20 and kv.rank == 1:
            os.kill(kv.call_servers(process)[0] if {who!r} == "server" else os.getpid(), signal.{kind})
    """
    status, _, errors = finish(start(3, code, trainer=False), 60)
    assert status != 0
    if kind == "SIGSTOP":
        assert status in FAILED
        assert re.search(
            rf"rank {1 if who == 'worker' else 2} on \S+ \(process \d+\) has (shown no sign|not gone)", errors
        )


KILLED = """
import os, pathlib, signal
if os.environ.get("GRAPHKIT_JOB_SIZE"):
    from graphkit.dist.servers.server import Server

    once, handle, seen = pathlib.Path({once!r}), Server.handle, []

    def killed(self, worker, message):
        seen.append(worker)
        if len(seen) > 250 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return handle(self, worker, message)

    Server.handle = killed
"""


def test_a_killed_server_is_recovered_from_by_a_restart(net):
    """The server dies behind the first epoch, once."""
    (net / "sitecustomize.py").write_text(KILLED.format(once=str(net / "once")))
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(net / "net.json"), "--data", "digits",
               "--epochs", "4", "--batch-size", "32", "--processes", "2", "--kvstore", "dist_async",
               "-o", str(net / "run"), "--max-restarts", "1"]  # fmt: skip
    environment = dict(os.environ, PYTHONPATH=str(net))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (net / "once").exists(), done.stderr
    assert done.returncode == 0, done.stderr
    assert "the job failed; going on from its last checkpoint (0 restarts left)" in done.stderr
    lines = [json.loads(line) for line in (net / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["epoch"] == 4


def test_servers_that_leave_no_worker():
    status, _, errors = finish(start(2, 'import graphkit as gk\ngk.kvstore.create("dist_async", servers=2)', False), 30)
    assert status != 0
    assert "2 servers leave no worker of 2 processes" in errors
