"""Messages between two processes, in order, of which neither blocks inside of MPI."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

_TAG = 1


class Mail:
    """Sends to and receives from the processes of a communicator that nothing else sends on.

    status: makes an empty status of MPI's; `byte`: MPI's type of a byte. One thread at a time calls it. A message is
    uint8, and stays as it is until it has left.
    """

    def __init__(self, comm: Any, status: Callable[[], Any], byte: Any):
        self._comm, self._status, self._byte = comm, status, byte
        self._leaving: list[tuple[Any, np.ndarray]] = []
        # By source, what arrives, in order: one that is large is behind its announcement for a while.
        self._arriving: dict[int, deque[tuple[Any, np.ndarray]]] = {}
        self.sent_bytes = 0

    def send(self, to: int, message: np.ndarray) -> None:
        self.sent_bytes += message.nbytes
        self._leaving.append((self._comm.Isend([message, self._byte], dest=to, tag=_TAG), message))
        self.progress()

    def progress(self) -> bool:
        """Let what is on its way go on; whether something is."""
        self._leaving = [(request, message) for request, message in self._leaving if not request.Test()]
        return bool(self._leaving)

    def receive(self) -> list[tuple[int, np.ndarray]]:
        """What has come, with its source; messages of one source in the order in which they were sent."""
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
