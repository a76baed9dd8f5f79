"""Jobs that continue after a server is killed, and jobs that end."""

import json
import os
import re
import subprocess
import sys
import threading
import types

import pytest
from jobs import FAILED, finish, start

import graphkit as gk
from graphkit.cli import invoke
from graphkit.dist.job import launch, survival
from graphkit.dist.servers import replicated
from graphkit.dist.wire.mesh import Frame, FrameKind
from graphkit.errors import RuntimeFailure, UsageError


def run(processes, code, timeout=300):
    options = survival.launcher_options(launch.find_mpiexec())
    return finish(start(processes, code, before="", options=options), timeout)


# A server kills itself after a number of its messages, as the leader or as another server's replica.
KILLED = """
    import os, signal, time, numpy as np, graphkit as gk
    from graphkit.dist.servers.server import Server
    kill_at, take, seen = {kill_at!r}, Server.handle_unpacked, []
    def counted(self, *message):
        seen.append(0)
        rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", -1)))
        if len(seen) == kill_at.get(rank):
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, *message)
    Server.handle_unpacked = counted
    def add(key, gradient, stored):
        stored += 2 * gradient
"""

CLOSED = (
    KILLED
    + """
    kv = gk.kvstore.create({kind!r}, servers={servers}, replicate=True)
    shapes = {{"a": (4, 4), 9: (100,), "large": (1100, 1000), "none": (0, 3), **{{f"k{{n}}": (2,) for n in range(6)}}}}
    keys = list(shapes)
    kv.init(keys, [np.ones(shape, np.float32) for shape in shapes.values()])
    kv.set_updater(add)
    n, steps = kv.num_workers, 12
    for step in range(steps):
        kv.begin_step()
        kv.pull(keys)
        for key in keys:
            kv.push(key, np.full(shapes[key], kv.rank + 1, np.float32))
    kv.barrier()
    for key, found in zip(keys, kv.pull(keys)):
        assert found.shape == shapes[key]
        assert (found == n * (n + 1) // 2 * 2 * steps + 1).all(), (key, found)
    assert kv.staleness <= {bound}, kv.staleness
    print(f"done {{kv.rank}} {{n}}\\n", end="", flush=True)
"""
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "kill_at"),
    [
        ("dist_async", {}),
        ("dist_async", {2: 60}),
        ("dist_async", {3: 141}),
        ("dist_bounded", {3: 80}),
        ("dist_async", {2: 60, 4: 160}),
        ("dist_bounded", {4: 50, 3: 130}),
    ],
)
def test_every_push_counts_once_whichever_server_is_killed(kind, kill_at):
    servers = 3 if len(kill_at) == 2 else 2
    bound = 3 if kind == "dist_bounded" else 12
    status, out, errors = run(2 + servers, CLOSED.format(kind=kind, servers=servers, bound=bound, kill_at=kill_at))
    assert status == 0, errors
    assert sorted(out.split("\n")) == ["", "done 0 2", "done 1 2"]
    lost = re.findall(r"graphkit: rank (\d) on \S+ \(process \d+\) is lost; rank (\d) on \S+ \(process", errors)
    assert sorted(int(rank) for rank, _ in lost) == sorted(kill_at)
    assert all(rank != to for rank, to in lost)


@pytest.mark.full
def test_the_centre_gains_what_workers_give_when_a_server_is_killed():
    code = (
        KILLED
        + """
    kv = gk.kvstore.create("elastic", servers=2, replicate=True)
    keys = [f"k{{n}}" for n in range(8)] + ["large"]
    shapes = {{key: (1 << 20,) if key == "large" else (4,) for key in keys}}
    kv.init(keys, [np.zeros(shape) for shape in shapes.values()])
    mine = {{key: np.full(shape, 64.0 * (kv.rank + 1)) for key, shape in shapes.items()}}
    for _ in range(20):
        mine = kv.exchange(mine, 0.5)
    kv.barrier()
    for key in keys:
        total = kv.pushpull(f"sum {{key}}", mine[key]) + kv.pull(key)
        assert abs(total - 64 * 3).max() < 1e-9, (key, total)
    print("done\\n", end="", flush=True)
    """
    )
    status, out, errors = run(4, code.format(kill_at={3: 23}))
    assert (status, out) == (0, "done\ndone\n"), errors
    assert "rank 3 on" in errors


