"""A server: it listens, answers until a signal or `stop`, and ends without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from graphkit.errors import InputError, RuntimeFailure
from graphkit.serving.application import Application
from graphkit.serving.connections import accepted, may_have_sent, protocol
from graphkit.serving.guard import Access
from graphkit.serving.handshakes import Handshakes
from graphkit.serving.hang_up import HANG_UP
from graphkit.serving.repository import ModelRepository
from graphkit.serving.settings import check_seconds

logger = logging.getLogger("graphkit.serve")

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
# Connections that the system accepts before the server does.
_BACKLOG = 2048
# Seconds after which a connection without requests is closed.
_KEEP_ALIVE = 75
# Seconds after which a thread of Python lets another one continue. The default of Python is 0.005.
_SWITCH_SECONDS = 0.001
# While the server stops: seconds in which requests on connections that it accepted are read, and between two looks.
_LAST_REQUESTS, _POLL = 1.0, 0.05


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    if host in _LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def access_for(host: str, api_key: str | None) -> Access:
    """Return the access to a server that listens on `host`."""
    names = _LOOPBACK | {host} if is_loopback(host) and api_key is None else None
    return Access(api_key, names)


class Server:
    """Serves the models of a repository. It listens from the start; `run` answers.

    Args:
        repository: The models. `run` loads those that are not loaded.
        host: Address to listen on.
        port: Port; 0 for any free one.
        api_key: Key that every request must have.
        tls: Files of the certificate and its key; None for HTTP without TLS.
        drain: Seconds after SIGTERM in which new connections are still accepted. Their answers close them.

    Attributes:
        url: Address of the server.

    Raises:
        RuntimeFailure: The port is in use, or may not be used.
        InputError: The certificate cannot be read.
        UsageError: `drain` is not a number of seconds.
    """

    def __init__(
        self,
        repository: ModelRepository,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        api_key: str | None = None,
        tls: tuple[Path, Path] | None = None,
        drain: float = 1.0,
    ):
        check_seconds("drain", drain)
        if tls is not None:
            _check_certificate(*tls)
        self._repository = repository
        self.application = Application(repository, access_for(host, api_key))
        self._socket = _listening(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'http' if tls is None else 'https'}://{shown}:{self._socket.getsockname()[1]}"
        settings = repository.settings
        connections = protocol(settings.timeout, settings.max_connections, self.application.guard.malformed)
        config = uvicorn.Config(
            self.application, http=connections, loop="auto", ws="none", lifespan="off",
            interface="asgi3", log_config=None, access_log=False, proxy_headers=False, server_header=False,
            backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=math.ceil(settings.timeout) + 1,
            ssl_certfile=None if tls is None else tls[0], ssl_keyfile=None if tls is None else tls[1],
        )  # fmt: skip
        self._server = _Signalled(config, self.application, drain)
        if not is_loopback(host) and api_key is None:
            logger.warning(
                "everyone who reaches this host can use the server; set an API key (--api-key-file)",
                extra={"host": host},
            )

    def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Load the models, and answer requests until SIGTERM, SIGINT or `stop`. SIGHUP loads all models again.

        Requests that were received are answered before this returns.

        Args:
            started: Called when the server answers.

        Raises:
            GraphkitError: A model cannot be loaded.
        """
        try:
            self._server.started_by = lambda: self._started(started)
            with HANG_UP, _fast_switches():
                self._repository.load_all()
                self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._repository.close()
        logger.info("stopped", extra={"answered": self.application.guard.answered})

    def stop(self) -> None:
        """End `run`, as SIGTERM does. Any thread may call this."""
        self._server.drain()

    def _started(self, then: Callable[[], None]) -> None:
        logger.info("listening", extra={"url": self.url})
        then()


class _Signalled(uvicorn.Server):
    """A server of uvicorn that drains after SIGTERM, loads models again after SIGHUP, and returns after both."""

    def __init__(self, config: uvicorn.Config, application: Application, drain: float):
        super().__init__(config)
        self.started_by: Callable[[], None] = lambda: None
        self._application, self._drain = application, drain
        self._ends: float | None = None  # when listening ends, in monotonic seconds
        self._handshakes: Handshakes | None = None  # with TLS
        self._reloading: asyncio.Future[None] | None = None

    def drain(self) -> None:
        """Begin to stop."""
        if self._ends is None:
            self._application.drain()
            self._ends = time.monotonic() + self._drain

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT while the server runs, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {signal.SIGTERM: self._terminate, signal.SIGINT: self._interrupt}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        context = self.config.ssl
        if context is None or sockets is None:
            await super().startup(sockets)
        else:
            most = self._application.repository.settings.max_connections
            made = partial(accepted, self.config.http_protocol_class)
            self._handshakes = Handshakes(sockets, context, self._connection, made, most)
            servers: list[Any] = [self._handshakes]
            self.servers, self.started = servers, True
        self.started_by()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times per second. Return whether to stop listening."""
        if self._reloading is None and HANG_UP.take():
            loop = asyncio.get_running_loop()
            self._reloading = loop.run_in_executor(None, self._application.repository.reload)
        if self._reloading is not None and self._reloading.done():
            if (error := self._reloading.exception()) is not None:
                logger.error("reload failed", exc_info=error)
            self._reloading = None
        if self._ends is not None and time.monotonic() >= self._ends:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer the requests of all connections that were accepted, and close them."""
        logger.info("stopping", extra={"in_progress": self._application.guard.in_progress})
        self._application.drain()
        await self._accept_last(sockets or [])
        until = time.monotonic() + _LAST_REQUESTS
        await asyncio.sleep(_POLL)
        while time.monotonic() < until and (self._handshakes or any(map(may_have_sent, self.server_state.connections))):
            await asyncio.sleep(_POLL)
        await super().shutdown(sockets)

    async def _accept_last(self, sockets: Sequence[socket.socket]) -> None:
        """Accept the connections that wait in the system's queue, and stop listening at once: closing resets them."""
        waiting: list[socket.socket] = []
        kept = [listener.dup() for listener in sockets]  # still listen when the event loop has closed its own
        for server in self.servers:
            server.close()
        for listener in sockets:
            listener.close()
        for listener in kept:
            listener.setblocking(False)
            with contextlib.suppress(OSError):  # nothing more waits
                while True:
                    waiting.append(listener.accept()[0])
            listener.close()
        for connection in waiting:
            if self._handshakes is not None:
                self._handshakes.begin(connection)
                continue
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # the client has gone
                await asyncio.get_running_loop().connect_accepted_socket(self._connection, connection)

    def _connection(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        found: asyncio.Protocol = made(config=self.config, server_state=self.server_state, app_state={})
        return found

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.drain()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True


@contextlib.contextmanager
def _fast_switches() -> Iterator[None]:
    """Let the threads of models take the interpreter sooner while the block runs.

    At the ends of a run, the thread waits for the event loop as long as the switch interval, and the processor is idle.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RuntimeFailure(
            f"cannot listen on {host}, port {port}: {reason or error}; choose another --port or --host"
        ) from None


def _check_certificate(certificate: Path, key: Path) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"the certificate {certificate} with the key {key} cannot be used: {error.strerror or error}. Both must be "
            "PEM files, and the key must not be encrypted"
        ) from None
