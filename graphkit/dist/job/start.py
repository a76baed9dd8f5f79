"""The start of a job's processes, from environment variables of the launcher."""

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

# Variables with the rank of a process (Open MPI, MPICH and Slurm), and with the number of processes. The first one that
# is set counts: a launcher inside a Slurm task comes before Slurm.
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_TASKS = "SLURM_STEP_NUM_TASKS"
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", _TASKS)
# Variables of PyTorch launchers, which do not use MPI; the last one is only set by torchrun.
_TORCH_RANK, _TORCH_SIZE, _TORCHRUN = "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"
_HOW = "start them with --processes N on one machine, or with mpiexec -n N or srun"

# Seconds that processes may take to start, whatever the timeout: imports may take long.
LEAST_TIMEOUT = 10.0
# Seconds between an error message and the end of the job: others can print theirs.
_GRACE = 1.0


def checked_timeout(seconds: float | None) -> float:
    """Return the seconds without a heartbeat after which a process counts as lost (default: GRAPHKIT_RANK_TIMEOUT).

    Raises UsageError unless it is a number above 0.
    """
    if seconds is None:
        return config.RANK_TIMEOUT.get()
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not seconds > 0:
        raise UsageError(f"timeout must be a number of seconds above 0, not {seconds!r}")
    return float(seconds)


def check_launcher(size: int) -> None:
    """Raise UsageError if the launcher has started several processes, but MPI reports that each is alone.

    Each process would do the same work and write the same files.
    """
    processes = _first_number(_SIZES)
    if size == 1 and processes is not None and processes > 1:
        raise UsageError(
            f"the launcher has started {processes} processes, but MPI reports that each is alone: the launcher belongs "
            "to another MPI library than mpi4py; with srun, choose another --mpi (srun --mpi=list)"
        )
    torch = _torch_processes()
    if size == 1 and torch > 1:
        raise UsageError(
            f"a PyTorch launcher has started {torch} processes ({_TORCH_SIZE}={torch}), but MPI reports that each is "
            f"alone: processes of graphkit find each other through MPI; {_HOW}. If this process should run alone, "
            f"unset {_TORCH_SIZE}"
        )


def check_tasks(processes: int) -> None:
    """Raise UsageError for one of several tasks of Slurm or torchrun: each would start a job."""
    tasks = _first_number((_TASKS,))
    if tasks is not None and tasks > 1:
        raise UsageError(
            f"each of the {tasks} tasks of srun would start --processes {processes}, without MPI: let srun start the "
            f"processes (srun --mpi=..., see srun --mpi=list), or one task; for a job in each task, unset {_TASKS}"
        )
    if (torch := _torchrun_processes()) > 1:
        raise UsageError(
            f"each of the {torch} processes of torchrun would start --processes {processes}: start the command "
            f"without torchrun; for a job in each process, unset {_TORCHRUN}"
        )


def launched_processes() -> int:
    return max(_first_number(_SIZES) or 1, 1)


def launcher_rank() -> int | None:
    """Return this process's rank if the launcher sets it before MPI starts, else None."""
    return _first_number(_RANKS)


def check_alone() -> None:
    """Raise UsageError if torchrun has started several processes that would each train alone.

    Other PyTorch launchers are not detected: other programs set RANK and WORLD_SIZE, too.
    """
    if (torch := _torchrun_processes()) > 1:
        raise UsageError(
            f"torchrun has started {torch} processes, and with --kvstore local, each of them would train alone: use "
            f"--kvstore dist_sync, and {_HOW}. For a training in each process, unset {_TORCHRUN}"
        )


@contextlib.contextmanager
def deadline(seconds: float, place: tuple[int, int] | None = None, done: str = "started MPI") -> Iterator[None]:
    """Context that ends this process, with RuntimeFailure's exit code, if it takes longer than `seconds`.

    MPI_Init_thread and MPI_Finalize hold the global interpreter lock, so a native thread checks the time. Without the
    native extension, faulthandler prints a traceback and exits with status 1.

    Args:
        seconds: The limit. There is none if it is infinite, or if the job has one process.
        place: Rank and number of processes (default: from the launcher).
        done: What the missing processes have not done, for the message.
    """
    rank, size = place or (_first_number(_RANKS), _first_number(_SIZES))
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
        sys.stdout.flush()
    end = native.Deadline(seconds, _GRACE, _deadline_message(rank, size, seconds, done), RuntimeFailure.exit_code)
    try:
        yield
    finally:
        end.cancel()


def _deadline_message(rank: int | None, size: int | None, seconds: float, done: str) -> str:
    who = "a process" if rank is None else f"rank {rank}" + (f" of {size}" if size is not None else "")
    return (
        f"graphkit: {who} on {socket.gethostname()} (process {os.getpid()}): not all processes of the job have {done} "
        f"within {seconds:g} s ({config.RANK_TIMEOUT.name}, at least {LEAST_TIMEOUT:g}); ranks without this message "
        "are missing; this ends the job\n"
    )


def _first_number(variables: Sequence[str]) -> int | None:
    texts = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _torch_processes() -> int:
    processes = _first_number((_TORCH_SIZE,)) if _first_number((_TORCH_RANK,)) is not None else None
    return processes or 0


def _torchrun_processes() -> int:
    return _torch_processes() if _TORCHRUN in os.environ else 0
