"""All-gathers of small messages with persistent requests of MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# With more ranks, MPI's own all-gather is used, which sends fewer messages.
MOST = 8
_TAG = 1


class Exchange:
    """All-gathers messages of a fixed number of bytes. Only one thread at a time may call it.

    Args:
        comm: MPI communicator that nothing else uses.
        byte: MPI's type of a byte.
        length: Bytes of a message.
        complete: Waits for a request, given the objects that the request uses.
    """

    def __init__(self, comm: Any, byte: Any, length: int, complete: Callable[..., None]):
        self._rank, self._complete = comm.rank, complete
        self._mine = bytearray(length)
        others = [rank for rank in range(comm.size) if rank != self._rank]
        self._found = {rank: np.zeros(length, np.uint8) for rank in others}
        self._receives = [comm.Recv_init([self._found[rank], byte], rank, _TAG) for rank in others]
        self._sends = [comm.Send_init([self._mine, byte], rank, _TAG) for rank in others]

    def __call__(self, mine: bytes) -> list[bytes]:
        """Return the messages of all ranks, by rank."""
        self._mine[:] = mine
        for request in self._receives:
            request.Start()
        for request in self._sends:
            request.Start()
        for request in (*self._receives, *self._sends):
            if not request.Test():
                self._complete(request, self)
        found = [data.tobytes() for data in self._found.values()]
        found.insert(self._rank, mine)
        return found
