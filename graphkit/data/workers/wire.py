"""Messages between the training process and a worker, with file descriptors attached."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

# Header of a message: number of bytes, number of attached file descriptors.
_HEADER = struct.Struct("<QQ")

# Maximum number of file descriptors per message: SCM_MAX_FD of Linux.
_MOST_FILES = 253


class Closed(Exception):
    """The other side has ended."""


class Connection:
    """One end of a stream socket. Messages are pickled objects; both sides must run the same program."""

    def __init__(self, end: socket.socket):
        self._end = end
        # Unsent parts of posted messages, each with duplicates of the file descriptors that are still to be sent with
        # it.
        self._leaving: deque[tuple[memoryview, list[int]]] = deque()

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def leaving(self) -> bool:
        """Whether posted messages wait for the other side to read."""
        return bool(self._leaving)

    def send(self, message: Any) -> None:
        """Send a message; wait until the other side has room for it. Raises Closed if the other side has ended."""
        try:
            self._end.sendall(_packed(message, 0))
        except OSError as error:
            raise Closed(str(error)) from None

    def post(self, message: Any, files: Sequence[int] = ()) -> None:
        """Queue a message, and send what can be sent at once; `flush` sends the rest. `files` may be closed afterwards.

        The side that posts never waits until the other side reads. So the other side may wait in `send` without a
        deadlock.
        """
        data = _packed(message, len(files))
        self._leaving.append((memoryview(data), [os.dup(file) for file in files]))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent at once. If the other side has ended, drop the rest: `receive` will raise Closed."""
        try:
            while self._leaving:
                data, files = self._leaving[0]
                beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
                sent = self._end.sendmsg([data], beside, socket.MSG_DONTWAIT)
                # File descriptors are sent with the first byte.
                self._leaving.popleft()
                _close(files)
                if sent < len(data):
                    self._leaving.appendleft((data[sent:], []))
        except BlockingIOError:
            return
        except OSError:
            self._drop()

    def _drop(self) -> None:
        while self._leaving:
            _close(self._leaving.popleft()[1])

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for the next message; return it and its file descriptors, which the caller must close. Raises Closed."""
        try:
            head, files, _, _ = socket.recv_fds(self._end, _HEADER.size, _MOST_FILES)
            if not head:
                raise Closed("the other side has ended")
            head += self._whole(_HEADER.size - len(head))
            size, count = _HEADER.unpack(head)
            data = self._whole(size)
        except OSError as error:
            raise Closed(str(error)) from None
        assert len(files) == count, "files go with the header"
        for file in files:
            os.set_inheritable(file, False)
        return pickle.loads(data), files

    def _whole(self, size: int) -> bytearray:
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            count = self._end.recv_into(rest)
            if not count:
                raise Closed("the other side has ended")
            rest = rest[count:]
        return data

    def end(self) -> None:
        """Shut the socket down. Both sides notice this, even if another process also holds this end."""
        with contextlib.suppress(OSError):  # the other side has ended
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._drop()
        self._end.close()


def _packed(message: Any, files: int) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(data), files) + data


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
