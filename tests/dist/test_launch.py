"""Start of processes, and the exit code for each status of a launcher."""

from __future__ import annotations

import os
import signal
import stat
import threading

import pytest

from graphkit import config
from graphkit.dist.job import launch, mpi
from graphkit.errors import RuntimeFailure, UsageError


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """`launcher(text)`: install an mpiexec that runs this shell script with the command line.

    The script's function `ended` reports the end of a number of ranks.
    """

    def make(text):
        path = tmp_path / "mpiexec"
        path.write_text(
            "#!/bin/sh\n"
            "ended() { for rank in $(seq 0 $(($1 - 1))); do printf 'ended\\t%s\\t1\\there\\n' $rank; done"
            f" > $GRAPHKIT_JOB_PIPE; }}\n{text}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setattr(launch, "find_mpiexec", lambda: str(path))

    return make


@pytest.mark.parametrize(
    ("status", "expected", "named"),
    [
        (0, 0, None),
        (1, 1, None),
        (2, 2, None),
        (5, 5, None),
        (130, 130, None),  # interrupted, and said so itself
        (143, 143, None),
        (9, 5, "SIGKILL"),  # as MPICH's says it
        (137, 5, "SIGKILL"),  # as Open MPI's does
        (11, 5, "SIGSEGV"),
        (139, 5, "SIGSEGV"),
        (7, 5, "SIGBUS, or several have failed with different statuses"),  # 2 and 5 in MPICH's
        (77, 77, None),
    ],
)
def test_what_a_status_means(launcher, capfd, status, expected, named):
    launcher(f"ended 2; exit {status}")
    assert launch.run_processes(2, []) == expected
    errors = capfd.readouterr().err
    assert (f"ended by {named}" in errors) if named else not errors


@pytest.mark.parametrize("status", [1, 15, 143])
def test_a_job_that_was_told_to_end_has(launcher, capfd, status):
    launcher(f'trap "exit {status}" TERM\nkill -TERM $PPID\nwhile true; do sleep 0.01; done')
    assert launch.run_processes(2, []) == 128 + signal.SIGTERM
    assert ("the job was terminated" in capfd.readouterr().err) is (status != 143)


@pytest.fixture
def handled():
    """`handled(number, handler)`: set the handler of a signal for the duration of a test."""
    before = {}

    def handle(number, handler):
        before[number] = signal.signal(number, handler)

    yield handle
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", ["HUP", "QUIT"])
@pytest.mark.parametrize("said", [0, 128])
def test_a_terminal_that_is_closed_ends_the_job(launcher, handled, name, said):
    number = signal.Signals[f"SIG{name}"]
    handled(number, signal.SIG_DFL)
    launcher(f'trap "exit {said + number}" {name}\nkill -{name} $PPID\nwhile true; do sleep 0.01; done')
    assert launch.run_processes(2, []) == 128 + number
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.full
def test_a_signal_that_another_thread_gets_ends_the_job(launcher, handled, monkeypatch, tmp_path):
    """The main thread, which waits for the job, is not interrupted."""
    handled(signal.SIGHUP, signal.SIG_DFL)
    launcher(f"""
        trap "exit 129" HUP
        while [ ! -e {tmp_path}/blocked ]; do sleep 0.01; done
        kill -HUP $PPID
        for look in $(seq 2000); do sleep 0.01; done
    """)
    attach, over = launch._Signals.attach, threading.Event()

    def attach_and_block(signals, job):
        attach(signals, job)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        (tmp_path / "blocked").touch()

    monkeypatch.setattr(launch._Signals, "attach", attach_and_block)
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        assert launch.run_processes(2, []) == 128 + signal.SIGHUP
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        over.set()
        other.join()


def test_a_job_that_is_to_outlive_its_terminal_does(launcher, handled):
    handled(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    launcher('trap "exit 129" HUP\nkill -HUP $PPID\nsleep 0.3; ended 2')
    assert launch.run_processes(2, []) == 0


def test_a_launcher_that_a_signal_ends(launcher):
    launcher("kill -TERM $$")
    assert launch.run_processes(2, []) == 128 + signal.SIGTERM


def test_what_processes_are_told(launcher, tmp_path, monkeypatch):
    """Cores are divided; Open MPI starts more processes than cores, and starts them for root."""
    monkeypatch.setenv(config.NUM_THREADS.name, "4")
    monkeypatch.setenv("OMPI_MCA_rmaps_base_oversubscribe", "mine")
    launcher(f"printf '%s\\n' \"$@\" > {tmp_path}/arguments; env > {tmp_path}/environment; ended $2")
    assert launch.run_processes(2, ["train", "a b"]) == 0
    told = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line)
    assert (tmp_path / "arguments").read_text().splitlines()[-2:] == ["train", "a b"]
    assert told[config.NUM_THREADS.name] == "4"  # as requested
    assert told[config.JOB_SIZE.name] == "2"
    assert told["OMPI_MCA_rmaps_base_oversubscribe"] == "mine"
    assert told["PRTE_MCA_rmaps_default_mapping_policy"] == ":oversubscribe"
    assert told["HYDRA_LAUNCHER"] == "fork"  # inside of Slurm's jobs, too, on this machine alone
    assert ("PRTE_ALLOW_RUN_AS_ROOT" in told) == (os.geteuid() == 0)
    monkeypatch.delenv(config.NUM_THREADS.name)
    assert launch.run_processes(1000, []) == 0
    told = dict(line.split("=", 1) for line in (tmp_path / "environment").read_text().splitlines() if "=" in line)
    assert told[config.NUM_THREADS.name] == told["OMP_NUM_THREADS"] == "1"
    assert (tmp_path / "arguments").read_text().splitlines()[:2] == ["-n", "1000"]


def test_what_was_started_here_starts_no_further_processes(monkeypatch):
    """This holds for known and unknown launchers."""
    for name in mpi._LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert not launch.is_started()
    monkeypatch.setenv(config.JOB_SIZE.name, "2")
    assert launch.is_started()
    monkeypatch.delenv(config.JOB_SIZE.name)
    monkeypatch.setenv("PMI_RANK", "0")
    assert launch.is_started()


def test_mpi_has_the_last_word_about_how_many_there_are():
    launch.check_size(2, 2)
    with pytest.raises(UsageError, match=r"--processes 2, but MPI reports 4 for this job$"):
        launch.check_size(2, 4)
    with pytest.raises(UsageError, match="another MPI library than mpi4py, so each process is alone"):
        launch.check_size(2, 1)


def test_several_tasks_of_slurm_do_not_each_start_processes(launcher, tmp_path, monkeypatch):
    launcher(f"touch {tmp_path}/started; ended 2")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "3")
    with pytest.raises(UsageError, match="each of the 3 tasks of srun would start --processes 2, without MPI"):
        launch.run_processes(2, [])
    assert not (tmp_path / "started").exists()
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert launch.run_processes(2, []) == 0
    assert (tmp_path / "started").exists()


