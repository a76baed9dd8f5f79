"""Workers and servers that continue after the loss of a server."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from graphkit.dist.job import survival
from graphkit.dist.job.mpi import MpiCommunicator
from graphkit.dist.job.start import LEAST_TIMEOUT
from graphkit.dist.servers.remote import WINDOW
from graphkit.dist.servers.replica import Outbox, ReplicatedServer, leader_and_follower
from graphkit.dist.wire.mesh import Frame, FrameKind, Mesh, open_mesh
from graphkit.errors import RuntimeFailure, error_text

# Seconds between two checks for lost ranks, and seconds to send last frames.
_CHECK, _CLOSING = 0.05, 5.0
# If a worker ends without GOODBYE, a server waits this many seconds for a FAILED frame that explains it.
_FAILURE_WAIT = 1.0


def _connected(communicator: MpiCommunicator) -> Mesh:
    """Return the connections of this process. Every process of the job, also a server, must call it."""
    workers = communicator.processes - communicator.servers
    servers = range(workers, communicator.processes)
    seconds = max(communicator.timeout, LEAST_TIMEOUT)
    hosts, exchange = communicator.host_by_rank, communicator.allgather_objects
    mesh = open_mesh(communicator.job_rank, servers, range(workers), hosts, exchange, seconds)

    def report_failure(code: int) -> None:
        mesh.close(_CLOSING, Frame(FrameKind.FAILED, number=code))
        communicator.end_silent()

    communicator.on_abort(report_failure)
    survival.confirm_start()
    return mesh


def connect(communicator: MpiCommunicator) -> ReplicatedConnection:
    """Return a worker's connection to the servers. Every process of the job must call it or `serve`."""
    return ReplicatedConnection(_connected(communicator), communicator)


class ReplicatedConnection:
    """A worker's connection to replicated servers. A thread receives frames, and sends messages again after a loss."""

    def __init__(self, mesh: Mesh, communicator: MpiCommunicator):
        self.servers = communicator.servers
        self._mesh, self._communicator = mesh, communicator
        self._workers = communicator.processes - communicator.servers
        self._outbox = Outbox(self.servers, self._workers, mesh.send)
        self._arrived: list[deque[np.ndarray]] = [deque() for _ in range(self.servers)]
        self._failure: str | None = None
        self._closed = False
        self._condition = threading.Condition()
        communicator.on_abort(self._stop)
        self._thread = threading.Thread(target=self._receive, name="graphkit-servers", daemon=True)
        self._thread.start()

    @property
    def sent_bytes(self) -> int:
        return self._mesh.sent_bytes

    @property
    def kept_bytes(self) -> int:
        return self._outbox.kept_bytes

    def send(self, server: int, message: np.ndarray) -> None:
        with self._condition:
            if self._failure is None:
                self._outbox.post(server, message)
        if self._outbox.kept_bytes > WINDOW:
            self._communicator.doing(b"messages that servers have not replicated")
            with self._communicator.waiting(True):
                self._wait(lambda: self._outbox.kept_bytes <= WINDOW)

    def answers(self, servers: Sequence[int], call: str) -> list[np.ndarray]:
        self._communicator.doing(call.encode())
        with self._communicator.waiting(True):
            self._wait(lambda: all(self._arrived[server] for server in servers))
            return [self._arrived[server].popleft() for server in servers]

    def _wait(self, is_there: Callable[[], bool]) -> None:
        with self._condition:
            while not is_there():
                if self._failure is None:
                    self._condition.wait(_CHECK)
                    self._failure = self._failure or self._communicator.lost()
                if self._failure is not None:
                    raise RuntimeFailure(self._failure)

    # --- the thread -------------------------------------------------------------------------------

    def _receive(self) -> None:
        try:
            while not self._closed:
                for source, frame in self._mesh.receive(_CHECK):
                    with self._condition:
                        if self._closed:
                            return
                        self._take(source, frame)
                        self._condition.notify_all()
        except Exception as error:  # noqa: BLE001 - the next caller that waits gets it
            self._fail(f"receiving from servers failed: {error_text(error)}")

    def _take(self, source: int, frame: Frame | None) -> None:
        if frame is None:
            self._handle_loss(source)
        elif frame.kind == FrameKind.FAILED:
            _exit(self._communicator, frame.number)
        elif frame.kind == FrameKind.LOST:
            self._handle_loss(frame.number)
        elif self._outbox.received(frame):
            self._arrived[frame.part].append(frame.data)

    def _handle_loss(self, rank: int) -> None:
        server = rank - self._workers
        if server in self._outbox.lost:
            return
        for frame in _disconnect(self._mesh, rank):
            self._take(rank, frame)
        self._communicator.exclude(rank)
        if self._communicator.rank == 0:
            before = self._outbox.lost
            print(
                f"graphkit: {_loss_text(self._communicator, rank, self.servers, before)}", file=sys.stderr, flush=True
            )
        try:
            self._outbox.handle_loss(server)
        except RuntimeFailure as error:
            self._fail(str(error))

    def _fail(self, reason: str) -> None:
        """Stop with an error, which the main thread gets wherever it waits."""
        self._failure = reason
        self._communicator.fail(reason)

    # --- the end ----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Tell all workers whether a server was lost. If one was, MPI_Finalize would never return."""
        mine = np.array([len(self._outbox.lost)])
        found = self._communicator.perform("servers lost", [mine], lambda: self._communicator.allgather(mine))
        self._communicator.cannot_finalize = bool(found.any())

    def end_servers(self) -> None:
        for rank in self._mesh.ranks:
            self._mesh.send(rank, Frame(FrameKind.END, number=int(self._communicator.cannot_finalize)))

    def close(self) -> None:
        self._stop()
        self._mesh.close(_CLOSING)

    def _stop(self, code: int = 0) -> None:
        with self._condition:
            self._closed = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSING)


