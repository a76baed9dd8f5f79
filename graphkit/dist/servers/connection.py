"""Messages between workers and servers over MPI, with checks for lost ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from graphkit import errors
from graphkit.dist.job.mpi import MpiCommunicator
from graphkit.dist.servers.server import Server
from graphkit.dist.wire.packing import pack, unpack
from graphkit.dist.wire.point_to_point import Mailbox
from graphkit.errors import RuntimeFailure

# For _EAGER seconds after the last message, a process only yields its core. Then it sleeps for _PART of the time since
# the last message, at least _PAUSE and at most _LONGEST_PAUSE seconds: idle servers use almost no core.
_EAGER, _PAUSE, _LONGEST_PAUSE, _PART = 0.005, 2e-4, 5e-3, 1e-3
# Seconds between two checks for lost ranks, and between two calls that let messages progress.
_CHECK, _PROGRESS = 0.05, 1e-3


class ServerConnection(Protocol):
    servers: int

    @property
    def sent_bytes(self) -> int: ...
    def send(self, server: int, message: np.ndarray) -> None: ...

    def answers(self, servers: Sequence[int], call: str) -> list[np.ndarray]:
        """Return the next answer of each server.

        Raises RuntimeFailure if a rank is lost meanwhile, except one of replicated servers.
        """
        ...

    def leave(self) -> None:
        """Announce that this worker sends no more requests. Every worker calls it before `end_servers`."""
        ...

    def end_servers(self) -> None:
        """End the servers. One worker calls it after all have left."""
        ...

    def close(self) -> None: ...


def raise_error(fields: Any) -> None:
    if isinstance(fields, dict) and "error" in fields:
        kind, text = fields["error"]
        raise getattr(errors, kind, RuntimeFailure)(text)


class PollingMailbox:
    """Sends and receives messages for a worker or a server, without blocking inside MPI."""

    def __init__(self, mail: Mailbox, communicator: MpiCommunicator):
        self._mail, self._communicator = mail, communicator
        self._checked = self._last_message = time.monotonic()

    def receive(self) -> list[tuple[int, np.ndarray]]:
        """Return messages that have arrived. If there are none, wait briefly."""
        with self._communicator.driving():
            arrived = self._mail.receive()
        now = time.monotonic()
        if arrived:
            self._last_message = now
            return arrived
        if now - self._last_message < _EAGER:
            os.sched_yield()
        else:
            time.sleep(min(max(_PAUSE, _PART * (now - self._last_message)), _LONGEST_PAUSE))
        if now - self._checked > _CHECK:
            self._checked = now
            if (reason := self._communicator.lost()) is not None:
                raise RuntimeFailure(reason)
        return []

    def dispatch(self, to: int, message: np.ndarray) -> bool:
        """Send a message and return at once. Return whether some messages are not sent completely."""
        with self._communicator.driving():
            self._mail.send(to, message)
            return self._mail.progress()


class MpiConnection(PollingMailbox):
    """A worker's connection to servers that are not replicated. first: rank of the first server."""

    def __init__(self, mail: Mailbox, communicator: MpiCommunicator, first: int, servers: int):
        super().__init__(mail, communicator)
        self.servers = servers
        self._first = first
        self._arrived: dict[int, list[np.ndarray]] = {}
        self._unsent = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sent_bytes(self) -> int:
        return self._mail.sent_bytes

    def send(self, server: int, message: np.ndarray) -> None:
        if self.dispatch(self._first + server, message):
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_rest, name="graphkit-servers", daemon=True)
                self._thread.start()
            self._unsent.set()

    def _send_rest(self) -> None:
        while True:
            self._unsent.wait()
            with self._communicator.driving():
                if not self._mail.progress():
                    self._unsent.clear()
            time.sleep(_PROGRESS)

    def answers(self, servers: Sequence[int], call: str) -> list[np.ndarray]:
        self._communicator.doing(call.encode())
        wanted = [self._first + server for server in servers]
        with self._communicator.waiting(True):
            while not all(self._arrived.get(source) for source in wanted):
                for source, message in self.receive():
                    self._arrived.setdefault(source, []).append(message)
            return [self._arrived[source].pop(0) for source in wanted]

    def leave(self) -> None: ...

    def end_servers(self) -> None:
        for server in range(self.servers):
            self.send(server, pack({"call": "end", "asks": True}))
        for answer in self.answers(range(self.servers), "end (servers)"):
            raise_error(unpack(answer)[0])

    def close(self) -> None:
        """Do nothing: MPI is finalised later."""


def connect(communicator: MpiCommunicator) -> MpiConnection:
    assert communicator.mail is not None, "the job has servers"
    first = communicator.processes - communicator.servers
    return MpiConnection(communicator.mail, communicator, first, communicator.servers)


def serve(communicator: MpiCommunicator) -> None:
    """Answer workers until the job ends. Raises RuntimeFailure if a rank is lost."""
    mail = communicator.mail
    assert mail is not None, "the job has servers"
    server = Server(communicator.processes - communicator.servers)
    mailbox = PollingMailbox(mail, communicator)
    while not server.ended:
        arrived: list[tuple[int, np.ndarray]] = []
        with communicator.waiting(False):
            while not arrived:
                arrived = mailbox.receive()
        for worker, message in arrived:
            communicator.doing(f"message of rank {worker}".encode())
            for to, answer in server.handle(worker, message):
                mailbox.dispatch(to, answer)
    with communicator.waiting(False):
        while mail.progress():
            time.sleep(_PAUSE)
