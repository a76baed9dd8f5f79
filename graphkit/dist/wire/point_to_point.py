"""Messages between processes over MPI. No call blocks inside MPI."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

# With more ranks, MPI's own all-gather sends fewer messages.
MOST_RANKS = 8
_TAG = 1


class PersistentAllgather:
    """All-gathers messages of a fixed number of bytes. Only one thread at a time may call it.

    Args:
        comm: MPI communicator that nothing else uses.
        complete: Waits for a request, given the objects that it uses.
    """

    def __init__(self, comm: Any, byte: Any, length: int, complete: Callable[..., None]):
        self._rank, self._complete = comm.rank, complete
        self._mine = bytearray(length)
        others = [rank for rank in range(comm.size) if rank != self._rank]
        self._received = {rank: np.zeros(length, np.uint8) for rank in others}
        self._receives = [comm.Recv_init([self._received[rank], byte], rank, _TAG) for rank in others]
        self._sends = [comm.Send_init([self._mine, byte], rank, _TAG) for rank in others]

    def __call__(self, mine: bytes) -> list[bytes]:
        self._mine[:] = mine
        for request in self._receives:
            request.Start()
        for request in self._sends:
            request.Start()
        for request in (*self._receives, *self._sends):
            if not request.Test():
                self._complete(request, self)
        found = [data.tobytes() for data in self._received.values()]
        found.insert(self._rank, mine)
        return found


class Mailbox:
    """Sends messages to other ranks and receives theirs, in order. Only one thread at a time may call it.

    A message is a uint8 vector, which must not change until it has been sent.

    Args:
        comm: MPI communicator that nothing else uses.
        status: Creates an empty MPI.Status.
    """

    def __init__(self, comm: Any, status: Callable[[], Any], byte: Any):
        self._comm, self._status, self._byte = comm, status, byte
        self._outgoing: list[tuple[Any, np.ndarray]] = []
        self._incoming: dict[int, deque[tuple[Any, np.ndarray]]] = {}
        self.sent_bytes = 0

    def send(self, to: int, message: np.ndarray) -> None:
        self.sent_bytes += message.nbytes
        self._outgoing.append((self._comm.Isend([message, self._byte], dest=to, tag=_TAG), message))
        self.progress()

    def progress(self) -> bool:
        """Let messages progress. Return whether some are not sent completely."""
        self._outgoing = [(request, message) for request, message in self._outgoing if not request.Test()]
        return bool(self._outgoing)

    def receive(self) -> list[tuple[int, np.ndarray]]:
        """Return complete messages with their sources, in the order in which each source sent them."""
        self.progress()
        status = self._status()
        while (found := self._comm.Improbe(tag=_TAG, status=status)) is not None:
            message = np.empty(status.Get_count(self._byte), np.uint8)
            queue = self._incoming.setdefault(status.Get_source(), deque())
            queue.append((found.Irecv([message, self._byte]), message))
        arrived = []
        for source, queue in self._incoming.items():
            while queue and queue[0][0].Test():
                arrived.append((source, queue.popleft()[1]))
        return arrived
