"""TLS handshakes of a server: bounded in number and in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Sequence

logger = logging.getLogger("graphkit.serve")

# Seconds in which a client must complete its handshake, and until the next try after an accept that failed.
_HANDSHAKE_SECONDS, _PAUSE = 10.0, 0.5
# Connections beyond the limit that may make a handshake, because their requests get an answer.
_REFUSED = 16


class Handshakes:
    """Accepts connections, and makes their TLS handshakes. Servers of asyncio neither count nor bound these.

    It has the methods of a server of asyncio that uvicorn calls.

    Args:
        listeners: Sockets that listen.
        context: The certificate and the key.
        factory: Makes the protocol of a connection after its handshake.
        accepted: Returns the number of connections whose handshakes are complete.
        most: Most connections and handshakes together. Further connections are closed.
    """

    def __init__(
        self, listeners: Sequence[socket.socket], context: ssl.SSLContext, factory: Callable[[], asyncio.Protocol],
        accepted: Callable[[], int], most: int,
    ):  # fmt: skip
        self._listeners, self._context, self._factory = listeners, context, factory
        self._accepted, self._most = accepted, most
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = True
        self._loop = asyncio.get_running_loop()
        for listener in listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)

    def __len__(self) -> int:
        """Return the number of handshakes in progress."""
        return len(self._tasks)

    def begin(self, connection: socket.socket) -> None:
        """Begin the handshake of a connection that was accepted. It is closed if there are too many."""
        if len(self._tasks) + self._accepted() >= self._most + _REFUSED:
            connection.close()
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._shake(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Accept no more connections. The sockets stay open, and handshakes continue."""
        if self._open:
            self._open = False
            for listener in self._listeners:
                self._loop.remove_reader(listener)

    async def wait_closed(self) -> None:
        """Wait for the handshakes in progress."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def _accept(self, listener: socket.socket) -> None:
        try:
            self.begin(listener.accept()[0])
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # the client has gone
        except OSError as error:  # such as too many open files
            logger.error("no connection can be accepted", extra={"error": str(error)})
            self._loop.remove_reader(listener)
            self._loop.call_later(_PAUSE, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if self._open:
            self._loop.add_reader(listener, self._accept, listener)

    async def _shake(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it failed, or took too long; the connection is closed
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )
