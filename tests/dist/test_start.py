"""Start of jobs: facts from launchers, and no process waits forever for one that does not start."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
from clocks import wait_until
from combinations import in_one_item
from jobs import FAILED, finish, start

import graphkit as gk
from graphkit import config
from graphkit.cli._processes import Job
from graphkit.dist.job import mpi
from graphkit.dist.job import start as start_module
from graphkit.dist.job.start import check_alone, check_launcher, check_tasks, checked_timeout, deadline
from graphkit.errors import RuntimeFailure, UsageError

VARIABLES = (
    "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID",
)  # fmt: skip

MISSING = "not all processes of the job have started MPI within"


@pytest.fixture
def launched(monkeypatch):
    """`launched(NAME=value, ...)`: the environment of a process that a launcher has started."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def give(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return give


# --- what launchers say -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "4"}, True),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        ({"PMI_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "4"}, True),
        ({"PMI_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, False),
        ({"PMI_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1"}, False),
        ({"PMI_SIZE": "4", "SLURM_STEP_TASKS_PER_NODE": "1"}, False),  # one task, with a launcher in it
    ],
)
def test_whether_all_are_on_one_host(launched, variables, expected):
    launched(**variables)
    assert mpi._on_one_host() == expected


@pytest.mark.parametrize("name", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_several_processes_that_are_each_alone_are_an_error(launched, name):
    check_launcher(1)
    launched(**{name: "1"})
    check_launcher(1)
    launched(**{name: "3"})
    check_launcher(3)
    with pytest.raises(UsageError, match="started 3 processes, but MPI reports that each is alone"):
        check_launcher(1)


TORCH = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}
TORCHRUN = {**TORCH, "TORCHELASTIC_RUN_ID": "none"}


def test_processes_of_pytorchs_launchers_are_told_how_to_start(launched):
    launched(**TORCH)
    check_launcher(2)
    with pytest.raises(UsageError, match=r"started 3 processes \(WORLD_SIZE=3\).*mpiexec -n N.*unset WORLD_SIZE"):
        check_launcher(1)
    check_alone()  # the variables may be there for other uses
    check_tasks(2)
    launched(**TORCHRUN)
    with pytest.raises(UsageError, match=r"torchrun has started 3 processes.*dist_sync.*unset TORCHELASTIC_RUN_ID"):
        check_alone()
    with pytest.raises(UsageError, match="each of the 3 processes of torchrun would start --processes 2"):
        check_tasks(2)


@pytest.mark.parametrize(("rank", "told"), [("0", True), ("1", False)])
def test_rank_0_says_that_processes_of_mpiexec_train_alone(launched, capsys, rank, told):
    launched(PMI_SIZE="2", PMI_RANK=rank)
    options = dict.fromkeys(Job._fields) | {"processes": 1, "kvstore": "local", "overlap": "chained"}
    assert Job.of(options).store().num_workers == 1
    assert ("has started 2 processes, and with --kvstore local each of them trains" in capsys.readouterr().err) == told


