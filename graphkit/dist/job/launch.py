"""Start this program again as several MPI processes on this machine."""

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
from graphkit.dist.job.roll import Roll
from graphkit.dist.job.start import check_tasks
from graphkit.dist.job.survival import launcher_options
from graphkit.distribution import how_to_install
from graphkit.errors import MissingDependency, RuntimeFailure, UsageError

_SIGNALS = frozenset(int(s) for s in signal.Signals)
# They end this process, unless whoever started it wants them passed over (nohup) or the program has uses of its own.
_UNLESS_TAKEN = (signal.SIGHUP, signal.SIGQUIT)
# What processes that were interrupted or terminated leave with themselves.
_OWN = (130, 143)
# What MPICH's launcher leaves with may be all statuses of its processes in one number, bit by bit: 2 and 5 are 7.
_COMBINED = (6, 7, 11, 13)
# Seconds between two moments at which handlers of signals run while the job runs, at most.
_PAUSE = 1.0
# What Open MPI's launcher leaves with that was told to end.
_ENDED_BY_LAUNCHER = 1

# Open MPI, of the fourth and the fifth generation, starts no more processes than cores, and none for root, unless it is
# told to.
_MORE_THAN_CORES = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
# Inside of a job of Slurm, MPICH's launcher would wait for cores that this process has, and start processes on other
# hosts, unless it is told to start them itself.
_ON_THIS_MACHINE = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}
_FOR_ROOT = tuple(f"{name}_ALLOW_RUN_AS_ROOT{more}" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM"))


def find_mpiexec() -> str:
    """The launcher: GRAPHKIT_MPIEXEC, the one beside this Python (a wheel's), or the first on PATH.

    Raises MissingDependency where there is none.
    """
    local = Path(sys.executable).parent / "mpiexec"
    chosen = config.MPIEXEC.get() or (str(local) if local.exists() else "mpiexec")
    found = shutil.which(chosen)
    if found is None:
        why = f" ({config.MPIEXEC.name}={chosen})" if config.MPIEXEC.get() else ""
        raise MissingDependency(f"no mpiexec found{why}; install an MPI with: {how_to_install('mpi')}")
    return found


def is_started() -> bool:
    """Whether this process is one that `run_processes`, or an MPI launcher that is known, has started."""
    return config.JOB_SIZE.get() is not None or launched_by_mpi()


def has_given_size() -> bool:
    """Whether an MPI launcher decides how many processes there are, and not `run_processes`."""
    return config.JOB_SIZE.get() is None and launched_by_mpi()


def check_size(wanted: int, size: int) -> None:
    """Raise UsageError where MPI says that a job has other than the `wanted` number of processes."""
    if size == wanted:
        return
    why = ": the launcher belongs to another MPI library than mpi4py, so each process is alone" if size == 1 else ""
    raise UsageError(f"--processes {wanted}, but MPI reports {size} for this job{why}")


def run_processes(processes: int, arguments: Sequence[str], survives: bool = False) -> int:
    """Run `python -m graphkit ARGUMENTS` in `processes` ranks; return the job's exit status.

    survives: the loss of a process does not end the others by itself; UsageError where the launcher's way to that is
    not known.

    The ranks share this machine's cores: each gets an equal part, at least one thread. Signals that would end this
    process go to the job instead, once: a terminal sends Ctrl-C to this process alone. A rank that a signal has ended
    is a runtime failure. Raises UsageError where Slurm has started this program several times already.
    """
    check_tasks(processes)
    environment = dict(os.environ)
    environment.setdefault(config.NUM_THREADS.name, str(max(1, config.num_threads() // processes)))
    environment[config.JOB_SIZE.name] = str(processes)
    if sys.stdout is None or not sys.stdout.isatty():  # Open MPI gives its processes a terminal of their own
        environment["TERM"] = "dumb"
    further = _MORE_THAN_CORES | _ON_THIS_MACHINE | (dict.fromkeys(_FOR_ROOT, "1") if os.geteuid() == 0 else {})
    for name, value in further.items():
        environment.setdefault(name, value)
    # Other libraries' threads, as those of numpy's products, would take the cores that another rank computes on.
    environment.setdefault("OMP_NUM_THREADS", environment[config.NUM_THREADS.name])
    # -P: a folder called graphkit where the user stands must not hide the installed package.
    mpiexec = find_mpiexec()
    options = launcher_options(mpiexec) if survives else []
    command = [mpiexec, *options, "-n", str(processes), sys.executable, "-P", "-m", "graphkit", *arguments]
    with Roll(processes) as roll, _forwarding() as signals:
        environment[config.JOB_PIPE.name] = roll.path
        # A group in the background must not read from the terminal.
        # A standard stream that is closed must not become the number of another file in the launcher.
        out, err = (None if stream is not None else subprocess.DEVNULL for stream in (sys.stdout, sys.stderr))
        nothing = subprocess.DEVNULL
        job = subprocess.Popen(command, env=environment, stdin=nothing, stdout=out, stderr=err, process_group=0)
        signals.go_to(job)
        status = roll.wait(job, _PAUSE)
    sent = signals.sent
    if status < 0:
        return 128 - status
    # A process that was in MPI's hands, or a server, may have left by the signal itself.
    if sent and (status in (_ENDED_BY_LAUNCHER, sent[0]) or _signal_of(status) == sent[0]):
        what = "interrupted" if sent[0] == signal.SIGINT else "terminated"
        _say(f"the job was {what}")  # the words of its processes may be lost
        return 128 + sent[0]
    return _judged(status, roll)


def _judged(status: int, roll: Roll) -> int:
    """The exit status of a job whose launcher has left with this one; says what the ranks have not said themselves."""
    number, first = _signal_of(status), roll.first_lost()
    if first is not None:
        shown = str(status) if number is None else f"{status} ({number.name})"
        _say(f"{first}; the launcher's status is {shown}")
        return RuntimeFailure.exit_code
    if number is not None:
        several = ", or several have failed with different statuses" if status in _COMBINED else ""
        _say(f"a process of the job was ended by {number.name}{several}")
    elif status == 0 and (missing := roll.not_ended()):
        _say(f"the launcher's status is 0, but the program of these ranks has not ended: {', '.join(missing)}")
    else:
        return status
    return RuntimeFailure.exit_code


def _say(message: str) -> None:
    """On standard error, if there is one: it may have been closed before the start."""
    if sys.stderr is not None:
        print(f"graphkit: {message}", file=sys.stderr)


def _signal_of(status: int) -> signal.Signals | None:
    """The signal that has ended a process, as launchers say so: by its number, or by 128 more."""
    if status <= RuntimeFailure.exit_code or status in _OWN:
        return None
    number = status - 128 if status > 128 else status
    return signal.Signals(number) if number in _SIGNALS else None


class _Signals:
    """Those that this process has got, and passes on to a job in their order, also what came before it has started."""

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

    def go_to(self, job: subprocess.Popen[bytes]) -> None:
        self._job = job
        while self._early:
            job.send_signal(self._early.pop(0))


@contextlib.contextmanager
def _forwarding() -> Iterator[_Signals]:
    """Signals that would end this process are passed on instead."""
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    ending = [signal.SIGINT, signal.SIGTERM]
    ending += [number for number in _UNLESS_TAKEN if signal.getsignal(number) == signal.SIG_DFL]
    before = {number: signal.signal(number, signals.forward) for number in ending}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
