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
from graphkit.errors import MissingDependency, RuntimeFailure

_SIGNALS = frozenset(int(s) for s in signal.Signals)


def find_mpiexec() -> str:
    """The launcher beside this Python (a wheel's), else the first on PATH; raises MissingDependency."""
    local = Path(sys.executable).parent / "mpiexec"
    found = str(local) if local.exists() else shutil.which("mpiexec")
    if found is None:
        raise MissingDependency("no mpiexec found; install an MPI with: pip install 'graphkit[mpi]'")
    return found


def run_processes(processes: int, arguments: Sequence[str]) -> int:
    """Run `python -m graphkit ARGUMENTS` in `processes` ranks; return the job's exit status.

    The ranks share this machine's cores: each gets an equal part, at least one thread. Signals that would end this
    process go to the job instead, once: a terminal sends Ctrl-C to this process alone. A rank that a signal has ended
    is a runtime failure.
    """
    environment = dict(os.environ)
    environment.setdefault(config.NUM_THREADS.name, str(max(1, config.num_threads() // processes)))
    # Other libraries' threads, as those of numpy's products, would take the cores that another rank computes on.
    environment.setdefault("OMP_NUM_THREADS", environment[config.NUM_THREADS.name])
    # -P: a folder called graphkit where the user stands must not hide the installed package.
    command = [find_mpiexec(), "-n", str(processes), sys.executable, "-P", "-m", "graphkit", *arguments]
    # A group in the background must not read from the terminal.
    job = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, process_group=0)
    with _forwarded(job):
        status = job.wait()
    if status < 0:
        return 128 - status
    if status > RuntimeFailure.exit_code and status in _SIGNALS:
        # What launchers say of a process that a signal has ended.
        print(f"graphkit: a process of the job was ended by {signal.Signals(status).name}", file=sys.stderr)
        return RuntimeFailure.exit_code
    return status


@contextlib.contextmanager
def _forwarded(job: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: FrameType | None) -> None:
        job.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