@pytest.mark.parametrize("changed", [{"WORLD_SIZE": "1"}, {"WORLD_SIZE": "many"}, {"RANK": ""}])
def test_one_process_of_torchrun_is_alone(launched, changed):
    launched(**TORCHRUN | changed)
    check_launcher(1)
    check_alone()
    check_tasks(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "with --kvstore local, each of them would train alone"),
        (["--kvstore", "dist_sync"], "MPI reports that each is alone"),
        pytest.param(["--kvstore", "dist_sync", "--processes", "2"], "each of the 3 processes", marks=pytest.mark.full),
    ],
)
def test_training_under_torchrun_is_an_error_of_each_process(tmp_path, options, message):
    x = gk.input("x", ["N", 1, 8, 8])
    gk.Model(gk.nn.linear(gk.flatten(x), 10), name="net").save(tmp_path / "net.json")
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-P", "-m", "graphkit", "train", "net.json", "--data", "digits", "-o", "run", *options]
    where = {"cwd": tmp_path, "env": environment | TORCHRUN}
    done = subprocess.run(command, **where, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == UsageError.exit_code
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tasks", ["2", pytest.param("1", marks=pytest.mark.full)])
def test_a_job_whose_launcher_is_of_another_mpi_does_not_train_several_times(tasks):
    code = "import graphkit as gk; gk.kvstore.create('dist_sync'); print('goes on')"
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = _python(code, environment | {"SLURM_STEP_NUM_TASKS": tasks})
    if tasks == "1":
        assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
        return
    assert done.returncode != 0
    assert "UsageError" in done.stderr
    assert "each is alone" in done.stderr
    assert "goes on" not in done.stdout


@in_one_item()
@pytest.mark.parametrize("seconds", [0, -1.0, math.nan])
def test_a_timeout_is_above_zero(seconds):
    with pytest.raises(UsageError, match="above 0"):
        gk.kvstore.create("dist_sync", timeout=seconds)
    assert checked_timeout(None) == config.RANK_TIMEOUT.get()
    assert checked_timeout(math.inf) == math.inf


# --- the deadline, in one process ---------------------------------------------------------------------


def _python(code, environment=None):
    # `hold` keeps the interpreter lock, so no other Python thread can run during the deadline.
    before = """
        import ctypes, os, sys, time
        from graphkit.dist.job import start
        def hold(seconds):
            ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    """
    command = [sys.executable, "-P", "-c", textwrap.dedent(before) + textwrap.dedent(code)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("place", "variables", "who"),
    [
        ((3, 4), {}, "rank 3 of 4"),
        (None, {"PMI_RANK": "1", "PMI_SIZE": "2"}, "rank 1 of 2"),
        (None, {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "rank 0 of 2"),
        # Open MPI's launcher inside of a task of Slurm's PMI.
        (None, {"PMI_SIZE": "1", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "rank 1 of 2"),
        (None, {"PMIX_RANK": "2", "SLURM_STEP_NUM_TASKS": "3"}, "rank 2 of 3"),
        (None, {"PMIX_RANK": "2"}, "rank 2"),
        (None, {}, "a process"),
    ],
)
def test_last_words_say_who_waits(launched, monkeypatch, place, variables, who):
    """The native clock gets them, and the status, before the wait begins."""
    launched(**variables)
    made = []

    class Deadline:
        def __init__(self, *given):
            made.append(given)

        def cancel(self):
            made.append("cancelled")

    monkeypatch.setattr(start_module, "load_native", lambda: types.SimpleNamespace(Deadline=Deadline))
    with deadline(0.2, place):
        ((seconds, _, words, status),) = made
    assert made[1:] == ["cancelled"]
    assert (seconds, status) == (0.2, RuntimeFailure.exit_code)
    assert re.fullmatch(rf"graphkit: {who} on \S+ \(process \d+\): {MISSING} 0.2 s .*\n", words)


def test_who_waits_too_long_says_so_and_ends():
    done = _python("""
        print("what was said before")
        with start.deadline(0.2, (3, 4)):
            hold(50)
    """)
    assert done.returncode == RuntimeFailure.exit_code
    assert re.fullmatch(rf"graphkit: rank 3 of 4 on \S+ \(process \d+\): {MISSING} 0.2 s .*\n", done.stderr)
    assert done.stdout == "what was said before\n"


@pytest.mark.full
def test_the_clock_stops_when_all_have_come():
    done = _python(
        """
        with start.deadline(2, (0, 2)):
            pass
        try:
            with start.deadline(2, (0, 2)):
                raise ValueError("MPI cannot start")
        except ValueError:
            hold(2.5)
        for never in (1e300, float("inf")):
            with start.deadline(never, (0, 2)):
                hold(0.1)
        with start.deadline(0.1, (0, 1)):  # it is alone: nobody is missing
            hold(0.5)
        print("done")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.full
def test_a_forked_child_has_no_deadline():
    done = _python(
        """
        with start.deadline(1, (0, 2)):
            child = os.fork()
            if child != 0:
                assert os.waitpid(child, 0)[1] == 0
        if child == 0:
            hold(2)
            sys.exit(0)
        """
    )
    # The parent waits for its child, and is ended as it has waited for too long.
    assert done.returncode == RuntimeFailure.exit_code
    assert done.stderr.count(MISSING) == 1


def test_a_number_that_cannot_be_told_is_none(launched):
    launched(PMI_RANK="", PMI_SIZE="many")
    with deadline(60):
        assert not mpi._on_one_host()


# --- jobs ---------------------------------------------------------------------------------------------

JOB = """
    import os, signal, sys, time
    rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
    from graphkit.dist import kvstore
    from graphkit.dist.job import joining
    joining.LEAST_TIMEOUT = 3
    if rank == 1:
        {what}
    print("waits", os.getpid(), flush=True)
    kvstore.create("dist_sync", timeout={timeout})
    print("started", flush=True)
"""


def _job(what, timeout=3, processes=2):
    return start(processes, textwrap.dedent(JOB).format(what=what, timeout=timeout), before="")


def _launcher_ends_it():
    """Whether the launcher ends a job if a process fails, as Open MPI's does."""
    return mpi.library().startswith("Open MPI")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("time.sleep(1000)", marks=pytest.mark.full),
        pytest.param("os._exit(0)", marks=pytest.mark.full),
        pytest.param("os.kill(os.getpid(), signal.SIGSTOP)", marks=pytest.mark.full),
    ],
)
def test_a_process_that_does_not_start_ends_the_job(what):
    status, out, errors = finish(_job(what))
    assert status in FAILED
    assert re.search(rf"graphkit: rank 0 of 2 on \S+ \(process \d+\): {MISSING} 3 s", errors), errors
    assert "started" not in out


@pytest.mark.full
@pytest.mark.parametrize("what", ["os._exit(3)", "raise ValueError('no data')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_process_that_fails_before_it_starts_ends_the_job(what):
    status, out, errors = finish(_job(what))
    assert status != 0
    assert "started" not in out
    # MPICH's launcher sees a signal as well.
    assert MISSING in errors or "SIGKILL" in what or _launcher_ends_it()
    if "ValueError" in what:
        assert "no data" in errors


@pytest.mark.full
def test_all_who_wait_say_so():
    status, _, errors = finish(_job("time.sleep(1000)", processes=3))
    assert status != 0
    assert {int(rank) for rank in re.findall(rf"rank (\d) of 3 .*{MISSING}", errors)} == {0, 2}


def _catches(process, number):
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)


@pytest.mark.full
def test_ctrl_c_ends_a_process_that_waits_for_others_to_start():
    job = _job("time.sleep(1000)", timeout=1000)
    try:
        process = int(re.fullmatch(r"waits (\d+)\n", job.stdout.readline())[1])
        # Until MPI starts, Python sees to it.
        wait_until(lambda: not _catches(process, signal.SIGINT), "MPI starts")
        os.kill(process, signal.SIGINT)
        status, out, errors = finish(job)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert status != 0
    assert "started" not in out
    assert MISSING not in errors


@pytest.mark.full
def test_a_script_that_has_started_mpi_itself_does_not_wait_for_ever_either():
    status, _, errors = finish(
        start(
            2,
            """
            import time
            from mpi4py import MPI
            from graphkit.dist import kvstore
            from graphkit.dist.job import joining
            joining.LEAST_TIMEOUT = 3
            if MPI.COMM_WORLD.rank == 1:
                time.sleep(1000)
            kvstore.create("dist_sync", timeout=3)
            """,
            before="",
        ),
        300,
    )
    assert status in FAILED
    assert re.search(rf"rank 0 of 2 .*{MISSING} 3 s", errors), errors


@pytest.mark.full
def test_without_the_native_extension_a_traceback_says_where_it_waits():
    status, _, errors = finish(
        start(
            2,
            """
            import os, time
            from graphkit.dist import kvstore
            from graphkit.dist.job import joining, start
            joining.LEAST_TIMEOUT = 3
            start.load_native = lambda: None
            if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
                time.sleep(1000)
            kvstore.create("dist_sync", timeout=3)
            """,
            before="",
        ),
        300,
    )
    assert status != 0
    assert "Timeout (0:00:03)!" in errors
    assert "mpi.py" in errors


@pytest.mark.full
@pytest.mark.long
def test_processes_that_graphkit_starts_itself(tmp_path):
    """One of them is stopped before it makes its store, by a module that Python reads when it starts."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "if '1' in (os.environ.get('PMI_RANK'), os.environ.get('OMPI_COMM_WORLD_RANK')):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    x = gk.input("x", ["N", 1, 8, 8])
    gk.Model(gk.nn.linear(gk.flatten(x), 10), name="net").save(tmp_path / "net.json")
    command = [sys.executable, "-P", "-m", "graphkit", "train", str(tmp_path / "net.json"), "--data", "digits"]
    command += ["--processes", "2", "--kvstore", "dist_sync", "--rank-timeout", "3", "-o", str(tmp_path / "run")]
    command += ["--max-restarts", "1"]
    environment = dict(os.environ) | {"PYTHONPATH": str(tmp_path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    status, _, errors = finish(subprocess.Popen(command, env=environment, **pipes, text=True, start_new_session=True))
    assert status == RuntimeFailure.exit_code
    # Processes are given some time to start, however short the timeout is.
    assert re.search(rf"rank 0 of 2 .*{MISSING} 10 s", errors), errors
    assert "before its first checkpoint" in errors
