"""Jobs that Slurm's srun starts. The tests are skipped without Slurm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from graphkit.dist.job import mpi

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def interface():
    """The --mpi of srun that belongs to mpi4py's MPI."""
    if shutil.which("srun") is None:
        pytest.skip("Slurm is not installed: no srun on PATH")
    listed = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True, timeout=60)
    if listed.returncode != 0:
        pytest.skip(f"srun finds no configuration of Slurm: {listed.stderr.strip()}")
    nodes = subprocess.run(["sinfo", "-h", "-o", "%T %C"], capture_output=True, text=True, timeout=60)
    if nodes.returncode != 0:
        pytest.skip(f"Slurm does not answer: {nodes.stderr.strip()}")
    chosen = "pmix" if mpi.library().startswith("Open MPI") else "pmi2"
    if chosen not in (listed.stdout + listed.stderr).split():
        pytest.skip(f"Slurm has no --mpi={chosen}, which {mpi.library()} needs")
    return chosen


def srun(interface, code, *options):
    command = ["srun", "-n", "2", f"--mpi={interface}", "--kill-on-bad-exit=1", *options]
    command += [sys.executable, "-u", "-P", "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


STEPS = """
    import json, os, signal, time
    import numpy as np, graphkit as gk
    from graphkit import config
    kv = gk.kvstore.create("dist_sync", timeout=5)
    print(json.dumps([kv.rank, kv.num_workers, config.num_threads(), sorted(os.sched_getaffinity(0))]), flush=True)
    for step in range(20):
        assert kv.pushpull("a", np.ones(3)).tolist() == [2, 2, 2]
        if kv.rank == 1 and step == 10:
            {act}
    print("done", flush=True)
"""


def test_tasks_are_the_workers_of_one_job_on_the_cores_that_they_were_given(interface):
    done = srun(interface, STEPS.format(act="pass"), "--cpus-per-task=1")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    (rank, workers, threads, first), (other, as_many, more, second) = sorted(rows)
    assert (rank, other, workers, as_many, threads, more) == (0, 1, 2, 2, 1, 1)
    assert len(first) == len(second) == 1
    assert first != second
    assert done.stdout.count("done") == 2


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("raise ZeroDivisionError('no')", "rank 1: ZeroDivisionError: no; this ends the job"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Killed"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", r"no heartbeat for \d+ s"),
    ],
)
def test_a_task_that_fails_ends_the_job(interface, act, message):
    done = srun(interface, STEPS.format(act=act))
    assert done.returncode != 0
    assert re.search(message, done.stderr)
    assert "done" not in done.stdout


def test_a_task_that_does_not_start_mpi_ends_the_job(interface):
    code = """
        import os, time
        from graphkit.dist import kvstore
        if os.environ["SLURM_PROCID"] == "1":
            time.sleep(1000)
        kvstore.create("dist_sync", timeout=11)
    """
    done = srun(interface, code)
    assert done.returncode != 0
    assert re.search("rank 0 of 2 on .* not all processes of the job have started MPI within 11 s", done.stderr)


def test_tasks_without_mpi_do_not_train_each_alone(interface):
    done = srun("none", "import graphkit as gk; gk.kvstore.create('dist_sync'); print('goes on')")
    assert done.returncode != 0
    assert "started 2 processes, but MPI reports that each is alone" in done.stderr
    assert "goes on" not in done.stdout


def test_processes_in_one_task(interface, tmp_path):
    import graphkit as gk

    x = gk.input("x", ["N", 1, 8, 8])
    gk.Model(gk.nn.linear(gk.flatten(x), 10), name="net").save(tmp_path / "net.json")
    train = [sys.executable, "-P", "-m", "graphkit", "train", str(tmp_path / "net.json"), "--data", "digits"]
    train += ["--epochs", "1", "--processes", "2", "--kvstore", "dist_sync", "-o", str(tmp_path / "run")]
    done = subprocess.run(["srun", "-n", "1", "--cpus-per-task=2", *train], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "(2 processes)" in done.stdout
    done = subprocess.run(["srun", "-n", "2", "--mpi=none", *train], capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert "each of the 2 tasks of srun would start" in done.stderr
