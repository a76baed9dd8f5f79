"""Messages between two processes that never block inside MPI."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

_TAG = 1


class Mail:
    """Sends messages to other ranks and receives theirs, in order. Only one thread at a time may call it.

    A message is a uint8 vector, and must not change until it has been sent.

    Args:
        comm: MPI communicator that nothing else uses.
        status: Makes an empty status of MPI.
        byte: MPI's type of a byte.
    """

    def __init__(self, comm: Any, status: Callable[[], Any], byte: Any):
        self._comm, self._status, self._byte = comm, status, byte
        self._leaving: list[tuple[Any, np.ndarray]] = []
        # By source, messages that are arriving, in order. A large one is announced some time before it is complete.
        self._arriving: dict[int, deque[tuple[Any, np.ndarray]]] = {}
        self.sent_bytes = 0

    def send(self, to: int, message: np.ndarray) -> None:
        """Start to send a message."""
        self.sent_bytes += message.nbytes
        self._leaving.append((self._comm.Isend([message, self._byte], dest=to, tag=_TAG), message))
        self.progress()

    def progress(self) -> bool:
        """Let messages progress. Return whether some are not sent completely."""
        self._leaving = [(request, message) for request, message in self._leaving if not request.Test()]
        return bool(self._leaving)

    def receive(self) -> list[tuple[int, np.ndarray]]:
        """Return complete messages with their sources. Messages of one source are in the order in which
        they were sent.
        """
        self.progress()
        status = self._status()
        while (found := self._comm.Improbe(tag=_TAG, status=status)) is not None:
            message = np.empty(status.Get_count(self._byte), np.uint8)
            queue = self._arriving.setdefault(status.Get_source(), deque())
            queue.append((found.Irecv([message, self._byte]), message))
        come = []
        for source, queue in self._arriving.items():
            while queue and queue[0][0].Test():
                come.append((source, queue.popleft()[1]))
        return come