@pytest.mark.full
def test_who_only_pushes_keeps_no_more_than_a_window_and_waits_with_more():
    code = (
        KILLED
        + """
    from graphkit.dist.servers import replicated
    replicated.WINDOW = 20_000
    kv = gk.kvstore.create("dist_async", servers=2, replicate=True)
    keys = [f"k{{n}}" for n in range(8)]
    kv.init(keys, [np.zeros(1000)] * 8)
    kv.set_updater(add)
    most = 0
    for _ in range(40):
        for key in keys:
            kv.push(key, np.ones(1000))
            most = max(most, kv._client._connection.kept_bytes)
    kv.barrier()
    assert all((value == 2 * 40 * kv.num_workers).all() for value in kv.pull(keys))
    assert 8_000 < most <= 20_000, most
    print("done\\n", end="", flush=True)
    """
    )
    status, out, errors = run(4, code.format(kill_at={2: 200}))
    assert (status, out) == (0, "done\ndone\n"), errors
    assert "rank 2 on" in errors


@pytest.mark.full
@pytest.mark.parametrize("hosts", [1, 2])
def test_staleness_is_never_above_its_bound_when_a_server_is_killed(hosts, monkeypatch):
    """With several hosts, processes connect over the network, and leaders of hosts forward heartbeats.

    The killed process may be such a leader.
    """
    if hosts > 1:
        monkeypatch.setenv("GRAPHKIT_RANKS_PER_HOST", "2")
    code = (
        KILLED
        + """
    kv = gk.kvstore.create("dist_bounded", servers=2, staleness=1, replicate=True, timeout=8)
    kv.init(["w", "v", "x"], [np.zeros(10)] * 3)
    for step in range(60):
        kv.begin_step()
        kv.pull(["w", "v", "x"])
        if kv.rank == 0:
            time.sleep(0.003)
        kv.push(["w", "v", "x"], [np.full(10, float(step))] * 3)
    kv.barrier()
    print(f"staleness {{kv.staleness}}\\n", end="", flush=True)
    """
    )
    status, out, errors = run(4, code.format(kill_at={2: 100}))
    assert status == 0, errors
    assert "rank 2 on" in errors
    found = [int(text) for text in re.findall(r"staleness (\d+)", out)]
    assert len(found) == 2
    assert max(found) == 1  # as the first worker is slow


@pytest.mark.full
@pytest.mark.parametrize(
    ("who", "kind", "message"),
    [
        ("worker", "SIGKILL", "rank 1 on .* has ended without notice"),
        ("worker", "SIGSTOP", "rank 1 on .* has (sent no heartbeat|made no progress)"),
        ("server", "SIGSTOP", "rank 2 on .* has (sent no heartbeat|made no progress)"),
        ("both", "SIGKILL", "all servers are lost"),
    ],
)
def test_who_is_lost_and_ends_the_job(who, kind, message):
    code = f"""
    import os, signal, numpy as np, graphkit as gk
    def process(values):
        return os.getpid()
    kv = gk.kvstore.create("dist_bounded", servers=2, timeout=6, staleness=1, replicate=True)
    kv.init(["w", "v"], [np.zeros(3)] * 2)
    pids = kv.call_servers(process)
    for step in range(10**9):
        kv.begin_step()
        kv.pull(["w", "v"])
        kv.push(["w", "v"], [np.ones(3)] * 2)
        if step == 20 and kv.rank == 1:
            for pid in [os.getpid()] if {who!r} == "worker" else pids[:1] if {who!r} == "server" else pids:
                os.kill(pid, signal.{kind})
    """
    status, _, errors = run(4, code)
    assert status in FAILED or (kind, status) == ("SIGKILL", 137)
    # The launcher may end the others of a killed worker before they say so.
    assert re.search(message, errors) or who == "worker"


