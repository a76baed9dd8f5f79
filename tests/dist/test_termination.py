"""SIGTERM to one rank or to all: the job ends after a step, with a checkpoint that resumes bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap

import numpy as np
import pytest
from job_server import command

import graphkit as gk
from graphkit.dist.job.launch import find_mpiexec

pytest.importorskip("mpi4py")

DISTRIBUTED = ("--kvstore", "dist_sync", "--optimizer", "adam", "--metric", "accuracy")

# `graphkit train` in which some ranks get `COUNT` signals within their step number `AT`. Rank 0 sends a server its own.
SIGNALLED = """
    import os, pathlib, signal, sys, time
    from graphkit import cli
    from graphkit.dist.job.departure import _READY, _VOTE, Departure
    from graphkit.train.stepper import Stepper

    ranks, at, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
    take, steps, begin, departures = Stepper.take, iter(range(10**6)), Departure.begin, []
    pids = pathlib.Path(os.environ["PIDS"])
    (pids / f"pid-{rank}").write_text(str(os.getpid()))

    def begun(self):
        departures.append(self)
        begin(self)

    def wait_until_told(ranks, least):
        end = time.monotonic() + 60
        while (departures[-1]._departures()[0][ranks] < least).any():
            assert time.monotonic() < end, "the others do not tell it"
            time.sleep(0.01)

    def taken(self, *arguments):
        if next(steps) == at:
            targets = [t for t in ranks.split(",") if t == rank or (rank == "0" and t.startswith("server "))]
            for target in targets:
                if target == rank:
                    for _ in range(count):
                        os.kill(os.getpid(), signal.SIGTERM)
                    continue
                wait_until_told(slice(departures[-1]._workers), _READY)  # before, SIGTERM ends a server at once
                for number in range(count):
                    if number:  # two signals at once would arrive as one
                        wait_until_told([int(target[7:])], _VOTE)
                    os.kill(int((pids / f"pid-{target[7:]}").read_text()), signal.SIGTERM)
                wait_until_told([int(target[7:])], _VOTE)
        return take(self, *arguments)

    Stepper.take, Departure.begin = taken, begun
    cli.main(sys.argv[4:])
