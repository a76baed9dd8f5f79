"""Small messages from each process to each other one, over requests that are made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# More processes exchange by MPI's own collective, whose messages do not grow with the square of their number.
MOST = 8
_TAG = 1


class Exchange:
    """Of messages of so many bytes between the processes of a communicator, on which nothing else is sent.

    byte: MPI's type of a byte. complete: waits for a request, which uses these objects. One thread at a time calls it.
    """

    def __init__(self, comm: Any, byte: Any, length: int, complete: Callable[..., None]):
        self._rank, self._complete = comm.rank, complete
        self._mine = bytearray(length)
        others = [rank for rank in range(comm.size) if rank != self._rank]
        self._found = {rank: np.zeros(length, np.uint8) for rank in others}
        self._receives = [comm.Recv_init([self._found[rank], byte], rank, _TAG) for rank in others]
        self._sends = [comm.Send_init([self._mine, byte], rank, _TAG) for rank in others]

    def __call__(self, mine: bytes) -> list[bytes]:
        """The messages of all, by rank."""
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
