"""Bounds of the requests in progress, and of the bytes of their bodies."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope

from graphkit.errors import InputError
from graphkit.serving.errors import Busy, Disconnected, SlowRequest, TooLarge
from graphkit.serving.metrics import Metrics
from graphkit.serving.settings import Settings

# The key of a Record in the scope of ASGI.
RECORD = "graphkit.record"


@dataclass(slots=True)
class Record:
    """Facts about a request.

    Attributes:
        begun, deadline: Monotonic seconds.
        headers: The first value of each header, by name in lower case.
        status, sent: Status of the answer, and bytes of its body.
        fields: For its line in the log.
    """

    begun: float
    deadline: float
    headers: Mapping[bytes, bytes]
    status: int = 0
    sent: int = 0
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class Ticket:
    """Counts one request in progress, and its bytes, in a `with` block."""

    def __init__(self, admission: Admission):
        self._admission = admission
        self._held = 0

    def __enter__(self) -> Ticket:
        self._admission.requests += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._admission.requests -= 1
        self._admission.hold(-self._held)

    def hold(self, size: int) -> None:
        """Count further bytes. Raises Busy if all requests together hold too many."""
        self._admission.hold(size)
        self._held += size


class Admission:
    """Lets requests in while there is room. Only the thread of the event loop may call the methods.

    requests: Number of requests in progress.
    """

    def __init__(self, settings: Settings, metrics: Metrics):
        self._settings = settings
        self.requests = self._bytes = 0
        metrics.pending_bytes.set_function(lambda: self._bytes)

    def request(self) -> Ticket:
        """Return a ticket for a `with` block, which counts the request. Raises Busy if there are too many."""
        if self.requests >= self._settings.max_queue:
            raise Busy(f"{self.requests} requests are in progress (--max-queue); retry later")
        return Ticket(self)

    def hold(self, size: int) -> None:
        """Change the number of bytes in progress. Raises Busy if there are too many."""
        if size > 0 and self._bytes + size > self._settings.max_pending:
            raise Busy(f"the requests in progress hold {self._bytes} bytes (--max-pending); retry later")
        self._bytes += size

    async def body(self, scope: Scope, receive: Receive, ticket: Ticket) -> bytes:
        """Return the body of a request, decompressed.

        Raises:
            TooLarge: It is larger than the limit.
            SlowRequest: It does not arrive before the deadline.
            Disconnected: The client closed the connection.
            InputError: Its compression is unknown or damaged.
        """
        most = self._settings.max_body
        record: Record = scope[RECORD]
        announced = record.headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > most:
            raise _too_large(int(announced), most)
        parts: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(record.left):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected(f"the client closed the connection after {size} bytes of the body")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    if size > most:
                        raise _too_large(size, most)
                    ticket.hold(len(part))
                    parts.append(part)
        except TimeoutError:
            raise SlowRequest(f"only {size} bytes of the body arrived within the time limit (--timeout)") from None
        record.fields["bytes"] = size
        body = b"".join(parts)
        parts.clear()
        encoding = record.headers.get(b"content-encoding", b"identity").decode("latin-1").lower()
        if encoding == "identity":
            return body
        found = await asyncio.to_thread(decompressed, body, encoding, most)
        ticket.hold(len(found))
        return found


def decompressed(body: bytes, encoding: str, most: int) -> bytes:
    """Return the content of a compressed body. Raises TooLarge above `most` bytes, InputError if it is damaged."""
    if encoding not in ("gzip", "deflate"):
        raise InputError(f"Content-Encoding: {encoding!r} is not supported; use gzip or deflate")
    decoder = zlib.decompressobj(wbits=31 if encoding == "gzip" else 15)
    try:
        found = decoder.decompress(body, most + 1)
    except zlib.error as error:
        raise InputError(f"the body is not valid {encoding}: {error}") from None
    if len(found) > most:
        raise _too_large(len(found), most)
    if not decoder.eof or decoder.unused_data:
        raise InputError(f"the body is not one complete {encoding} stream")
    return found


def _too_large(size: int, most: int) -> TooLarge:
    return TooLarge(f"the body has {size} bytes or more, and at most {most} are allowed (--max-body)")
