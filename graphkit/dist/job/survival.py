"""What lets the processes of a job go on when one of them is lost, by the MPI that has started them.

MPICH's launcher (Hydra, `mpiexec -disable-auto-cleanup`) tells all processes of a loss by SIGUSR1, by which they would
end, and ends all of a host once it has seen that a signal has ended one of those that it has started. So a process
whose loss is to be survived is the child of one that Hydra has started, and that leaves in its place without a signal.
Open MPI (`mpirun --with-ft ulfm`) needs no more than that option.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from graphkit.errors import UsageError

# Set by Hydra for each process: its rank, how many there are, and the file by which they talk to it.
_RANK, _SIZE, _FILE = "PMI_RANK", "PMI_SIZE", "PMI_FD"

# Where the child of a process says that it takes part.
_told: int | None = None


def launcher_options(mpiexec: str) -> list[str]:
    """With which a launcher lets the others go on. Raises UsageError for one of which that is not known."""
    done = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    if "HYDRA" in said:
        return ["-disable-auto-cleanup"]
    if "Open MPI" in said or "OpenRTE" in said:
        return ["--with-ft", "ulfm"]
    first = said.strip().splitlines()[:1]
    raise UsageError(
        f"replicated servers need the launcher of MPICH or Open MPI; {mpiexec} ({''.join(first) or 'unknown version'}) "
        "is not known to survive the loss of a process"
    )


def prepare(servers: int) -> None:
    """Called once, before MPI is started, by a process of a job with so many servers, its last ones.

    Where Hydra has started this process and it is to be a server, it goes on as the child of itself.
    Raises UsageError where MPI has been started, or outside of the main thread.
    """
    global _told
    if not all(name in os.environ for name in (_RANK, _SIZE, _FILE)):
        return
    if "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized():
        raise UsageError("replicate=True: with MPICH's launcher, create the store before MPI is started")
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("replicate=True: with MPICH's launcher, create the store in the main thread")
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if int(os.environ[_RANK]) >= int(os.environ[_SIZE]) - servers:
        _told = _child()


def takes_part() -> None:
    """From now on the others can go on without this process."""
    if _told is not None:
        os.write(_told, b"x")


def _child() -> int:
    """The child goes on; this process waits for its end, and leaves with its status, or 0 where a signal ended it."""
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
        signal.signal(number, signal.SIG_IGN)  # the child has its own
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    if os.read(reads, 1):
        os._exit(0)
    # Nobody could go on: the launcher ends the job by this.
    ended_by = os.WTERMSIG(status)
    if ended_by != signal.SIGKILL:
        signal.signal(ended_by, signal.SIG_DFL)
    os.kill(os.getpid(), ended_by)
    os._exit(128 + ended_by)
