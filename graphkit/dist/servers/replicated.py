"""Workers and servers that continue after the loss of a server."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from graphkit.dist.job import survival
from graphkit.dist.job.start import LEAST_TIMEOUT
from graphkit.dist.servers.remote import WINDOW
from graphkit.dist.servers.replica import Outbox, ReplicatedServer, holders
from graphkit.dist.wire.mesh import Frame, Kind, Mesh, open_mesh
from graphkit.errors import RuntimeFailure

# Seconds between two checks for lost ranks, and seconds to send last frames.
_LOOK, _LAST = 0.05, 5.0
# Seconds that a server waits for the message of a failed rank, after another rank has ended without notice.
_WORD = 1.0


class Company(Protocol):
    """The processes of a job, as `graphkit.dist.job.mpi` implements them."""

    rank: int
    place: int
    processes: int
    servers: int
    unclosed: bool

    @property
    def timeout(self) -> float: ...

    @property
    def host_by_rank(self) -> dict[int, int]: ...
    def tell_all(self, mine: Any) -> list[Any]: ...
    def perform(self, call: str, arrays: Sequence[np.ndarray] = (), action: Any = None) -> Any: ...
    def allgather(self, array: np.ndarray) -> np.ndarray: ...
    def doing(self, call: bytes) -> None: ...
    def waiting(self, for_steps: bool) -> AbstractContextManager[None]: ...
    def lost(self) -> str | None: ...
    def exclude(self, rank: int) -> None: ...
    def called(self, rank: int) -> str: ...
    def fail(self, reason: str) -> None: ...
    def before_abort(self, tell: Callable[[int], None]) -> None: ...
    def end_silent(self) -> None: ...


def _connected(company: Company) -> Mesh:
    """Return the connections of this process. Every process of the job must call it."""
    workers = company.processes - company.servers
    servers = range(workers, company.processes)
    seconds = max(company.timeout, LEAST_TIMEOUT)
    mesh = open_mesh(company.place, servers, range(workers), company.host_by_rank, company.tell_all, seconds)

    def tell(code: int) -> None:
        mesh.close(_LAST, Frame(Kind.FAILED, number=code))
        company.end_silent()

    company.before_abort(tell)
    survival.takes_part()
    return mesh


def connect(company: Company) -> ReplicatedConnection:
    """Return a worker's connection to the servers. Every process of the job must call it or `serve`."""
    return ReplicatedConnection(_connected(company), company)


