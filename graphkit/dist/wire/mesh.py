"""Connections between processes that survive the loss of a process.

MPI never frees the buffers of messages to a dead process: after some of them, the sender can send nothing more. A
socket reports at once that the other end has died.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import os
import secrets
import select
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.named_tuples import NamedTuple

_HEADER = struct.Struct("<BxHIqQ")
# Bytes of the secret of the job. A greeting contains the rank and the secret.
_SECRET = 32
_HELLO = struct.Struct(f"<I{_SECRET}s")
# Seconds between a connection and its greeting.
_GREETING = 10.0
# Bytes that are read from one connection at a time: every connection gets its turn.
_TURN = 8 << 20
_NOTHING = np.empty(0, np.uint8)


class FrameKind(IntEnum):
    MESSAGE = 1  # from a worker to the leader of a part
    ANSWER = 2
    ACKNOWLEDGED = 3  # to a worker: its messages up to this number cannot be lost
    FORWARD = 4  # a worker's message, from the leader to the follower of a part
    APPLIED = 5  # the number of messages that a follower has applied
    SNAPSHOT = 6  # the state of a part, to its new follower
    END = 7
    LOST = 8  # `number` is the rank of a lost server
    FAILED = 9  # the job has failed; `number` is its exit code
    GOODBYE = 10  # the last frame before an orderly end


class Frame(NamedTuple):
    """A message on a connection. Part, worker and number depend on the kind. data: uint8."""

    kind: FrameKind
    part: int = 0
    worker: int = 0
    number: int = 0
    data: np.ndarray = _NOTHING


class Address(NamedTuple):
    """The address of a listening process: a path for its own host; host names and a port for other hosts."""

    path: str
    names: tuple[str, ...]
    port: int


class _Connection:
    """One connection: frames to be sent, and the received part of the current frame."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        self.socket = connection
        self.outgoing: deque[memoryview] = deque()
        self.ending = False  # whether the other end has sent GOODBYE
        self._header, self._data = bytearray(_HEADER.size), _NOTHING
        self._buffer, self._received = memoryview(self._header), 0
        self._in_header = True

    def flush(self) -> None:
        """Send as much as the socket takes at once.

        If the other end is gone, frames are dropped, and `read` reports the loss.
        """
        try:
            while self.outgoing:
                sent = self.socket.sendmsg(list(self.outgoing)[:16])
                while self.outgoing and sent >= len(self.outgoing[0]):
                    sent -= len(self.outgoing.popleft())
                if sent:
                    self.outgoing[0] = self.outgoing[0][sent:]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.outgoing.clear()

    def read(self) -> Iterator[Frame | None]:
        taken = 0
        while True:
            if self._received == len(self._buffer):
                if (frame := self._complete_frame()) is not None:
                    yield frame
                continue
            if taken >= _TURN:
                return
            try:
                count = self.socket.recv_into(self._buffer[self._received :])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
            if not count:
                yield None
                return
            self._received += count
            taken += count

    def _complete_frame(self) -> Frame | None:
        kind, part, worker, number, size = _HEADER.unpack(self._header)
        if self._in_header:
            self._data = np.empty(size, np.uint8)
            self._buffer, self._received, self._in_header = self._data.data, 0, False
            if size:
                return None
        found = Frame(FrameKind(kind), part, worker, number, self._data)
        self._data = _NOTHING
        self._buffer, self._received, self._in_header = memoryview(self._header), 0, True
        return found