def test_a_launcher_that_is_none_of_mpis(launcher):
    """It runs the command, twice; each process finds itself alone, and does not start others."""
    launcher('shift 2; "$@" && "$@"')
    arguments = ["train", "net.json", "--data", "digits", "--processes", "2", "--kvstore", "dist_sync"]
    assert launch.run_processes(2, arguments) == UsageError.exit_code


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("", "rank 0, rank 1"),
        ("ended 1", "rank 1"),
        ("printf 'ended\\t1\\t7\\tx\\nbegun\\t0\\t1\\tbox\\n' > $GRAPHKIT_JOB_PIPE", "rank 0 on box (process 1)"),
    ],
)
def test_status_0_without_the_ends_of_all_ranks_is_a_failure(launcher, capfd, said, named):
    launcher(said)
    assert launch.run_processes(2, []) == RuntimeFailure.exit_code
    message = f"the launcher's status is 0 (success), but these ranks did not finish: {named}\n"
    assert capfd.readouterr().err.endswith(message)


def test_a_lost_server_without_which_the_others_go_on_is_not_missed(launcher, capfd):
    launcher("ended 1; printf 'excused\\t1\\t7\\tx\\n' > $GRAPHKIT_JOB_PIPE")
    assert launch.run_processes(2, []) == 0
    assert not capfd.readouterr().err