class ReplicatedConnection:
    """A worker's connection to replicated servers. A thread receives frames, and sends messages again after a loss."""

    def __init__(self, mesh: Mesh, company: Company):
        self.servers = company.servers
        self._mesh, self._company = mesh, company
        self._workers = company.processes - company.servers
        self._outbox = Outbox(self.servers, self._workers, mesh.send)
        self._come: list[deque[np.ndarray]] = [deque() for _ in range(self.servers)]
        self._failure: str | None = None
        self._over = False
        self._news = threading.Condition()
        company.before_abort(self._stop)
        self._thread = threading.Thread(target=self._receive, name="graphkit-post", daemon=True)
        self._thread.start()

    @property
    def sent_bytes(self) -> int:
        return self._mesh.sent_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of messages that are kept, to be sent again after a loss."""
        return self._outbox.kept_bytes

    def send(self, server: int, message: np.ndarray) -> None:
        with self._news:
            if self._failure is None:
                self._outbox.post(server, message)
        if self._outbox.kept_bytes > WINDOW:
            self._company.doing(b"what servers have not replicated")
            with self._company.waiting(True):
                self._wait(lambda: self._outbox.kept_bytes <= WINDOW)

    def answers(self, servers: Sequence[int], call: str) -> list[np.ndarray]:
        self._company.doing(call.encode())
        with self._company.waiting(True):
            self._wait(lambda: all(self._come[server] for server in servers))
            return [self._come[server].popleft() for server in servers]

    def _wait(self, is_there: Callable[[], bool]) -> None:
        with self._news:
            while not is_there():
                if self._failure is None:
                    self._news.wait(_LOOK)
                    self._failure = self._failure or self._company.lost()
                if self._failure is not None:
                    raise RuntimeFailure(self._failure)

    # --- the thread -------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while not self._over:
                for source, frame in self._mesh.receive(_LOOK):
                    with self._news:
                        if self._over:
                            return
                        self._take(source, frame)
                        self._news.notify_all()
        except Exception as error:  # noqa: BLE001 - the next caller that waits gets it
            self._fail(f"what servers send: {type(error).__name__}: {error}")

    def _take(self, source: int, frame: Frame | None) -> None:
        if frame is None:
            self._lose(source)
        elif frame.kind == Kind.FAILED:
            _leave(self._company, frame.number)
        elif frame.kind == Kind.LOST:
            self._lose(frame.number)
        elif self._outbox.received(frame):
            self._come[frame.part].append(frame.data)

    def _lose(self, rank: int) -> None:
        """Handle the loss of a server, reported by its connection or by another process."""
        server = rank - self._workers
        if server in self._outbox.lost:
            return
        for frame in _parted(self._mesh, rank):
            self._take(rank, frame)
        self._company.exclude(rank)
        if self._company.rank == 0:
            before = self._outbox.lost
            print(f"graphkit: {_told(self._company, rank, self.servers, before)}", file=sys.stderr, flush=True)
        try:
            self._outbox.gone(server)
        except RuntimeFailure as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        """Stop with an error, which the main thread gets wherever it waits."""
        self._failure = reason
        self._company.fail(reason)

    # --- the end ----------------------------------------------------------------------------------

    def settle(self) -> None:
        """Tell all workers whether a server was lost. If so, MPI cannot be closed."""
        mine = np.array([len(self._outbox.lost)])
        found = self._company.perform("servers lost", [mine], lambda: self._company.allgather(mine))
        self._company.unclosed = bool(found.any())

    def dismiss(self) -> None:
        """End the servers. One worker calls it after all have left."""
        for rank in self._mesh.ranks:
            self._mesh.send(rank, Frame(Kind.END, number=int(self._company.unclosed)))

    def close(self) -> None:
        """Close the connections of this worker."""
        self._stop()
        self._mesh.close(_LAST)

    def _stop(self, code: int = 0) -> None:
        """Ignore all frames from now on."""
        with self._news:
            self._over = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST)


def serve(company: Company) -> None:
    """Store parts until the workers have ended. Raises RuntimeFailure if a rank is lost."""
    mesh = _connected(company)
    workers = company.processes - company.servers
    holder = ReplicatedServer(
        company.place - workers, company.servers, workers, mesh.send, lambda text: _warn(company, text)
    )
    while True:
        come: list[tuple[int, Frame | None]] = []
        with company.waiting(False):
            while not come:
                come = mesh.receive(_LOOK)
                if (reason := company.lost()) is not None:
                    raise RuntimeFailure(reason)
        # A failure explains all losses, so it comes first. Frames of a lost rank come before the report of its loss.
        come.sort(key=lambda each: 0 if _is(each[1], Kind.FAILED) else 2 if _is(each[1], Kind.LOST) else 1)
        for source, frame in come:
            if frame is not None and frame.kind == Kind.END:
                company.unclosed = bool(frame.number)
                mesh.close(_LAST)
                return
            _serve_one(holder, mesh, company, source, frame)
        holder.flush()


def _serve_one(holder: ReplicatedServer, mesh: Mesh, company: Company, source: int, frame: Frame | None) -> None:
    workers = company.processes - company.servers
    if frame is None and source < workers:
        _leave_if_failed(mesh, company)
        raise RuntimeFailure(f"{company.called(source)} has ended without notice")
    if frame is not None and frame.kind == Kind.FAILED:
        mesh.close(_LAST, frame)
        _leave(company, frame.number)
    if frame is not None and frame.kind != Kind.LOST:
        company.doing(f"message of rank {source}".encode())
        holder.received(source, frame)
        return
    rank = source if frame is None else frame.number
    if rank == company.place:
        raise RuntimeFailure(f"{company.called(source)} has lost its connection to this server, rank {rank}")
    if rank - workers in holder.lost:
        return
    for earlier in _parted(mesh, rank):
        _serve_one(holder, mesh, company, rank, earlier)
    company.exclude(rank)
    holder.gone(rank - workers)


def _parted(mesh: Mesh, rank: int) -> list[Frame]:
    """Disconnect from a lost server and tell all others; return the frames that it had sent.

    If it still runs, and only its connection is broken, it learns that the others continue without it.
    """
    for other in mesh.ranks:
        mesh.send(other, Frame(Kind.LOST, number=rank))
    return mesh.cut(rank)


def _told(company: Company, rank: int, servers: int, lost: set[int]) -> str:
    """Return the message about a loss. lost: servers that were lost before."""
    workers = company.processes - company.servers
    server = rank - workers
    now = lost | {server}
    led = [part for part in range(servers) if holders(part, servers, lost)[0] == server]
    to, _ = holders(server, servers, now)
    if to is None:
        return f"{company.called(rank)} is lost, the last server"
    found = f"{company.called(rank)} is lost; {company.called(workers + to)} has taken over"
    found += f" its part{'s' if len(led) > 1 else ''} of the parameters"
    left = servers - len(now)
    return f"{found}. {'The loss of another server would end the job' if left == 1 else f'{left} servers are left'}"


def _warn(company: Company, text: str) -> None:
    print(f"graphkit: rank {company.place}: {text}", file=sys.stderr, flush=True)


def _is(frame: Frame | None, kind: Kind) -> bool:
    return frame is not None and frame.kind == kind


def _leave_if_failed(mesh: Mesh, company: Company) -> None:
    """Exit with the code of a rank that failed, if its message arrives soon.

    The launcher may end other ranks because of that failure, and their end may be noticed first.
    """
    end = time.monotonic() + _WORD
    while time.monotonic() < end:
        for _, frame in mesh.receive(_LOOK):
            if frame is not None and frame.kind == Kind.FAILED:
                mesh.close(_LAST, frame)
                _leave(company, frame.number)


def _leave(company: Company, code: int) -> None:
    """Exit at once, because another rank has ended the job and reported why."""
    company.end_silent()
    with contextlib.suppress(OSError, ValueError):  # the reader may have ended before
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