"""


@pytest.fixture
def task(tmp_path):
    """A network of three groups with dropout and batch normalisation, and 50 samples, 10 of them for validation."""
    x = gk.input("x", ["N", 6])
    with gk.attr_scope(ctx_group="a"):
        h = gk.nn.dropout(gk.relu(gk.nn.batch_norm(gk.nn.linear(x, 8, name="fc1"), name="bn")), 0.3)
    with gk.attr_scope(ctx_group="b"):
        h = gk.tanh(gk.nn.linear(h, 8, name="fc2"))
    with gk.attr_scope(ctx_group="c"):
        gk.Model({"y": gk.nn.linear(h, 3, name="fc3")}, seed=2).save(tmp_path / "net.json")
    rng = np.random.default_rng(3)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((50, 6), np.float32), y=rng.integers(0, 3, 50))
    return tmp_path


def options(task, run, *more):
    data = ["--data", task / "data.npz", "--batch-size", 8, "--epochs", 2, "-o", task / run]
    return list(map(str, ["train", task / "net.json", *data, *DISTRIBUTED, *more]))


def job(*arguments, ranks="", at=0, count=1, processes=2):
    code = [sys.executable, "-P", "-c", textwrap.dedent(SIGNALLED), ranks, str(at), str(count)]
    with tempfile.TemporaryDirectory() as pids:
        environment = os.environ | {"GRAPHKIT_NUM_THREADS": "1", "GRAPHKIT_RANK_TIMEOUT": "20", "PIDS": pids}
        command = [find_mpiexec(), "-n", str(processes), *code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


def state(run):
    """Return the names of the files of weights and states, which contain hashes of the files, and the position."""
    manifest = json.loads((run / "checkpoint.json").read_text())
    return sorted(p.name for p in run.glob("*.safetensors")), manifest["position"] | {"seconds": None}


# Each epoch has 3 batches, the last one of 8 samples. The signal arrives at the beginning of the step number `at`, and
# takes effect after `batches`: after an update.
CASES = [
    pytest.param("1", 1, 2, (), id="one rank"),
    pytest.param("0,1", 3, 5, ("--accumulate", 2), id="all ranks", marks=pytest.mark.full),
    pytest.param("0", 2, 3, ("--sync-batch-norm", "--shard-optimizer"), id="last step", marks=pytest.mark.full),
]
# Groups of ranks take whole batches: each epoch has 5.
PIPELINE = ("--place", "a=0", "--place", "b=1", "--place", "c=1", "--micro-batches", 2)
BOTH_WAYS = ("--place", "a=0", "--place", "b=1", "--place", "c=0")
GROUPS = [
    pytest.param("1", 1, 2, PIPELINE, id="pipeline", marks=pytest.mark.full),
    pytest.param("0,1", 6, 7, PIPELINE, id="pipeline, all ranks", marks=pytest.mark.full),
    pytest.param("0", 4, 5, PIPELINE, id="pipeline, last step", marks=pytest.mark.full),
    pytest.param("1", 2, 3, BOTH_WAYS, id="placed groups", marks=pytest.mark.full),
    pytest.param("0,1", 1, 2, BOTH_WAYS, id="placed groups, all ranks", marks=pytest.mark.full),
]


def check_resume_after_sigterm(jobs, task, ranks, at, batches, more, per_epoch, again=()):
    """Assert that a run stops after `batches`, and that the resumed run ends as one without signals.

    again: options that must be given again to resume.
    """
    jobs.run(command(*options(task, "whole", *more)))
    done = job(*options(task, "run", *more), ranks=ranks, at=at)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    position = json.loads((task / "run" / "checkpoint.json").read_text())["position"]
    assert position["epoch"] * per_epoch + position["batch"] == batches, done.stderr
    assert re.search(r"stopped .* contains a checkpoint of this position", done.stderr), done.stderr
    options_again = ["--kvstore", "dist_sync", *map(str, again)]
    jobs.run(command("train", task / "net.json", "-o", task / "run", "--resume", *options_again))
    assert state(task / "run") == state(task / "whole")


@pytest.mark.parametrize(("ranks", "at", "batches", "more"), CASES)
def test_run_resumes_bit_for_bit_after_sigterm(jobs, task, ranks, at, batches, more):
    check_resume_after_sigterm(jobs, task, ranks, at, batches, more, per_epoch=3)


@pytest.mark.parametrize(("ranks", "at", "batches", "more"), GROUPS)
def test_groups_resume_bit_for_bit_after_sigterm(jobs, task, ranks, at, batches, more):
    check_resume_after_sigterm(jobs, task, ranks, at, batches, more, per_epoch=5, again=more)


@pytest.mark.full
def test_second_sigterm_ends_at_once_and_keeps_the_last_checkpoint(task):
    done = job(*options(task, "run"), ranks="1", at=5, count=2)
    assert done.returncode != 0
    assert json.loads((task / "run" / "checkpoint.json").read_text())["position"]["epoch"] == 1
    assert job("train", str(task / "net.json"), "-o", str(task / "run"), "--resume").returncode == 0


# --- parameter servers ------------------------------------------------------------------------------------

# Each epoch has 3 batches of 8 samples on each of two workers. The job ends after step 1 of the rank that gets the
# signal, or after a later one that another worker has begun; at the end of an epoch, after its validation.
SERVERS = [
    pytest.param("dist_async", 1, "1", 1, id="async, a worker", marks=pytest.mark.full),
    pytest.param("dist_async", 1, "server 2", 1, id="async, the server", marks=pytest.mark.full),
    pytest.param("dist_bounded", 1, "0,1,server 2", 2, id="bounded, all", marks=pytest.mark.full),
    pytest.param("dist_bounded", 2, "server 3", 4, id="bounded, one of two servers", marks=pytest.mark.full),
    pytest.param("elastic", 1, "0", 0, id="elastic", marks=pytest.mark.full),
]


def server_options(task, run, kind, servers, *more):
    data = ["--data", task / "data.npz", "--batch-size", 8, "--epochs", 4, "-o", task / run, "--optimizer", "adam"]
    return [*map(str, ["train", task / "net.json", *data, "--kvstore", kind, "--servers", servers, *more])]


@pytest.mark.parametrize(("kind", "servers", "ranks", "at"), SERVERS)
def test_workers_stop_together_after_sigterm(task, kind, servers, ranks, at):
    done = job(*server_options(task, "run", kind, servers), ranks=ranks, at=at, processes=2 + servers)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    assert re.search(r"stopped .* contains a checkpoint of this position", done.stderr), done.stderr
    manifest = json.loads((task / "run" / "checkpoint.json").read_text())
    position = manifest["position"]
    steps = position["epoch"] * 3 + position["batch"]
    assert at + 1 <= steps <= 9, done.stderr
    assert manifest["updates"] == steps
    resumed = server_options(task, "run", kind, servers, "--resume")
    again = job(*resumed, processes=2 + servers)
    assert again.returncode == 0, again.stderr
    manifest = json.loads((task / "run" / "checkpoint.json").read_text())
    assert (manifest["position"]["epoch"], manifest["updates"]) == (4, 12)


@pytest.mark.full
def test_one_worker_with_a_server_resumes_bit_for_bit(task):
    """The server and the worker take turns, so the results of the whole run are known."""
    whole = job(*server_options(task, "whole", "dist_async", 1), processes=2)
    assert whole.returncode == 0, whole.stderr
    done = job(*server_options(task, "run", "dist_async", 1), ranks="server 1", at=2, processes=2)
    assert done.returncode != 0
    assert "contains a checkpoint of this position" in done.stderr, done.stderr
    position = json.loads((task / "run" / "checkpoint.json").read_text())["position"]
    assert position["epoch"] == 0
    assert position["batch"] >= 3
    resumed = job(*server_options(task, "run", "dist_async", 1, "--resume"), processes=2)
    assert resumed.returncode == 0, resumed.stderr
    assert state(task / "run") == state(task / "whole")


@pytest.mark.full
def test_second_sigterm_to_a_server_ends_at_once(task):
    done = job(*server_options(task, "run", "dist_async", 1), ranks="server 2", at=4, count=2, processes=3)
    assert done.returncode != 0
    assert "contains a checkpoint of this position" not in done.stderr
    assert json.loads((task / "run" / "checkpoint.json").read_text())["position"]["epoch"] == 1


@pytest.mark.full
def test_sigterm_to_a_server_without_a_folder_ends_at_once(task):
    script = """
        import os, signal, time
        import numpy as np, graphkit as gk
        def process(values):
            return os.getpid()
        kv = gk.kvstore.create("dist_async", servers=1)
        kv.init("a", np.zeros(3, np.float32))
        if kv.rank == 0:
            os.kill(kv.call_servers(process)[0], signal.SIGTERM)
        time.sleep(1000)
    """
    command = [find_mpiexec(), "-n", "3", sys.executable, "-P", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "rank 2: terminated" in done.stderr
