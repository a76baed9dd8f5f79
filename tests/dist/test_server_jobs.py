"""Jobs with servers: their results, and their end."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from combinations import full
from job_server import running
from jobs import FAILED, finish, start

import graphkit as gk


@pytest.fixture(scope="module")
def jobs():
    """As for all tests; jobs with servers, which look for messages all the time, end with this file."""
    with running() as found:
        yield found


CLOSED = """
    import numpy as np, graphkit as gk
    from serving import add_twice
    shapes = {{"a": (4, 4), 9: (100,), "large": (1100, 1000), "none": (0, 3)}}
    keys = list(shapes)
    kv.init(keys, [np.ones(shape, np.float32) for shape in shapes.values()])
    kv.init("rows", np.ones((11_000, 100), np.float32))
    kv.set_updater(add_twice)
    n, steps = kv.num_workers, 6
    for step in range(steps):
        kv.begin_step()
        kv.pull("a")
        kv.push(keys, [np.full(shape, kv.rank + 1, np.float32) for shape in shapes.values()])
        mine = np.array([kv.rank, 6000, 10_999])
        assert kv.row_sparse_pull("rows", mine).values.shape == (3, 100)
        kv.push("rows", gk.kvstore.RowSparse(mine, np.full((3, 100), kv.rank + 1, np.float32)))
    kv.barrier()
    rows = np.ones(11_000)
    rows[[0, 1]] += 2 * steps * np.arange(1, n + 1)
    rows[[6000, 10_999]] += n * (n + 1) // 2 * 2 * steps
    assert (kv.pull("rows") == rows[:, None]).all()
    for key, found in zip(keys, kv.pull(keys)):
        assert found.shape == shapes[key]
        assert (found == n * (n + 1) // 2 * 2 * steps + 1).all(), (key, found)
    assert kv.staleness <= {bound}, kv.staleness
    print(kv.rank, n)
"""


@pytest.mark.parametrize(
    ("kind", "servers"),
    [("dist_bounded", 1), full("dist_async", 1), full("dist_async", 2)],
)
def test_a_job_with_servers(jobs, kind, servers):
    bound = 3 if kind == "dist_bounded" else 6
    code = CLOSED.format(bound=bound)
    assert jobs.run(code, 2 + servers, store=kind, servers=servers) == ["0 2\n", "1 2\n"]


STALE = """
    import time
    from pathlib import Path
    import numpy as np
    bound, folder = {bound}, Path({folder!r})
    kv.staleness = 0  # of what the job ran before
    kv.init("w", np.zeros(10))
    for step in range(bound + 20):
        kv.begin_step()
        kv.pull("w")
        assert kv.staleness <= bound
        if kv.staleness == bound:
            (folder / str(kv.rank)).touch()
        # The first worker is slow: it waits for the others to be as far ahead as they may.
        end = time.monotonic() + 60
        while kv.rank == 0 and step == 0 and len(list(folder.iterdir())) < kv.num_workers - 1 + (bound == 0):
            assert time.monotonic() < end, "the others are not ahead"
            time.sleep(0.002)
        kv.push("w", np.full(10, float(step)))
    kv.barrier()
    print(f"staleness {{kv.staleness}}\\n", end="")  # in one write: lines of processes do not mix
"""


def test_workers_are_ahead_by_the_bound_and_no_more(jobs, tmp_path):
    found = jobs.run(STALE.format(bound=3, folder=str(tmp_path)), 3, store="dist_bounded", servers=1)
    assert found[1] == "staleness 3\n"


@pytest.mark.full
@pytest.mark.parametrize("bound", [0, 2])
def test_staleness_is_never_above_its_bound(tmp_path, bound):
    store = f"""
    import graphkit as gk
    kv = gk.kvstore.create("dist_bounded", servers=1, staleness={bound})
    """
    code = textwrap.dedent(store) + textwrap.dedent(STALE).format(bound=bound, folder=str(tmp_path))
    status, out, errors = finish(start(4, code, before=""))
    assert (status, errors) == (0, "")
    found = [int(text) for text in re.findall(r"staleness (\d+)", out)]
    assert len(found) == 3
    assert max(found) == bound
    assert found.count(bound) >= 2, "those that are ahead of the first worker"


ELASTIC = """
    import numpy as np
    shapes = {"centre": (1 << 20,), "small": (4,)}
    kv.init(list(shapes), [np.zeros(shape) for shape in shapes.values()])
    mine = {key: np.full(shape, 64.0 * (kv.rank + 1)) for key, shape in shapes.items()}
    for _ in range(10):
        mine = kv.exchange(mine, 0.25)
    kv.barrier()
    for key in shapes:
        # The sum over workers and centre stays the same.
        total = kv.pushpull(f"sum {key}", mine[key]) + kv.pull(key)
        assert abs(total - 64 * 3).max() < 1e-9, (key, total)
        assert 16 < kv.pull(key).min() < 128
"""


@pytest.mark.parametrize("kind", ["dist_bounded", full("dist_async"), full("elastic")])
def test_a_centre_gains_what_workers_give(jobs, kind):
    """`exchange` is that of all stores with servers."""
    jobs.run(ELASTIC, 3, store=kind, servers=1)


def digits(folder, kvstore, *more, processes=2, epochs=6):
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(folder / "net.json"), "--data", "digits",
               "--epochs", str(epochs), "--batch-size", "32", "--processes", str(processes), "--kvstore", kvstore,
               "-o", str(folder / kvstore), *more]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def net(tmp_path):
    hidden = gk.relu(gk.nn.linear(gk.flatten(gk.input("x", ["N", 1, 8, 8])), 64))
    gk.Model(gk.nn.linear(hidden, 10), name="net").save(tmp_path / "net.json")
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("kvstore", ["dist_async"])
def test_digits_are_learnt(net, kvstore):
    """The other kinds: `test_digits_are_learnt_with_averages_and_groups_of_batches`."""
    done = digits(net, kvstore)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (net / kvstore / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["epoch"] == 6
    assert lines[-1]["valid_accuracy"] > 0.93  # one process: 0.94 to 0.96
    assert done.stderr.count("lower the learning rate from 0.05 to about 0.025 (--lr) and the momentum") == 1
    done = digits(net, "dist_sync", "--resume", "-o", str(net / kvstore), epochs=7)  # by another kind
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("kvstore", "more"),
    [
        ("dist_async", ("--optimizer", "rmsprop", "--lr", "0.002", "--optimizer-option", "centered=true")),
        ("dist_bounded", ("--staleness", "1", "--servers", "2")),
        ("elastic", ("--elastic-period", "4", "--elastic-strength", "0.8")),
    ],
)
def test_digits_are_learnt_with_averages_and_groups_of_batches(net, kvstore, more):
    """With checkpoints within epochs, all workers have the same counts. Another number of processes can resume."""
    options = "--accumulate", "2", "--ema", "0.9", "--lr-mult", "*bias=2", "--checkpoint-every", "7", *more
    done = digits(net, kvstore, *options, epochs=12)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (net / kvstore / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["updates"] == 12 * 12  # 23 batches each
    assert lines[-1]["valid_accuracy"] > 0.91
    done = digits(net, "local", "--resume", "-o", str(net / kvstore), processes=1, epochs=13)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (net / kvstore / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["valid_accuracy"] > 0.91


TABLES = """
    import warnings
    import numpy as np, graphkit as gk
    from graphkit.dist.servers import sharding
    warnings.filterwarnings("ignore", message="training may diverge")
    sharding.LARGE = 500  # divides tables
    kv = gk.kvstore.create({kind!r}, servers=2)
    net = gk.models.build("matrix_factorization", users=90, items=70, factors=8)
    rng = np.random.default_rng(0)
    data = {{"user": rng.integers(0, 90, 1000), "item": rng.integers(0, 70, 1000)}}
    target = ((data["user"] % 3) - (data["item"] % 2)).astype(np.float32)
    trainer = gk.Trainer(
        net, "mse", gk.optim.Adam(0.02), kvstore=kv, seed=0, threads=1, ema=0.9, lazy=["user*", "item*"], clip_norm=5.0
    )
    before = trainer.evaluate((data, target), ["mse"])["mse"]
    trainer.fit((data, target), epochs=8, batch_size=20, folder={folder!r}, progress=False)
    after = trainer.evaluate((data, target), ["mse"])["mse"]
    gathered = kv.gather("values", np.concatenate([np.ravel(a) for a in [*net.params.values(), [after]]]))
    assert (gathered[0] == gathered[1]).all()
    with trainer.averaged() as averaged:
        saved = gk.load({folder!r} + "/model.json")
        for name, array in averaged.params.items():
            np.testing.assert_array_equal(saved.params[name], array)
    print(f"mse {{before:.3f}} to {{after:.3f}}\\n", end="", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["dist_bounded", "elastic"])
def test_tables_are_learnt_and_workers_end_with_the_same(kind, tmp_path):
    code = TABLES.format(kind=kind, folder=str(tmp_path / "run"))
    status, out, errors = finish(start(4, code, before=""))
    assert (status, errors) == (0, "")
    found = re.findall(r"mse (\S+) to (\S+)", out)
    assert len(found) == 2
    assert all(float(after) < 0.35 * float(before) for before, after in found), found


@pytest.mark.full
def test_a_worker_that_fails_ends_the_servers_too():
    code = """
    import time, numpy as np, graphkit as gk
    kv = gk.kvstore.create("dist_async")
    kv.init("w", np.zeros(3))
    if kv.rank == 1:
        raise ValueError("broken")
    while True:
        kv.pull("w")
        time.sleep(0.01)
    """
    status, _, errors = finish(start(3, code, before=""))
    assert status in FAILED
    assert "rank 1: ValueError: broken; this ends the job" in errors


@pytest.mark.full
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
    status, _, errors = finish(start(3, code, before=""))
    assert status != 0
    if kind == "SIGSTOP":
        assert status in FAILED
        assert re.search(
            rf"rank {1 if who == 'worker' else 2} on \S+ \(process \d+\) has (sent no heart|made no prog)",
            errors,
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


@pytest.mark.full
def test_a_killed_server_is_recovered_from_by_a_restart(net):
    """The server dies once, after the first epoch."""
    (net / "sitecustomize.py").write_text(KILLED.format(once=str(net / "once")))
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(net / "net.json"), "--data", "digits",
               "--epochs", "4", "--batch-size", "32", "--processes", "2", "--kvstore", "dist_async",
               "-o", str(net / "run"), "--max-restarts", "1"]  # fmt: skip
    environment = dict(os.environ, PYTHONPATH=str(net))
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert (net / "once").exists(), done.stderr
    assert done.returncode == 0, done.stderr
    assert "the job failed; restarting it from its last checkpoint (restarts left: 0)" in done.stderr
    lines = [json.loads(line) for line in (net / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["epoch"] == 4


@pytest.mark.full
def test_servers_that_leave_no_worker():
    status, _, errors = finish(start(2, 'import graphkit as gk\ngk.kvstore.create("dist_async", servers=2)', before=""))
    assert status != 0
    assert "2 processes and 2 servers: no worker is left; start at least 3 processes" in errors


@pytest.mark.full
def test_a_second_store_with_servers_is_refused(jobs):
    code = """
    import pytest
    from graphkit.dist import kvstore
    from graphkit.errors import UsageError
    assert kvstore.create("dist_sync").num_workers == 2
    with pytest.raises(UsageError, match="a job can have only one store with servers"):
        kvstore.create("dist_bounded", servers=1)
    with pytest.raises(UsageError, match="created with servers=1: pass the same number for every later store, not 2"):
        kvstore.create("dist_async", servers=2)
    """
    jobs.run(code, 3, store="dist_async", servers=1)


@pytest.mark.full
@pytest.mark.parametrize("options", ["servers=1", "servers=2, replicate=True"])
def test_a_second_store_with_the_same_keys_is_refused(options):
    body = f"""
        import graphkit as gk
        kv = gk.kvstore.create("dist_async", {options})
        assert gk.kvstore.create("dist_sync").num_workers == 1
        try:
            gk.kvstore.create("dist_bounded", {options})
        except gk.errors.UsageError as error:
            print(error)
    """
    status, output, errors = finish(start(3 if "2" in options else 2, body, before=""))
    assert status == 0, errors
    assert "a job can have only one store with servers" in output
