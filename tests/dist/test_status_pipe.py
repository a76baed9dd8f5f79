"""Jobs of a command that starts ranks: it names a rank that leaves without a word, and no rank outlives it."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from clocks import wait_until
from combinations import default_at
from jobs import STEPS, command_statuses, finish

from graphkit import config
from graphkit.dist.job import joining, launch, status_pipe
from graphkit.errors import RuntimeFailure

LAUNCH = "import sys; from graphkit.dist.job import launch; sys.exit(launch.run_processes(2, []))"


@pytest.fixture
def started(tmp_path):
    """`started(code)`: a command that runs `launch.run_processes` for two ranks that run STEPS and `code`."""

    def start(code):
        program, mpiexec = tmp_path / "program.py", tmp_path / "mpiexec"
        program.write_text(textwrap.dedent(STEPS) + textwrap.dedent(code))
        mpiexec.write_text(f"#!/bin/sh\nexec {launch.find_mpiexec()} $1 $2 {sys.executable} -u -P {program}\n")
        mpiexec.chmod(0o755)
        environment = {**os.environ, config.MPIEXEC.name: str(mpiexec), "TMPDIR": str(tmp_path)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [sys.executable, "-P", "-c", LAUNCH]
        jobs.append(subprocess.Popen(command, **pipes, text=True, start_new_session=True, env=environment))
        return jobs[-1]

    jobs = []
    yield start
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


# A rank continues only when all ranks have written their process ids, so no rank ends before its id is known.
TELL = """
    import os
    from pathlib import Path
    here = Path(__file__).parent
    steps(1)
    (here / f"new-{kv.rank}").write_text(str(os.getpid()))
    (here / f"new-{kv.rank}").rename(here / f"pid-{kv.rank}")
    while len(list(here.glob("pid-*"))) < 2:
        time.sleep(0.01)
"""


def pids(job, folder):
    """The process of each rank of a job whose program, in `folder`, begins with TELL."""
    files = [folder / f"pid-{rank}" for rank in range(2)]
    wait_until(lambda: all(map(Path.exists, files)) or job.poll() is not None, "both ranks run")
    assert all(map(Path.exists, files)), job.stderr.read()
    return [int(file.read_text()) for file in files]


@default_at(0)
@pytest.mark.parametrize(
    ("leaves", "status"),
    [
        ("os._exit(0)", 5),
        ("os.kill(os.getpid(), 9)", 5),
        pytest.param("os.kill(os.getpid(), 11)", 5, marks=pytest.mark.full),
        pytest.param("os._exit(3)", 5, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_rank_that_leaves_without_a_word_is_named(started, tmp_path, leaves, status, who):
    # On a busy machine, the launcher's SIGKILL may end the other rank first, and the signal is unknown until the
    # launcher has waited for the process.
    for _ in range(3):
        for file in tmp_path.glob("pid-*"):
            file.unlink()
        job = started(f"{TELL}\n    if kv.rank == {who}:\n        {leaves}\n    steps(10**9)")
        process = pids(job, tmp_path)[who]
        found, _, errors = finish(job)
        assert found == status
        if f"graphkit: rank {who} on " in errors:
            break
    assert re.search(rf"graphkit: rank {who} on \S+ \(process {process}\) left before its program had ended", errors)


def launcher_that_outlives(process):
    """A process that ends after another one, whose output it reads."""
    return subprocess.Popen(["sh", "-c", "cat; sleep 0.2"], stdin=process.stdout)


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (6, 15),
    reason="Linux tells how a process has ended since 6.15",
)
def test_a_rank_that_leaves_by_itself_comes_before_one_that_was_killed():
    words = "begun\t0\t%d\tbox\nbegun\t1\t%d\tbox\nstarted\t0\t%d\tbox\nstarted\t1\t%d\tbox\n"
    with (
        status_pipe.StatusPipe(2) as ranks,
        subprocess.Popen(["sleep", "600"]) as killed,
        subprocess.Popen(["sleep", "0.2"], stdout=subprocess.PIPE) as left,
    ):
        pipe = os.open(ranks.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, (words % ((killed.pid, left.pid) * 2)).encode())
        killed.kill()
        ranks.wait(launcher_that_outlives(left), 0.1)
        os.close(pipe)
        killed.wait(), left.wait()
        lost = ranks.first_lost()
    assert lost.startswith(f"rank 1 on box (process {left.pid}) left before its program had ended")


def test_a_rank_that_has_waited_for_another_to_start_is_not_called_killed():
    with (
        status_pipe.StatusPipe(3) as ranks,
        subprocess.Popen(["sleep", "0.1"], stdout=subprocess.PIPE) as first,
    ):
        pipe = os.open(ranks.path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(pipe, f"begun\t0\t{first.pid}\tbox\nbegun\t1\t{os.getpid()}\tbox\n".encode())
        ranks.wait(launcher_that_outlives(first), 0.1)
        os.close(pipe)
        lost = ranks.first_lost()
    assert lost == f"rank 0 on box (process {first.pid}) left before all ranks had started MPI; rank 2 has not started"


def test_a_folder_that_holds_no_pipe_is_named(monkeypatch, tmp_path):
    def refused(path):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(status_pipe.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "mkfifo", refused)
    with pytest.raises(RuntimeFailure, match=r"cannot create a named pipe .*: set TMPDIR"):
        status_pipe.StatusPipe(2).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_ends_well_is_no_failure_and_leaves_no_file(started, tmp_path):
    status, _, errors = finish(started("steps(2)"))
    assert (status, errors) == (0, "")
    assert not list(tmp_path.glob("graphkit-job-*"))


def test_a_rank_that_says_why_it_failed_is_not_named_twice(started):
    status, _, errors = finish(started("steps(1)\nif kv.rank == 1: raise gk.errors.InputError('bad')\nsteps(10**9)"))
    assert status in command_statuses(2)
    assert "left before" not in errors
    assert "graphkit: rank 1: bad; this ends the job" in errors


def test_a_rank_that_fails_while_mpi_starts_says_so(monkeypatch):
    said = []

    def refuse(servers, replicated):
        raise RuntimeFailure("no MPI")

    monkeypatch.setattr(status_pipe, "join", lambda: None)
    monkeypatch.setattr(status_pipe, "report", lambda word, rank: said.append((word, rank)))
    monkeypatch.setattr(joining, "launcher_rank", lambda: 3)
    monkeypatch.setattr(joining, "MpiCommunicator", refuse)
    with pytest.raises(RuntimeFailure, match="no MPI"):
        joining._create(0, 60.0, False)
    assert said == [(status_pipe.BEGUN, 3), (status_pipe.FAILED, 3)]


def test_a_command_without_standard_error_says_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with status_pipe.StatusPipe(2) as ranks:
        assert launch._exit_status(0, ranks) == RuntimeFailure.exit_code


def gone(process):
    """Whether a process has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.full)])
def test_ranks_end_when_the_command_that_has_started_them_is_killed(started, tmp_path, number):
    job = started(f"{TELL}\n    steps(10**9)")
    ranks = pids(job, tmp_path)
    os.kill(job.pid, number)
    _, _, errors = finish(job)
    end = time.monotonic() + 30
    while not all(map(gone, ranks)):
        assert time.monotonic() < end, f"ranks {ranks} go on"
        time.sleep(0.05)
    assert "the command that has started this job is gone; this ends the job" in errors
    assert not list(tmp_path.glob("graphkit-job-*"))