class Mesh:
    """Sends frames to ranks and receives theirs, over one connection per rank.

    Any thread may send; one thread receives. sockets: a connected socket for each rank.
    """

    def __init__(self, sockets: dict[int, socket.socket]):
        self._connections = {rank: _Connection(connection) for rank, connection in sockets.items()}
        self._lock = threading.Lock()
        self._awake, self._wake = os.pipe()
        os.set_blocking(self._awake, False)
        os.set_blocking(self._wake, False)
        self.sent_bytes = 0

    @property
    def ranks(self) -> list[int]:
        with self._lock:
            return list(self._connections)

    def send(self, to: int, frame: Frame) -> None:
        """Queue a frame and return at once. Frames to a rank that is gone are dropped."""
        header = _HEADER.pack(frame.kind, frame.part, frame.worker, frame.number, frame.data.nbytes)
        with self._lock:
            self.sent_bytes += len(header) + frame.data.nbytes
            connection = self._connections.get(to)
            if connection is None:
                return
            connection.outgoing.append(memoryview(header))
            if frame.data.nbytes:
                connection.outgoing.append(frame.data.data)
            connection.flush()
            waits = bool(connection.outgoing)
        if waits:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"x")

    def receive(self, seconds: float) -> list[tuple[int, Frame | None]]:
        """Return frames, each with the rank that sent it. Wait at most `seconds`.

        If a connection ends, the last frame of its rank is None, unless the rank sent GOODBYE before.
        """
        poll = select.poll()
        with self._lock:
            by_number = {each.socket.fileno(): (rank, each) for rank, each in self._connections.items()}
            for number, (_, connection) in by_number.items():
                poll.register(number, select.POLLIN | (select.POLLOUT if connection.outgoing else 0))
        poll.register(self._awake, select.POLLIN)
        found: list[tuple[int, Frame | None]] = []
        for number, events in poll.poll(seconds * 1000):
            if number == self._awake:
                with contextlib.suppress(BlockingIOError):
                    os.read(number, 4096)
                continue
            rank, connection = by_number[number]
            if events & select.POLLOUT:
                with self._lock:
                    connection.flush()
            if events & ~select.POLLOUT:
                found += self._read(rank, connection)
        return found

    def _read(self, rank: int, connection: _Connection) -> Iterator[tuple[int, Frame | None]]:
        for frame in connection.read():
            if frame is not None and frame.kind == FrameKind.GOODBYE:
                connection.ending = True
            elif frame is not None:
                yield rank, frame
            else:
                self.close_to(rank)
                if not connection.ending:
                    yield rank, None

    def close_to(self, rank: int) -> None:
        with self._lock:
            connection = self._connections.pop(rank, None)
        if connection is not None:
            connection.socket.close()

    def disconnect(self, rank: int) -> list[Frame]:
        """Close the connection to a rank that may still run; return the frames that it had sent."""
        found: list[Frame] = []
        while (connection := self._connections.get(rank)) is not None:
            more = [frame for _, frame in self._read(rank, connection) if frame is not None]
            found += more
            if not more:
                self.close_to(rank)
        return found

    def close(self, seconds: float, last_frame: Frame | None = None) -> None:
        """Send queued frames and a last frame to all ranks, then close all connections, within this time."""
        deadline = time.monotonic() + seconds
        for rank in self.ranks:
            self.send(rank, last_frame or Frame(FrameKind.GOODBYE))
        while (left := self._left()) and (wait := deadline - time.monotonic()) > 0:
            _ready(left, select.POLLOUT, wait)
            with self._lock:
                for connection in self._connections.values():
                    connection.flush()
        for rank in self.ranks:
            self.close_to(rank)

    def _left(self) -> list[socket.socket]:
        with self._lock:
            return [connection.socket for connection in self._connections.values() if connection.outgoing]


class Listener:
    """Context that accepts connections from other processes.

    A process must know the secret of the job. expected: how many processes will connect.
    """

    def __init__(self, for_other_hosts: bool, expected: int):
        inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sockets = [inside]
        self._folder, path = _new_socket_name()
        try:
            inside.bind(path)
        except OSError as error:
            self.__exit__()
            raise RuntimeFailure(f"processes of this host cannot connect at {_shown(path)}: {error}") from None
        names: tuple[str, ...] = ()
        port = 0
        if for_other_hosts:
            outside = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            outside.bind(("", 0))
            self._sockets.append(outside)
            names, port = _host_names(), outside.getsockname()[1]
        for listening in self._sockets:
            listening.listen(expected + 8)
        self.address = Address(path, names, port)

    def accept(self, ranks: Iterable[int], secret: bytes, seconds: float) -> dict[int, socket.socket]:
        """Return a connection from each of these ranks. Raises RuntimeFailure if one does not connect in this time."""
        missing, found = set(ranks), {}
        deadline = time.monotonic() + seconds
        while missing:
            ready = _ready(self._sockets, select.POLLIN, deadline - time.monotonic())
            if not ready:
                raise RuntimeFailure(f"no connection from rank {', '.join(map(str, sorted(missing)))} in {seconds:g} s")
            for listening in ready:
                connection = listening.accept()[0]
                rank = _greeted_rank(connection, secret)
                if rank in missing:
                    missing.discard(rank)
                    found[rank] = _configured(connection)
                else:
                    connection.close()
        return found

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        for listening in self._sockets:
            listening.close()
        if self._folder is not None:
            self._folder.cleanup()


