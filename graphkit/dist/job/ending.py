"""The end of a job: all processes end together, or a failed process aborts the job.

If a process exits without MPI_Finalize, launchers end the job silently with status 0. So a process announces its end,
waits for the others, and finalises MPI. A process that fails, or is left alone, aborts the job with a non-zero exit
code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn

from graphkit.errors import GraphkitError, RuntimeFailure, error_text

if TYPE_CHECKING:
    from graphkit.dist.job.mpi import MpiCommunicator

# If the ranks have made different calls, each waits up to this many seconds before it aborts. So all can print their
# errors.
GRACE = 10.0

_INTERRUPTED, _TERMINATED = 130, 143

_running: MpiCommunicator | None = None
_end_callbacks: list[tuple[Callable[[], None], Callable[[], None]]] = []
_failure: BaseException | None = None


def register(communicator: MpiCommunicator) -> None:
    """Register a process of a job, which finalises MPI, or aborts the job, when it exits."""
    global _running
    _running = communicator
    atexit.register(end)
    if communicator.processes > 1:
        _record_failures()


def before_end(leave: Callable[[], None], last: Callable[[], None]) -> None:
    """Register callbacks for a normal exit: `leave`, and `last`, which runs after all workers have called `leave`."""
    _end_callbacks.append((leave, last))


def end_of_server(communicator: MpiCommunicator) -> NoReturn:
    global _running
    _running = None
    communicator.finalize()
    sys.exit(0)


def _record_failures() -> None:
    before = sys.excepthook

    def remember(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _failure
        _failure = error
        before(kind, error, trace)

    sys.excepthook = remember
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> None:
    global _failure
    _failure = SystemExit(_TERMINATED)
    raise _failure


def end() -> None:
    """Finalise MPI together with the other processes.

    Abort the job if this process failed, or if another process calls a collective instead of ending.
    """
    global _running
    communicator, _running = _running, None
    if communicator is None or communicator.process != os.getpid():  # a forked child does not belong to the job
        return
    try:
        if _failure is not None:
            _abort(communicator, _failure)
        communicator.flush()
        for leave, _ in _end_callbacks:
            leave()
        communicator.announce_end()
        for _, last in _end_callbacks:
            last()
    except BaseException as error:  # noqa: BLE001 - any error ends the job
        _abort(communicator, error)
    communicator.finalize()


def in_running_job() -> bool:
    return _running is not None and _running.processes > 1


@contextlib.contextmanager
def abort_on_error() -> Iterator[None]:
    """Context that ends the whole job if this process fails, with the exit code of the error.

    For callers that turn exceptions into exit codes. Without an error, it calls `end`.
    """
    try:
        yield
    except BaseException as error:
        communicator = _running
        if communicator is None or not in_running_job() or (isinstance(error, SystemExit) and not error.code):
            raise
        if not isinstance(error, (GraphkitError, KeyboardInterrupt, SystemExit)):
            traceback.print_exc()
        _abort(communicator, error)
    if in_running_job():
        end()


def _abort(communicator: MpiCommunicator, error: BaseException) -> None:
    communicator.report_failure()
    try:
        print(f"graphkit: rank {communicator.job_rank}: {_described(error)}; this ends the job", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        if communicator.disagreement is not None:
            communicator.reach_barrier(GRACE)
    finally:
        communicator.abort(_exit_code(error))


def _described(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted"
    if isinstance(error, SystemExit):
        notes: list[str] = getattr(error, "__notes__", [])
        return "; ".join(["terminated", *notes]) if error.code == _TERMINATED else f"exit with status {error.code}"
    return error_text(error)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    return error.exit_code if isinstance(error, GraphkitError) else RuntimeFailure.exit_code
