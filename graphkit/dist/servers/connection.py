"""Messages between workers and servers over MPI, with checks for lost ranks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from graphkit.dist.servers.server import Server
from graphkit.dist.wire.point_to_point import Mailbox
from graphkit.errors import RuntimeFailure

# After the last message: seconds during which the core is only yielded, and bounds of the pause after that. The pause
# is a small part of the time since the last message, so it hardly delays a message, and idle servers use no core.
_EAGER, _PAUSE, _LONGEST_PAUSE, _PART = 0.005, 2e-4, 5e-3, 1e-3
# Seconds between two checks for lost ranks, and between two calls that let messages progress.
_LOOK, _LEAVING = 0.05, 1e-3


class ServerConnection(Protocol):
    """A worker's connection to the servers."""

    servers: int

    @property
    def sent_bytes(self) -> int: ...
    def send(self, server: int, message: np.ndarray) -> None:
        """Send a message after earlier ones, and return at once."""
        ...

    def answers(self, servers: Sequence[int], call: str) -> list[np.ndarray]:
        """Return the next answer of each server. Raises RuntimeFailure if a rank is lost meanwhile."""
        ...


class Company(Protocol):
    """The processes of a job: which thread calls MPI, and heartbeats."""

    def driving(self) -> AbstractContextManager[None]:
        """Context in which no other thread calls MPI."""
        ...

    def doing(self, call: bytes) -> None: ...
    def waiting(self, for_steps: bool) -> AbstractContextManager[None]: ...
    def lost(self) -> str | None: ...


class PollingMailbox:
    """Sends and receives messages for a worker or a server, without blocking inside MPI."""

    def __init__(self, mail: Mailbox, company: Company):
        self._mail, self._company = mail, company
        self._looked = self._heard = time.monotonic()

    def receive(self) -> list[tuple[int, np.ndarray]]:
        """Return messages that have arrived; if there are none, wait briefly. Raises RuntimeFailure if a
        rank is lost.
        """
        with self._company.driving():
            come = self._mail.receive()
        now = time.monotonic()
        if come:
            self._heard = now
            return come
        if now - self._heard < _EAGER:
            os.sched_yield()
        else:
            time.sleep(min(max(_PAUSE, _PART * (now - self._heard)), _LONGEST_PAUSE))
        if now - self._looked > _LOOK:
            self._looked = now
            if (reason := self._company.lost()) is not None:
                raise RuntimeFailure(reason)
        return []

    def dispatch(self, to: int, message: np.ndarray) -> bool:
        """Send a message and return at once. Return whether some messages are not sent completely."""
        with self._company.driving():
            self._mail.send(to, message)
            return self._mail.progress()


class MpiConnection(PollingMailbox):
    """A worker's connection to servers that are not replicated. first: rank of the first server."""

    def __init__(self, mail: Mailbox, company: Company, first: int, servers: int):
        super().__init__(mail, company)
        self.servers = servers
        self._first = first
        self._come: dict[int, list[np.ndarray]] = {}
        self._leaves = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def sent_bytes(self) -> int:
        return self._mail.sent_bytes

    def send(self, server: int, message: np.ndarray) -> None:
        if self.dispatch(self._first + server, message):
            if self._thread is None:
                self._thread = threading.Thread(target=self._see_off, name="graphkit-post", daemon=True)
                self._thread.start()
            self._leaves.set()

    def _see_off(self) -> None:
        """Let large messages progress while this process computes."""
        while True:
            self._leaves.wait()
            with self._company.driving():
                if not self._mail.progress():
                    self._leaves.clear()
            time.sleep(_LEAVING)

    def answers(self, servers: Sequence[int], call: str) -> list[np.ndarray]:
        self._company.doing(call.encode())
        wanted = [self._first + server for server in servers]
        with self._company.waiting(True):
            while not all(self._come.get(source) for source in wanted):
                for source, message in self.receive():
                    self._come.setdefault(source, []).append(message)
            return [self._come[source].pop(0) for source in wanted]


def serve(server: Server, mail: Mailbox, company: Company) -> None:
    """Answer workers until the job ends. Raises RuntimeFailure if a rank is lost."""
    post = PollingMailbox(mail, company)
    while not server.ended:
        come: list[tuple[int, np.ndarray]] = []
        with company.waiting(False):
            while not come:
                come = post.receive()
        for worker, message in come:
            company.doing(f"message of rank {worker}".encode())
            for to, answer in server.handle(worker, message):
                post.dispatch(to, answer)
    with company.waiting(False):
        while mail.progress():
            time.sleep(_PAUSE)
