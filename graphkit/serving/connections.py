"""HTTP connections with limits of time and size that uvicorn does not have."""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from graphkit.serving.upgrades import ParserWithoutUpgrades

# Most bytes of the head of a request, and of what follows its body in chunks; seconds until the head is complete.
_HEAD_BYTES = 64 << 10
_HEAD_SECONDS = 10.0
# Seconds after an answer in which the next request of the client may be sent, but not read.
_ON_ITS_WAY = 0.3


# Seconds in which a connection beyond the limit must send its request, which is refused.
_REFUSED_SECONDS = 1.0
# The key in the scope of ASGI of a request on a connection beyond the limit.
REFUSED = "graphkit.refused"
# The key in the scope of ASGI of a function. It takes a callable, which is called if the connection is lost before the
# answer is sent.
WHEN_LOST = "graphkit.when_lost"


def protocol(timeout: float, max_connections: int, malformed: Callable[[str | None], None]) -> type[asyncio.Protocol]:
    """Return the class of connections.

    Args:
        timeout: Seconds for which a client may leave an answer unread.
        max_connections: Most connections. The requests of further ones have `REFUSED` in their scope.
        malformed: Called with the address of the client when a request gets status 400 because it is not HTTP.
    """
    shared = _Shared(timeout, max_connections, malformed)
    return type("Connection", (_Connection,), {"shared": shared})


def accepted(connections: Any) -> int:
    """Return the number of connections below the limit. connections: their class, which `protocol` has made."""
    return int(connections.shared.accepted)


def may_have_sent(connection: asyncio.Protocol) -> bool:
    """Return whether a request may be on its way: no request has come, or the last answer is not old."""
    if not isinstance(connection, _Connection):
        return False
    cycle = connection.cycle
    return cycle is None or (cycle.response_complete and time.monotonic() - connection.answered < _ON_ITS_WAY)


@dataclass
class _Shared:
    """State of all connections of a server. See `protocol`. accepted: number of connections below the limit."""

    timeout: float
    max_connections: int
    malformed: Callable[[str | None], None]
    accepted: int = 0


class _Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too large or too slow, or an answer is not read."""

    shared: _Shared
    answered = 0.0  # when the last answer was sent
    _head_timer: TimerHandle | None = None
    _unread_timer: TimerHandle | None = None
    _unused_bytes = 0  # of a head, or since the last byte of a body
    _in_head = True
    _accepted = False
    _waiting: Sequence[Callable[[], None]] = ()  # called if the connection is lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        parser: Any = ParserWithoutUpgrades(self, self._head_without_upgrade)
        self.parser = parser
        if self.shared.accepted < self.shared.max_connections:
            self._accepted = True
            self.shared.accepted += 1
            self._expect_head(_HEAD_SECONDS)
        else:
            self.app = _refusing(self.app)
            self._expect_head(_REFUSED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._accepted:
            self._accepted = False
            self.shared.accepted -= 1
        self._cancel_head()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
        super().connection_lost(exc)
        for call in self._waiting:
            call()
        self._waiting = ()

    def data_received(self, data: bytes) -> None:
        self._unused_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unused_bytes > _HEAD_BYTES:
            part = "head" if self._in_head else "end"
            self.send_400_response(f"The {part} of the request has more than {_HEAD_BYTES} bytes.")
        elif self._is_idle() and self.timeout_keep_alive_task is None:
            # These bytes begin no request: the rest of a body, or line ends. They do not make the connection last.
            left = self.answered + self.timeout_keep_alive - time.monotonic()
            self.timeout_keep_alive_task = self.loop.call_later(max(left, 0.0), self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._expect_head(_HEAD_SECONDS)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it follows a body in chunks
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_offer():
            return
        self._in_head = False
        self._unused_bytes = 0
        self._cancel_head()
        scope: Any = self.scope
        scope[WHEN_LOST] = self._when_lost
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unused_bytes = 0
        cycle: Any = self.cycle
        if not cycle.body:
            cycle.body = b""  # unlike a bytearray, it becomes the first part of the body without a copy
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_offer():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._waiting = ()
        super().on_response_complete()
        self.answered = time.monotonic()
        if self.transport.get_write_buffer_size():
            if self._unread_timer is not None:
                self._unread_timer.cancel()
            self._unread_timer = self.loop.call_later(self.shared.timeout, self._abort_unread)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, and close the connection."""
        body = json.dumps({"error": msg}).encode()
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()
        self.shared.malformed(self.client[0] if self.client else None)

    def _is_offer(self) -> bool:
        parser: Any = self.parser
        return bool(parser.is_offer)

    def _head_without_upgrade(self) -> bytes:
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([first, *lines, b"", b""])

    def _is_idle(self) -> bool:
        """Return whether the last request was answered, and no other one has begun."""
        return not self._in_head and self.cycle is not None and self.cycle.response_complete

    def _expect_head(self, seconds: float) -> None:
        self._in_head, self._unused_bytes = True, 0
        self._cancel_head()
        self._head_timer = self.loop.call_later(seconds, self._close_slow)

    def _close_slow(self) -> None:
        if not self._unused_bytes:
            self.transport.close()  # the client has sent nothing, so it expects no answer
        elif not self.transport.is_closing():
            self.send_400_response("The head of the request did not arrive in time.")

    def _when_lost(self, call: Callable[[], None]) -> None:
        if self.transport.is_closing():
            call()
        else:
            self._waiting = (*self._waiting, call)

    def _abort_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _cancel_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def _refusing(app: ASGIApp) -> ASGIApp:
    """Return an application that marks requests as refused."""

    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, REFUSED: True}, receive, send)

    return marked