@pytest.mark.full
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ("raise gk.errors.InputError('bad sample')", 2),
        ("os._exit(0)", 5),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
    ],
)
@pytest.mark.parametrize("loss", [False, True])
def test_a_worker_that_fails_ends_the_job_at_once(failure, status, loss):
    """The launcher does not end the other processes: neither servers, nor a worker that is busy with something else."""
    code = (
        KILLED
        + f"""
    kv = gk.kvstore.create("dist_async", servers=2, replicate=True)
    kv.init(["w", "v"], [np.zeros(3)] * 2)
    for _ in range(20):
        kv.pull(["w", "v"])
    kv.barrier()
    if kv.rank == 1:
        {failure}
    time.sleep(300)
    """
    )
    found, _, errors = run(4, code.format(kill_at={3: 20} if loss else {}))
    assert found == status, errors
    if "bad sample" in failure:
        assert "graphkit: rank 1: bad sample; this ends the job" in errors


@pytest.mark.full
def test_who_leaves_before_the_connections_are_there_is_not_waited_for():
    code = """
    import os, signal, time, graphkit as gk
    from graphkit.dist.servers import replicated
    def dies(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "3":
        replicated.open_mesh = dies
    gk.kvstore.create("dist_async", servers=2, replicate=True, timeout=5)
    """
    status, _, _ = run(4, code)
    assert status != 0


@pytest.mark.full
def test_who_leaves_unseen_before_the_connections_are_there_is_not_waited_for():
    """Its launcher knows of nothing that went wrong."""
    code = """
    import os, graphkit as gk
    from graphkit.dist.job import mpi
    from graphkit.dist.servers import replicated
    mpi.LEAST_TIMEOUT = 2.0
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "3":
        replicated.open_mesh = lambda *_: os._exit(0)
    gk.kvstore.create("dist_async", servers=2, replicate=True, timeout=2)
    """
    status, _, errors = run(4, code)
    assert status != 0
    assert "not all processes of the job have opened their store within 2 s" in errors


@pytest.mark.full
def test_a_server_that_is_lost_while_mpi_is_closed_is_not_waited_for():
    code = """
    import os, signal, graphkit as gk
    from graphkit.dist.job import mpi
    mpi.LEAST_TIMEOUT = 3
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "3":
        mpi.MpiCommunicator.finalize = lambda self: os.kill(os.getpid(), signal.SIGKILL)
    kv = gk.kvstore.create("dist_async", servers=2, replicate=True, timeout=3)
    kv.barrier()
    print("done\\n", end="", flush=True)
    """
    status, out, _ = run(4, code)
    assert out == "done\ndone\n"
    assert status in (0, 5)  # MPICH's cannot be closed then


def test_what_launchers_are_told(tmp_path):
    def made(text):
        path = tmp_path / "mpiexec"
        path.write_text(f"#!/bin/sh\necho '{text}'\n")
        path.chmod(0o755)
        return str(path)

    assert survival.launcher_options(made("HYDRA build details:")) == ["-disable-auto-cleanup"]
    assert survival.launcher_options(made("mpiexec (Open MPI) 5.0.11")) == ["--with-ft", "ulfm"]
    with pytest.raises(UsageError, match=r"replicated servers need the launcher of MPICH .*mpiexec \(another one\)"):
        survival.launcher_options(made("another one"))


def test_the_launcher_of_a_job_that_survives_is_told(tmp_path, monkeypatch):
    path = tmp_path / "mpiexec"
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo HYDRA; else printf "%s " "$@" > {tmp_path}/told; exit 3; fi\n'
    )
    path.chmod(0o755)
    monkeypatch.setattr(launch, "find_mpiexec", lambda: str(path))
    for survives in (True, False):
        assert launch.run_processes(3, ["train"], survives) == 3
        told = (tmp_path / "told").read_text()
        assert told.startswith("-disable-auto-cleanup -n 3 " if survives else "-n 3 ")


