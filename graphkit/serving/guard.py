"""The outer layer of the application: access, log lines, and the end of connections while the server stops."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphkit.errors import GraphkitError
from graphkit.serving.admission import RECORD, Record
from graphkit.serving.connections import REFUSED
from graphkit.serving.errors import (
    Busy,
    Disconnected,
    Forbidden,
    SlowRequest,
    TooLarge,
    Unauthorized,
    message_of,
    status_of,
)
from graphkit.serving.metrics import Metrics

logger = logging.getLogger("graphkit.serve")

# Paths that need no API key: the probes of orchestrators, and the page, which shows nothing without one.
_OPEN = frozenset({"/", "/v2/health/live", "/v2/health/ready"})


@dataclass(frozen=True)
class Access:
    """The clients that may use the server.

    Attributes:
        api_key: Key that requests must have; None for none.
        hosts: Names of the server that requests may use; None for any name. If it listens on the loopback interface
            only, this keeps out pages whose host name leads to it (DNS rebinding).
    """

    api_key: str | None = None
    hosts: frozenset[str] | None = None

    def check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Raise Unauthorized or Forbidden if a request may not be answered. headers: see `Record`."""
        host = _text(headers, b"host")
        if self.hosts is not None and host and _host_name(host) not in self.hosts:
            raise Forbidden(f"the server does not answer for the host {host!r}")
        origin = _text(headers, b"origin")
        if b"origin" in headers and _address(origin) != host:
            raise Forbidden(f"pages of {origin!r} may not send requests to this server")
        if self.api_key is None or path in _OPEN:
            return
        scheme, _, given = _text(headers, b"authorization").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else _text(headers, b"x-api-key")
        if not hmac.compare_digest(key.encode(), self.api_key.encode()):
            raise Unauthorized("the API key is missing or wrong: send the header Authorization: Bearer KEY")


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


@lru_cache(maxsize=64)
def _host_name(host: str) -> str | None:
    """Return the name in a Host header, without the port; None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # such as "[::1"
        return None


def _address(origin: str) -> str | None:
    """Return the host and the port in an Origin header; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def error_response(error: BaseException) -> JSONResponse:
    """Return the answer for a request that failed."""
    if isinstance(error, HTTPException):  # an unknown path, or a wrong method
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    status = status_of(error)
    headers: dict[str, str] = {}
    if status == 503:
        headers["Retry-After"] = "1"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, (Unauthorized, Forbidden, TooLarge, SlowRequest, Disconnected)):
        headers["Connection"] = "close"  # the rest of the body is not read
    message = message_of(error).encode(errors="backslashreplace").decode()  # paths may not be UTF-8
    return JSONResponse({"error": message}, status, headers)


class Guard:
    """Wraps the application.

    Attributes:
        draining: Whether every answer closes its connection, because the server stops.
        in_progress: Number of requests in progress.
        answered: Number of all requests that were answered.
    """

    def __init__(self, app: ASGIApp, access: Access, timeout: float, metrics: Metrics):
        self._app, self._access, self._timeout, self._metrics = app, access, timeout, metrics
        self.draining = False
        self.in_progress = self.answered = 0
        metrics.in_progress.set_function(lambda: self.in_progress)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        headers = dict(reversed(scope["headers"]))  # the first of several with one name
        record = scope[RECORD] = Record(begun, begun + self._timeout, headers)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if self.draining or REFUSED in scope:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            else:
                record.sent += len(message.get("body", b""))
            await send(message)

        self.in_progress += 1
        try:
            await self._answer(scope, receive, sending)
        finally:
            self.in_progress -= 1
            self.answered += 1
            self._log(scope, record)

    def malformed(self, client: str | None) -> None:
        """Count and log a request that got status 400 because it is not HTTP. client: its address."""
        self.answered += 1
        self._metrics.count_response(400)
        logger.info("malformed request", extra={"status": 400, "client": client})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: Record = scope[RECORD]
        try:
            if REFUSED in scope:
                raise Busy("all connections of the server are in use (--max-connections); retry later")
            self._access.check(scope["path"], record.headers)
            await self._app(scope, receive, send)
        except Exception as error:
            if not record.status:
                if isinstance(error, HTTPException):
                    error.detail = f"{scope['method']} {scope['path']}: {error.detail}"
                await error_response(error)(scope, receive, send)
            if record.status >= 500:
                known = isinstance(error, GraphkitError)
                details = {"path": scope["path"], "error": str(error), **record.fields}
                logger.warning("request failed", extra=details, exc_info=None if known else error)

    def _log(self, scope: Scope, record: Record) -> None:
        self._metrics.count_response(record.status)
        level = logging.WARNING if record.status >= 500 else logging.INFO
        if not logger.isEnabledFor(level):
            return
        client = scope.get("client")
        # Not by `logger.log`, which looks for the line of the caller.
        line = logging.LogRecord(logger.name, level, __file__, 0, "request", None, None)
        line.__dict__ |= {
            "method": scope["method"], "path": scope["path"], "status": record.status,
            "seconds": round(time.monotonic() - record.begun, 6), "sent": record.sent,
            "client": client[0] if client else None, **record.fields,
        }  # fmt: skip
        logger.handle(line)