def serve(communicator: MpiCommunicator) -> None:
    """Store parts until the workers have ended. Continue without a server whose connection ends.

    Raises RuntimeFailure if a worker is lost, no replica of a part is left, or a process sends no heartbeats.
    """
    mesh = _connected(communicator)
    workers = communicator.processes - communicator.servers
    me = communicator.job_rank - workers
    server = ReplicatedServer(me, communicator.servers, workers, mesh.send, partial(_warn, communicator))
    while True:
        arrived: list[tuple[int, Frame | None]] = []
        with communicator.waiting(False):
            while not arrived:
                arrived = mesh.receive(_CHECK)
                if (reason := communicator.lost()) is not None:
                    raise RuntimeFailure(reason)
        # Failures first: they explain losses. Reports of losses last, after the frames that the lost rank had sent.
        arrived.sort(key=lambda each: 0 if _is(each[1], FrameKind.FAILED) else 2 if _is(each[1], FrameKind.LOST) else 1)
        for source, frame in arrived:
            if frame is not None and frame.kind == FrameKind.END:
                communicator.cannot_finalize = bool(frame.number)
                mesh.close(_CLOSING)
                return
            _serve_one(server, mesh, communicator, source, frame)
        server.flush()


def _serve_one(
    server: ReplicatedServer, mesh: Mesh, communicator: MpiCommunicator, source: int, frame: Frame | None
) -> None:
    workers = communicator.processes - communicator.servers
    if frame is None and source < workers:
        _exit_if_failed(mesh, communicator)
        raise RuntimeFailure(f"{communicator.describe(source)} has ended without notice")
    if frame is not None and frame.kind == FrameKind.FAILED:
        mesh.close(_CLOSING, frame)
        _exit(communicator, frame.number)
    if frame is not None and frame.kind != FrameKind.LOST:
        communicator.doing(f"message of rank {source}".encode())
        server.received(source, frame)
        return
    rank = source if frame is None else frame.number
    if rank == communicator.job_rank:
        raise RuntimeFailure(f"{communicator.describe(source)} has lost its connection to this server, rank {rank}")
    if rank - workers in server.lost:
        return
    for earlier in _disconnect(mesh, rank):
        _serve_one(server, mesh, communicator, rank, earlier)
    communicator.exclude(rank)
    server.handle_loss(rank - workers)


def _disconnect(mesh: Mesh, rank: int) -> list[Frame]:
    """Disconnect from a lost server and tell all others; return the frames that it had sent.

    A server that still runs learns from the LOST frame that the others continue without it.
    """
    for other in mesh.ranks:
        mesh.send(other, Frame(FrameKind.LOST, number=rank))
    return mesh.disconnect(rank)


def _loss_text(communicator: MpiCommunicator, rank: int, servers: int, lost: set[int]) -> str:
    workers = communicator.processes - communicator.servers
    server = rank - workers
    now = lost | {server}
    led = [part for part in range(servers) if leader_and_follower(part, servers, lost)[0] == server]
    to, _ = leader_and_follower(server, servers, now)
    if to is None:
        return f"{communicator.describe(rank)} is lost, the last server"
    found = f"{communicator.describe(rank)} is lost; {communicator.describe(workers + to)} has taken over"
    found += f" its part{'s' if len(led) > 1 else ''} of the parameters"
    left = servers - len(now)
    return f"{found}. {'The loss of another server would end the job' if left == 1 else f'{left} servers are left'}"


def _warn(communicator: MpiCommunicator, text: str) -> None:
    print(f"graphkit: rank {communicator.job_rank}: {text}", file=sys.stderr, flush=True)


def _is(frame: Frame | None, kind: FrameKind) -> bool:
    return frame is not None and frame.kind == kind


def _exit_if_failed(mesh: Mesh, communicator: MpiCommunicator) -> None:
    """Exit with the code of a failed rank, if its message arrives soon.

    The launcher ends other ranks after a failure, and this server may notice their end first.
    """
    end = time.monotonic() + _FAILURE_WAIT
    while time.monotonic() < end:
        for _, frame in mesh.receive(_CHECK):
            if frame is not None and frame.kind == FrameKind.FAILED:
                mesh.close(_CLOSING, frame)
                _exit(communicator, frame.number)


def _exit(communicator: MpiCommunicator, code: int) -> None:
    """Exit at once, because another rank has ended the job and reported why."""
    communicator.end_silent()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