def test_where_a_store_with_replicated_servers_is_made(monkeypatch):
    """Under Hydra a server becomes a child of its process: before MPI is started, and in the main thread."""
    for name, value in {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(survival, "_fork_child", lambda: pytest.fail("it has become one"))
    failures = []

    def elsewhere():
        try:
            survival.prepare(2)
        except UsageError as error:
            failures.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert failures == ["replicate=True: with MPICH's launcher, create the store in the main thread"]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", types.SimpleNamespace(Is_initialized=lambda: True))
    with pytest.raises(UsageError, match="create the store before MPI is started"):
        survival.prepare(2)
    monkeypatch.delenv("PMI_FD")
    survival.prepare(2)  # another launcher's processes stay as they are


# --- training -------------------------------------------------------------------------------------------

ONE_IS_KILLED = """
import os, signal
if os.environ.get("GRAPHKIT_JOB_SIZE"):
    from graphkit.dist.servers.server import Server

    take, seen = Server.handle_unpacked, []

    def killed(self, *message):
        seen.append(0)
        if len(seen) == 400:
            try:
                os.close(os.open({once!r}, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return take(self, *message)

    Server.handle_unpacked = killed
"""


def train(folder, *more, environment=None):
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(folder / "net.json"), "--data", "digits",
               "--batch-size", "32", "-o", str(folder / "run"), *more]  # fmt: skip
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return finish(subprocess.Popen(command, **pipes, text=True, start_new_session=True, env=environment), 240)


@pytest.fixture
def net(tmp_path):
    hidden = gk.relu(gk.nn.linear(gk.flatten(gk.input("x", ["N", 1, 8, 8])), 64))
    gk.Model(gk.nn.linear(hidden, 10), name="net").save(tmp_path / "net.json")
    return tmp_path


@pytest.mark.full
def test_a_training_goes_on_when_one_of_two_servers_is_killed(net):
    (net / "sitecustomize.py").write_text(ONE_IS_KILLED.format(once=str(net / "once")))
    job = ("--processes", "2", "--servers", "2", "--kvstore", "dist_async", "--replicate-servers")
    status, _, errors = train(net, *job, "--epochs", "6", environment=dict(os.environ, PYTHONPATH=str(net)))
    assert (net / "once").exists(), errors
    assert status == 0, errors
    assert re.search(r"graphkit: rank [23] on \S+ \(process \d+\) is lost; rank [23] .* has taken over", errors)
    assert "restart" not in errors
    lines = [json.loads(line) for line in (net / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["event"] == "epoch"] == [1, 2, 3, 4, 5, 6]
    assert lines[-1]["valid_accuracy"] > 0.93  # one process: 0.94 to 0.96
    status, _, errors = train(net, "--resume", "--epochs", "7", "--kvstore", "local", "--processes", "1")
    assert status == 0, errors
    lines = [json.loads(line) for line in (net / "run" / "log.jsonl").read_text().splitlines()]
    assert lines[-1]["epoch"] == 7
    assert lines[-1]["valid_accuracy"] > 0.93


@pytest.mark.parametrize(
    "more", [("--kvstore", "dist_async", "--servers", "1"), ("--kvstore", "dist_sync"), ("--kvstore", "dist_async")]
)
def test_options_that_do_not_go_together(net, capsys, more):
    given = ["train", str(net / "net.json"), "--data", "digits", "--processes", "2", *more, "--replicate-servers"]
    assert invoke(given) == 2
    assert "--replicate-servers needs --servers 2 or more" in capsys.readouterr().err


def test_a_failure_explains_a_worker_that_is_gone(monkeypatch):
    """The launcher may end a worker because another one failed: the server leaves with the exit code of the failure."""

    class Left(Exception):
        pass

    def leave(company, code):
        raise Left(code)

    monkeypatch.setattr(replicated, "_exit", leave)
    monkeypatch.setattr(replicated, "_FAILURE_WAIT", 0.2)
    company = types.SimpleNamespace(processes=4, servers=2, describe=lambda rank: f"rank {rank}")
    failed = [[], [(1, Frame(FrameKind.FAILED, number=2))]]
    mesh = types.SimpleNamespace(receive=lambda seconds: failed.pop(0) if failed else [], close=lambda *words: None)
    with pytest.raises(Left, match=r"^2$"):
        replicated._serve_one(None, mesh, company, 0, None)
    with pytest.raises(RuntimeFailure, match="rank 0 has ended without notice"):
        replicated._serve_one(None, mesh, company, 0, None)
