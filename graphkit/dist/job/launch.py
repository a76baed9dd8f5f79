"""Start this program as several MPI processes on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from graphkit import config
from graphkit.dist.job.mpi import launched_by_mpi
from graphkit.dist.job.start import check_tasks
from graphkit.dist.job.status_pipe import StatusPipe
from graphkit.dist.job.survival import launcher_options
from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure, UsageError

_SIGNALS = frozenset(int(s) for s in signal.Signals)
# Signals that end this process unless they are ignored (nohup) or handled.
_UNLESS_HANDLED = (signal.SIGHUP, signal.SIGQUIT)
# Exit codes of graphkit's own processes after an interruption or termination, which do not mean that a signal ended
# them.
_OWN_CODES = (130, 143)
# MPICH's launcher may combine the statuses of processes with a bitwise or: 2 | 5 is 7, and 2 | 9 (SIGKILL) is 11.
# These statuses may be combinations, or signals.
_COMBINED = (6, 7, 11, 13)
# Longest delay of Python's signal handlers while this process waits for the job, in seconds.
_PAUSE = 1.0
_ENDED_BY_LAUNCHER = 1

# Without these settings, Open MPI 4 and 5 refuse to start more processes than cores.
_MORE_THAN_CORES = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# Inside a Slurm job, MPICH's launcher would otherwise wait for this process's cores, and use other hosts.
_ON_THIS_MACHINE = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}
# Without these settings, Open MPI refuses to run for root.
_FOR_ROOT = tuple(f"{name}_ALLOW_RUN_AS_ROOT{more}" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM"))


def find_mpiexec() -> str:
    """Return the launcher: GRAPHKIT_MPIEXEC, one next to this Python, or the first on PATH."""
    local = Path(sys.executable).parent / "mpiexec"
    chosen = config.MPIEXEC.get() or (str(local) if local.exists() else "mpiexec")
    found = shutil.which(chosen)
    if found is None:
        why = f" ({config.MPIEXEC.name}={chosen})" if config.MPIEXEC.get() else ""
        raise MissingDependency(f"no mpiexec found{why}; install an MPI with: {how_to_install('mpi')}")
    return found


def is_started() -> bool:
    return config.JOB_SIZE.get() is not None or launched_by_mpi()


def launcher_sets_size() -> bool:
    """Whether an MPI launcher, not `run_processes`, has set the number of processes."""
    return config.JOB_SIZE.get() is None and launched_by_mpi()


def check_size(wanted: int, size: int) -> None:
    if size == wanted:
        return
    why = ": the launcher belongs to another MPI library than mpi4py, so each process is alone" if size == 1 else ""
    raise UsageError(f"--processes {wanted}, but MPI reports {size} for this job{why}")


def run_processes(processes: int, arguments: Sequence[str], survives: bool = False) -> int:
    """Run `python -m graphkit ARGUMENTS` on several ranks, and return the exit status of the job.

    The ranks share the cores of this machine. Signals that would end this process are forwarded to the job, which has
    its own process group. If a signal ends a rank, the status is that of a RuntimeFailure.

    Args:
        survives: Do not end the job when a process is lost.

    Raises:
        UsageError: Slurm or torchrun has started this program several times; or `survives` is set, but the launcher is
            not known to support it.
    """
    check_tasks(processes)
    environment = dict(os.environ)
    environment.setdefault(config.NUM_THREADS.name, str(max(1, config.num_threads() // processes)))
    environment[config.JOB_SIZE.name] = str(processes)
    # Open MPI gives each process a terminal, even if this process has none.
    if sys.stdout is None or not sys.stdout.isatty():
        environment["TERM"] = "dumb"
    further = _MORE_THAN_CORES | _ON_THIS_MACHINE | (dict.fromkeys(_FOR_ROOT, "1") if os.geteuid() == 0 else {})
    for name, value in further.items():
        environment.setdefault(name, value)
    # Threads of other libraries, such as numpy's, would compete with other ranks.
    environment.setdefault("OMP_NUM_THREADS", environment[config.NUM_THREADS.name])
    # -P: a folder called graphkit in the current folder must not hide the installed package.
    mpiexec = find_mpiexec()
    options = launcher_options(mpiexec) if survives else []
    command = [mpiexec, *options, "-n", str(processes), sys.executable, "-P", "-m", "graphkit", *arguments]
    with StatusPipe(processes) as pipe, _forwarding() as signals:
        environment[config.JOB_PIPE.name] = pipe.path
        # A background process group must not read from the terminal. The launcher must not reuse the descriptor of a
        # closed stream.
        out, err = (None if stream is not None else subprocess.DEVNULL for stream in (sys.stdout, sys.stderr))
        nothing = subprocess.DEVNULL
        job = subprocess.Popen(command, env=environment, stdin=nothing, stdout=out, stderr=err, process_group=0)
        signals.attach(job)
        status = pipe.wait(job, _PAUSE)
    sent = signals.sent
    if status < 0:
        return 128 - status
    # The forwarded signal may end a process without running a handler: a server, or a process inside MPI. The status
    # then contains the number of the signal.
    if sent and (status in (_ENDED_BY_LAUNCHER, sent[0]) or _signal_of(status) == sent[0]):
        what = "interrupted" if sent[0] == signal.SIGINT else "terminated"
        _say(f"the job was {what}")
        return 128 + sent[0]
    return _exit_status(status, pipe)


def _exit_status(status: int, pipe: StatusPipe) -> int:
    """Return the exit status of a job. Print why it failed, unless a rank has."""
    number, first = _signal_of(status), pipe.first_lost()
    if first is not None:
        shown = str(status) if number is None else f"{status} ({number.name})"
        _say(f"{first}; the launcher's status is {shown}")
        return RuntimeFailure.exit_code
    if number is not None:
        several = ", or several have failed with different statuses" if status in _COMBINED else ""
        _say(f"a process of the job was ended by {number.name}{several}")
    elif status == 0 and (missing := pipe.not_ended()):
        _say(f"the launcher's status is 0 (success), but these ranks did not finish: {', '.join(missing)}")
    else:
        return status
    return RuntimeFailure.exit_code


def _say(message: str) -> None:
    if sys.stderr is not None:
        print(f"graphkit: {message}", file=sys.stderr)


def _signal_of(status: int) -> signal.Signals | None:
    """Return the signal that ended a process: launchers report its number, or 128 plus its number."""
    if status <= RuntimeFailure.exit_code or status in _OWN_CODES:
        return None
    number = status - 128 if status > 128 else status
    return signal.Signals(number) if number in _SIGNALS else None


class _Signals:
    """Forwards signals to a job, in order. Signals that arrive before the job starts are forwarded at its start."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self._early: list[int] = []
        self._job: subprocess.Popen[bytes] | None = None

    def forward(self, number: int, frame: FrameType | None) -> None:
        self.sent.append(number)
        if self._job is None:
            self._early.append(number)
        else:
            self._job.send_signal(number)

    def attach(self, job: subprocess.Popen[bytes]) -> None:
        self._job = job
        while self._early:
            job.send_signal(self._early.pop(0))


@contextlib.contextmanager
def _forwarding() -> Iterator[_Signals]:
    """Context in which signals that would end this process are forwarded instead."""
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    ending = [signal.SIGINT, signal.SIGTERM]
    ending += [number for number in _UNLESS_HANDLED if signal.getsignal(number) == signal.SIG_DFL]
    before = {number: signal.signal(number, signals.forward) for number in ending}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
