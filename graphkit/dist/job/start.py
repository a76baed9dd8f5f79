"""How the processes of a job start: together, or with an error in those that wait in vain for the others.

What a launcher says of the job before MPI has started is in the environment.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import numbers
import os
import socket
import sys
from collections.abc import Iterator, Sequence

from graphkit import config
from graphkit.errors import RuntimeFailure, UsageError
from graphkit.executor.devices.loading import load_native

# A process's rank, and the processes of its job: of Open MPI's launcher, of MPICH's and Slurm's PMI, of PMIx and Slurm.
# Where launchers run inside of a task of Slurm, the inner one's come first.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_TASKS = "SLURM_STEP_NUM_TASKS"
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", _TASKS)
# What launchers of PyTorch's tell their processes, who find each other without MPI; and what torchrun alone tells them.
_TORCH_RANK, _TORCH_SIZE, _TORCHRUN = "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"
_HOW = "start them with --processes N on one machine, or with mpiexec -n N or srun"

# Seconds that processes are given to start, however short the timeout is: some load Python's modules later than others.
LEAST = 10.0
# Seconds between a process's last words and its end, which is that of all: others may have the same to say.
_GRACE = 1.0


def checked_timeout(seconds: float | None) -> float:
    """The seconds without a sign after which a process is given up; GRAPHKIT_RANK_TIMEOUT where None is given.

    Raises UsageError for what is not above 0.
    """
    if seconds is None:
        return config.RANK_TIMEOUT.get()
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not seconds > 0:
        raise UsageError(f"timeout must be a number of seconds above 0, not {seconds!r}")
    return float(seconds)


def check_company(size: int) -> None:
    """Raise UsageError where the launcher says that there are several processes, and MPI that this one is alone.

    Each would do the same work, and write the same files.
    """
    told = _told(_SIZES)
    if size == 1 and told is not None and told > 1:
        raise UsageError(
            f"the launcher has started {told} processes, but MPI reports that each is alone: the launcher belongs to "
            "another MPI library than mpi4py; with srun, choose another --mpi (srun --mpi=list)"
        )
    torch = _told_by_torch()
    if size == 1 and torch > 1:
        raise UsageError(
            f"a PyTorch launcher has started {torch} processes ({_TORCH_SIZE}={torch}), but MPI reports that each is "
            f"alone: processes of graphkit find each other through MPI; {_HOW}. If this process should run alone, "
            "unset "
            f"{_TORCH_SIZE}"
        )


def check_tasks(processes: int) -> None:
    """Raise UsageError where this is one of several tasks of Slurm or torchrun, each of which would start so many."""
    tasks = _told((_TASKS,))
    if tasks is not None and tasks > 1:
        raise UsageError(
            f"each of the {tasks} tasks of srun would start --processes {processes}, without MPI: let srun start the "
            f"processes (srun --mpi=..., see srun --mpi=list), or one task; for a job in each task, unset {_TASKS}"
        )
    if (torch := _told_by_torchrun()) > 1:
        raise UsageError(
            f"each of the {torch} processes of torchrun would start --processes {processes}: start the command "
            f"without torchrun; for a job in each process, unset {_TORCHRUN}"
        )


def told_rank() -> int | None:
    """This process's rank by the launcher's word, before MPI has started; None where it does not say so."""
    return _told(_RANKS)


def check_alone() -> None:
    """Raise UsageError where torchrun has started this program several times and each would train by itself.

    Other launchers of PyTorch's set no variable that tells them from an environment that has other uses.
    """
    if (torch := _told_by_torchrun()) > 1:
        raise UsageError(
            f"torchrun has started {torch} processes, and with --kvstore local, each of them would train alone: use "
            f"--kvstore dist_sync, and {_HOW}. For a training in each process, unset {_TORCHRUN}"
        )


@contextlib.contextmanager
def deadline(seconds: float, place: tuple[int, int] | None = None, done: str = "started MPI") -> Iterator[None]:
    """End this process with RuntimeFailure's exit code when what lies inside takes longer: other processes are missing.

    place: its rank and the number of processes, where MPI has started already; else the launcher's word is taken.
    done: what those that are missing have not. MPI's calls hold the interpreter, so that a native thread looks at the
    clock. Where the native extension is not built, Python's faulthandler does: its message is a traceback, and the
    status 1.
    """
    rank, size = place or (_told(_RANKS), _told(_SIZES))
    if size == 1 or math.isinf(seconds):
        yield
        return
    native = load_native()
    if native is None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
        return
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()  # it would be lost
    end = native.Deadline(seconds, _GRACE, _last_words(rank, size, seconds, done), RuntimeFailure.exit_code)
    try:
        yield
    finally:
        end.cancel()


def _last_words(rank: int | None, size: int | None, seconds: float, done: str) -> str:
    who = "a process" if rank is None else f"rank {rank}" + (f" of {size}" if size is not None else "")
    return (
        f"graphkit: {who} on {socket.gethostname()} (process {os.getpid()}): not all processes of the job have {done} "
        f"within {seconds:g} s ({config.RANK_TIMEOUT.name}, at least {LEAST:g}); ranks without this message are "
        "missing; "
        "this ends the job\n"
    )


def _told(variables: Sequence[str]) -> int | None:
    """The number that the first of these environment variables has; None where there is none."""
    texts = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _told_by_torch() -> int:
    """How many processes a launcher of PyTorch's has started, of which this is one; 0 without one."""
    told = _told((_TORCH_SIZE,)) if _told((_TORCH_RANK,)) is not None else None
    return told or 0


def _told_by_torchrun() -> int:
    """The same where that launcher is torchrun."""
    return _told_by_torch() if _TORCHRUN in os.environ else 0
