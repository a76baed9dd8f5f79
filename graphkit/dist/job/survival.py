"""Survival of the loss of a process, depending on the MPI launcher.

When a process is lost, MPICH's launcher (Hydra, `mpiexec -disable-auto-cleanup`) sends SIGUSR1 to all others, which
must ignore it. If a signal ends a process that Hydra started, Hydra ends all processes of the host. So a server forks a
child, which serves; if a signal ends the child, the parent exits normally. Open MPI only needs `mpirun --with-ft ulfm`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from graphkit.errors import UsageError

_RANK, _SIZE, _FILE = "PMI_RANK", "PMI_SIZE", "PMI_FD"

# The child of a server writes to this pipe when the other processes can continue without the child.
_confirmation: int | None = None


def launcher_options(mpiexec: str) -> list[str]:
    """Return the options that let a job survive the loss of a process. Raises UsageError for an unknown launcher."""
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    version = done.stdout + done.stderr
    if "HYDRA" in version:
        return ["-disable-auto-cleanup"]
    if "Open MPI" in version or "OpenRTE" in version:
        return ["--with-ft", "ulfm"]
    first = version.strip().splitlines()[:1]
    raise UsageError(
        f"replicated servers need the launcher of MPICH or Open MPI; {mpiexec} ({''.join(first) or 'unknown version'}) "
        "is not known to survive the loss of a process"
    )


def prepare(servers: int) -> None:
    """Prepare a process of a job with replicated servers, before MPI starts. The last `servers` processes are servers.

    Without Hydra, does nothing. Under Hydra, a server continues in a child process. Raises UsageError if MPI has
    started, or outside the main thread.
    """
    global _confirmation
    if not all(name in os.environ for name in (_RANK, _SIZE, _FILE)):
        return
    if "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized():
        raise UsageError("replicate=True: with MPICH's launcher, create the store before MPI is started")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("replicate=True: with MPICH's launcher, create the store in the main thread")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if int(os.environ[_RANK]) >= int(os.environ[_SIZE]) - servers:
        _confirmation = _fork_child()


def confirm_start() -> None:
    """Tell the parent of this server that the other processes can now continue without it."""
    if _confirmation is not None:
        os.write(_confirmation, b"x")


def _fork_child() -> int:
    """Fork, and return the descriptor for `confirm_start`. Only the child returns.

    The parent exits with the status of the child. If a signal ended the child, the parent exits with 0 if the child had
    confirmed its start, else by the same signal.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        return writes
    os.close(writes)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    if os.read(reads, 1):
        os._exit(0)
    # The other processes cannot continue without the child: end by the same signal, and the launcher ends the job.
    ended_by = os.WTERMSIG(status)
    if ended_by != signal.SIGKILL:
        signal.signal(ended_by, signal.SIG_DFL)
    os.kill(os.getpid(), ended_by)
    os._exit(128 + ended_by)
