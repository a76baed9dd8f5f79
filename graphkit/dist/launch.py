"""Start this program again as several MPI processes on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from graphkit import config
from graphkit.errors import MissingDependency


def find_mpiexec() -> str:
    """The launcher beside this Python (a wheel's), else the first on PATH; raises MissingDependency."""
    local = Path(sys.executable).parent / "mpiexec"
    found = str(local) if local.exists() else shutil.which("mpiexec")
    if found is None:
        raise MissingDependency("no mpiexec found; install an MPI with: pip install 'graphkit[mpi]'")
    return found


def run_processes(processes: int, arguments: Sequence[str]) -> int:
    """Run `python -m graphkit ARGUMENTS` in `processes` ranks; return the job's exit status.

    The ranks share this machine's cores: each gets an equal part, at least one thread.
    """
    environment = dict(os.environ)
    environment.setdefault(config.NUM_THREADS.name, str(max(1, config.num_threads() // processes)))
    # Spinning team threads of one rank would take the cores that another rank computes on.
    environment.setdefault("OMP_NUM_THREADS", environment[config.NUM_THREADS.name])
    environment.setdefault("GOMP_SPINCOUNT", "1000")
    # -P: a folder called graphkit where the user stands must not hide the installed package.
    command = [find_mpiexec(), "-n", str(processes), sys.executable, "-P", "-m", "graphkit", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode
