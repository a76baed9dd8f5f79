"""HTTP connections with limits of time and size that uvicorn does not have."""

from __future__ import annotations

import asyncio
import time
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Most bytes of the head of a request, and seconds until it is complete.
_HEAD_BYTES = 64 << 10
_HEAD_SECONDS = 10.0
# Seconds after an answer in which the next request of the client may be sent, but not read.
_ON_ITS_WAY = 0.3


def protocol(timeout: float) -> type[asyncio.Protocol]:
    """Return the class of connections. timeout: seconds for which a client may leave an answer unread."""
    return type("Connection", (_Connection,), {"timeout": timeout})


def may_have_sent(connection: asyncio.Protocol) -> bool:
    """Return whether a request may be on its way: no request has come, or the last answer is not old."""
    if not isinstance(connection, _Connection):
        return False
    cycle = connection.cycle
    return cycle is None or (cycle.response_complete and time.monotonic() - connection.answered < _ON_ITS_WAY)


class _Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too large or too slow, or an answer is not read."""

    timeout = 30.0
    answered = 0.0  # when the last answer was sent
    _timer: TimerHandle | None = None
    _head_bytes = 0
    _in_head = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > _HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The head of the request has more than {_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._cancel()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.answered = time.monotonic()
        if self.transport.get_write_buffer_size():
            self._timer = self.loop.call_later(self.timeout, self._abort_unread)

    def _expect_head(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._cancel()
        self._timer = self.loop.call_later(_HEAD_SECONDS, self._close_slow)

    def _close_slow(self) -> None:
        if not self.transport.is_closing():
            self.send_400_response("The head of the request did not arrive in time.")

    def _abort_unread(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
