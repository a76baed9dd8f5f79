"""Start worker processes: new interpreters, which end when this process ends or is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from graphkit.errors import UnsupportedError, UsageError, WorkerError
from graphkit.named_tuples import NamedTuple

# A worker has one thread. Parallelism comes from the number of workers.
_SINGLE = (
    "GRAPHKIT_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)  # fmt: skip

# Number of blocks (of at most 16 MiB) that Pillow keeps for the next image. Without it, allocating memory takes a third
# of a worker's time.
_KEPT = {"PILLOW_BLOCKS_MAX": "4"}

# Gives the worker the module search path of this process, whatever the interpreter's options and environment are.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from graphkit.data.workers.process import main; "
    "main(*map(int, sys.argv[1:4]))"
)

# Seconds until workers that should end are killed; seconds to wait for the end of a process that closed its connection.
_GRACE, _PATIENCE = 0.5, 10.0


class Started:
    """A worker process, and this process's end of the socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket):
        self._process, self.end = process, end

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def ending(self) -> str:
        """Describe in words how a process ended, after its socket was closed."""
        try:
            code = self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"has ended with the exit code {code}"

    def wait_until(self, deadline: float) -> None:
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Processes(NamedTuple):
    """The processes of a crew. over: set when they have ended."""

    each: list[Started]
    over: threading.Event
    owner: int

    @property
    def of_this_process(self) -> bool:
        """Whether this process started them. False in a process that was forked from it."""
        return os.getpid() == self.owner

    def end(self) -> None:
        """Wait for the end of all processes, whose connections must be closed. Kill them after _GRACE seconds."""
        deadline = time.monotonic() + _GRACE
        for process in self.each:
            process.wait_until(deadline)
        self.over.set()


def started(pages: Sequence[int]) -> Processes:
    """Start a process for each of `pages`, the memory for its Progress. Raises UsageError in a worker."""
    from graphkit.data.workers import process

    if process.running:
        raise UsageError(
            "a worker process tried to start worker processes, because it imports the script for the class of its data "
            'set: put the work of the script under `if __name__ == "__main__":`, or the class into a separate module'
        )
    if not sys.executable or not hasattr(os, "memfd_create"):
        raise UnsupportedError(
            "worker processes need Linux, and a Python interpreter that can be started; use workers=0 instead"
        )
    made: list[Started] = []
    failed: list[BaseException] = []
    ready, over = threading.Event(), threading.Event()

    def start() -> None:
        try:
            made.extend(_one(page) for page in pages)
        except BaseException as error:  # noqa: BLE001 - `started` raises it
            failed.append(error)
        finally:
            ready.set()
        # This thread must stay: Linux kills the workers when the thread that started them ends (PR_SET_PDEATHSIG,
        # prctl(2)).
        over.wait()

    threading.Thread(target=start, name="graphkit-workers", daemon=True).start()
    ready.wait()
    found = Processes(made, over, os.getpid())
    if failed:
        for process_ in made:
            process_.end.close()
        found.end()
        if isinstance(failed[0], OSError):
            raise WorkerError(f"worker processes cannot be started: {failed[0]}")
        raise failed[0]
    return found


def _one(page: int) -> Started:
    mine, other = socket.socketpair()
    with contextlib.ExitStack() as failing, other:
        failing.enter_context(mine)
        arguments = [str(number) for number in (other.fileno(), page, os.getpid())]
        # Python's import ignores entries that are not strings.
        paths = [path or os.getcwd() for path in sys.path if isinstance(path, str)]
        process = subprocess.Popen(
            [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", _PROGRAM, *arguments, *paths],  # type: ignore[attr-defined]
            stdin=subprocess.DEVNULL,
            env={**_KEPT, **os.environ, **dict.fromkeys(_SINGLE, "1")},
            pass_fds=(other.fileno(), page),
            # Signals of the terminal, such as Ctrl-C, do not reach the worker.
            start_new_session=True,
        )
        failing.pop_all()
    return Started(process, mine)