def connect(mine: int, address: Address, same_host: bool, secret: bytes, seconds: float) -> socket.socket:
    """Return a connection to a listening process. Raises RuntimeFailure if there is none within this time."""
    tried = []
    ways: list[tuple[int, Any]] = [(socket.AF_UNIX, address.path)] if same_host else []
    ways += [(socket.AF_INET, (name, address.port)) for name in address.names if not same_host]
    for family, place in ways:
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(None if math.isinf(seconds) else seconds)
        try:
            connection.connect(place)
            connection.sendall(_HELLO.pack(mine, secret))
            if _read_exactly(connection, _SECRET) != _answer_to(secret):
                raise OSError("another program listens at this address")
        except OSError as error:
            tried.append(f"{_shown(place)}: {error}")
            connection.close()
            continue
        return _configured(connection)
    raise RuntimeFailure(f"rank {mine} cannot connect to another process: {'; '.join(tried)}")


def _new_socket_name() -> tuple[tempfile.TemporaryDirectory[str] | None, str]:
    """Return (folder, name) for a new socket.

    On Linux, the name is abstract and needs no folder. On other systems, it is a path in a new temporary folder.
    """
    if sys.platform == "linux":
        return None, f"\0graphkit-{secrets.token_hex(16)}"
    folder = tempfile.TemporaryDirectory(prefix="graphkit-")
    return folder, str(Path(folder.name) / "in")


def _shown(place: object) -> str:
    return str(place).replace("\0", "@")


def _ready(sockets: Sequence[socket.socket], event: int, seconds: float) -> list[socket.socket]:
    """Return the sockets that can be read (POLLIN) or written (POLLOUT), or have ended, after at most this time."""
    poll = select.poll()
    by_number = {each.fileno(): each for each in sockets}
    for number in by_number:
        poll.register(number, event)
    wait = None if math.isinf(seconds) else 1000 * max(0.0, seconds)
    return [by_number[number] for number, _ in poll.poll(wait)]


def _greeted_rank(connection: socket.socket, secret: bytes) -> int | None:
    """Return the rank of a process that has connected; None if it does not know the secret."""
    connection.settimeout(_GREETING)
    try:
        rank, word = _HELLO.unpack(_read_exactly(connection, _HELLO.size))
        if not hmac.compare_digest(word, secret):
            return None
        connection.sendall(_answer_to(secret))
    except OSError:
        return None
    return int(rank)


def _answer_to(secret: bytes) -> bytes:
    return hmac.digest(secret, b"graphkit", "sha256")


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise OSError("the connection has ended")
        found += part
    return found


def _configured(connection: socket.socket) -> socket.socket:
    connection.settimeout(None)
    if connection.family == socket.AF_INET:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _host_names() -> tuple[str, ...]:
    name = socket.gethostname()
    found = [name]
    with contextlib.suppress(OSError):
        found += [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, socket.AF_INET)]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("10.255.255.255", 9))  # sends nothing: it selects the interface to other hosts
        found.append(probe.getsockname()[0])
    return tuple(dict.fromkeys(found))


def open_mesh(
    rank: int, servers: Sequence[int], workers: Sequence[int], hosts: dict[int, Any],
    allgather_objects: Callable[[Any], list[Any]], seconds: float,
) -> Mesh:  # fmt: skip
    """Collective: connect every server with every other process.

    Args:
        allgather_objects: All-gathers a value of each process, through MPI.
        seconds: How long to wait for another process.
    """
    several = len(set(hosts.values())) > 1
    word = os.urandom(_SECRET)
    with contextlib.ExitStack() as stack:
        listener = None
        before = [*workers, *(server for server in servers if server < rank)] if rank in servers else []
        if before:
            listener = stack.enter_context(Listener(several, len(before)))
        contacts = allgather_objects((word, None if listener is None else listener.address))
        secret = contacts[0][0]
        # Every server first connects to the servers of higher rank, then accepts connections. This cannot deadlock: the
        # last server only accepts.
        sockets = {
            to: connect(rank, contacts[to][1], hosts[to] == hosts[rank], secret, seconds)
            for to in reversed(servers)
            if to > rank
        }
        if listener is not None:
            sockets |= listener.accept(before, secret, seconds)
        return Mesh(sockets)
