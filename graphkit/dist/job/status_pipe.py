"""Reports of the ranks to the command that has started the job, through a named pipe.

An MPI launcher does not name a rank that leaves in the middle of its program. So each rank reports its start and its
end, and the command finds the rank that left first. If the command ends, the ranks end, too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from graphkit import config
from graphkit.errors import RuntimeFailure
from graphkit.named_tuples import NamedTuple

# Reports of a rank. BEGUN: before MPI starts, if the launcher sets the rank. STARTED: after MPI has started. EXCLUDED:
# another rank reports that this one was lost and the job continues.
BEGUN, STARTED, ENDED, FAILED, EXCLUDED = "begun", "started", "ended", "failed", "excluded"

_BY_LAUNCHERS = (signal.SIGKILL, signal.SIGTERM)

# The request PIDFD_GET_INFO of a pidfd, its answer (a mask and the exit status), and the bit PIDFD_INFO_EXIT of the
# mask (linux/pidfd.h).
_GET_INFO = 3 << 30 | 64 << 16 | 0xFF << 8 | 11
_INFO = struct.Struct("=Q52xi")
_INFO_EXIT = 1 << 3

# Bytes to read at once. Lines of several ranks do not mix: each is shorter than PIPE_BUF.
_PART = 1 << 16


class RankProcess(NamedTuple):
    rank: int
    process: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (process {self.process})"


class StatusPipe:
    def __init__(self, ranks: int):
        self._ranks = ranks
        self._begun: dict[int, RankProcess] = {}
        self._started: set[int] = set()
        self._reports: dict[int, str] = {}
        self._exited: list[int] = []
        # Whether a failure was reported while no rank was lost: it explains later losses, because the launcher ends the
        # other ranks.
        self._explained = False
        self._incomplete = b""

    def __enter__(self) -> StatusPipe:
        self._folder = tempfile.mkdtemp(prefix="graphkit-job-")
        self.path = str(Path(self._folder) / "ranks")
        try:
            os.mkfifo(self.path)
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise RuntimeFailure(
                f"{self.path}: cannot create a named pipe ({error.strerror}): set TMPDIR to a folder on another file "
                "system"
            ) from None
        # Open it for writing too: without a writer, reads would return at once.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self._rank_by_pidfd: dict[int, int | None] = {}
        self._events = select.epoll() if hasattr(select, "epoll") and hasattr(os, "pidfd_open") else None
        if self._events is not None:
            self._events.register(self._pipe, select.EPOLLIN)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for descriptor in self._rank_by_pidfd:
            os.close(descriptor)
        if self._events is not None:
            self._events.close()
        os.close(self._pipe)
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, job: subprocess.Popen[bytes], pause: float) -> int:
        """Wait for the end of the job; return its status. Signal handlers run after `pause` seconds at most.

        Python runs signal handlers only between its own instructions: an unlimited wait could delay them forever.
        """
        self._follow(job.pid, None)
        while job.poll() is None:
            if self._events is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.wait(pause)
            else:
                for descriptor, _ in self._events.poll(pause):
                    self._handle_event(descriptor)
        self._read()
        return int(job.returncode)

    def first_lost(self) -> str | None:
        """Return a sentence about the rank that left first without ending its program, or None.

        Also None if a reported failure explains the loss.
        """
        lost = self._lost()
        if not lost or self._explained:
            return None
        first = self._begun[lost[0]]
        if first.rank in self._started:
            return f"{first} left before its program had ended: it was killed, or called os._exit"
        missing = [f"rank {rank}" for rank in range(self._ranks) if rank not in self._begun]
        others = f"; {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} not started" if missing else ""
        return f"{first} left before all ranks had started MPI{others}"

    def _lost(self) -> list[int]:
        """Return the ranks that left without a report, in the order in which they left.

        A launcher may kill other ranks before the process of the lost rank has ended. So ranks come last if they are
        known to have been ended by SIGKILL or SIGTERM.
        """
        lost = [rank for rank in self._exited if rank not in self._reports]
        watched = self._rank_by_pidfd.items()
        by_launchers = [rank for descriptor, rank in watched if _ended_by(descriptor) in _BY_LAUNCHERS]
        return sorted(lost, key=by_launchers.__contains__)

    def not_ended(self) -> list[str]:
        return [str(self._begun.get(rank, f"rank {rank}")) for rank in range(self._ranks) if rank not in self._reports]

    def _follow(self, process: int, rank: int | None) -> None:
        if self._events is None:
            return
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            if rank is not None:
                self._exited.append(rank)
        except OSError as error:
            # The system may lack pidfd_open, or forbid it. `not_ended` still works.
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
        else:
            self._rank_by_pidfd[descriptor] = rank
            self._events.register(descriptor, select.EPOLLIN)

    def _handle_event(self, descriptor: int) -> None:
        if descriptor == self._pipe:
            self._read()
        elif descriptor in self._rank_by_pidfd:
            assert self._events is not None, "the event comes from it"
            self._events.unregister(descriptor)
            if (rank := self._rank_by_pidfd[descriptor]) is not None:
                self._exited.append(rank)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._pipe, _PART):
                *lines, self._incomplete = (self._incomplete + data).split(b"\n")
                for line in lines:
                    self._handle(*line.decode().split("\t"))

    def _handle(self, word: str, rank: str, process: str, host: str) -> None:
        sender = RankProcess(int(rank), int(process), host)
        if word in (BEGUN, STARTED):
            if word == STARTED:
                self._started.add(sender.rank)
            # BEGUN contains the launcher's rank, STARTED that of MPI.
            if self._begun.get(sender.rank) != sender:
                self._begun[sender.rank] = sender
                self._follow(sender.process, sender.rank)
        else:
            self._explained = self._explained or (word == FAILED and not self._lost())
            self._reports[sender.rank] = word


def _ended_by(descriptor: int) -> int | None:
    """Return the signal that ended a process.

    None if no signal ended it, if the parent has not yet waited for it, or if Linux is older than 6.15.
    """
    try:
        mask, status = _INFO.unpack(fcntl.ioctl(descriptor, _GET_INFO, _INFO.pack(_INFO_EXIT, 0)))
    except OSError:
        return None
    return os.WTERMSIG(status) if mask & _INFO_EXIT and os.WIFSIGNALED(status) else None


_pipe: int | None = None


def join() -> None:
    """Open the pipe. From now on, this process ends if the command that started its job ends.

    Does nothing without such a command. Raises RuntimeFailure if the command has already ended, or the pipe does not
    exist.
    """
    global _pipe
    path = config.JOB_PIPE.get()
    if path is None or _pipe is not None:
        return
    try:
        _pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENXIO:
            _remove(path)
            raise RuntimeFailure("the command that has started this job is gone; this process ends") from None
        raise RuntimeFailure(
            f"{config.JOB_PIPE.name}={path}: this pipe of the command that has started the job cannot be opened "
            f"({error.strerror}): the command is gone, or this rank does not see the temporary folder of the command's "
            "machine"
        ) from None
    threading.Thread(target=_end_with_command, args=(_pipe, path), name="graphkit-status-pipe", daemon=True).start()


def report(word: str, rank: int) -> None:
    if _pipe is not None:
        # The pipe is full, or `_end_with_command` ends this process.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(_pipe, f"{word}\t{rank}\t{os.getpid()}\t{socket.gethostname()}\n".encode())


def _end_with_command(pipe: int, path: str) -> NoReturn:
    """Wait until the command closes the pipe; then end this process. The MPI launcher then ends the other ranks."""
    events = select.poll()
    events.register(pipe, 0)  # wait only for POLLERR: the pipe has no reader
    events.poll()
    _remove(path)
    with contextlib.suppress(OSError):
        os.write(
            2,
            f"graphkit: process {os.getpid()} on {socket.gethostname()}: the command that has started this job is "
            "gone; this ends the job\n".encode(),
        )
    os._exit(RuntimeFailure.exit_code)


def _remove(path: str) -> None:
    """Remove the pipe and its folder: the command, which has ended, cannot."""
    # Another rank may have removed it.
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(Path(path).parent)
