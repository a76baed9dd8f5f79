"""Messages between the process that trains and one that makes samples, with files that come along."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

# Bytes of the message, and files beside it.
_HEADER = struct.Struct("<QQ")

# SCM_MAX_FD of Linux: more files do not go with one message.
_MOST_FILES = 253


class Closed(Exception):
    """The other side has ended."""


class Connection:
    """One end of a stream socket; a message is anything that pickling takes. Both sides are of one program."""

    def __init__(self, end: socket.socket):
        self._end = end

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, message: Any, files: Sequence[int] = ()) -> None:
        """Raises Closed where nobody reads any more."""
        data = pickle.dumps(message, protocol=5)
        try:
            socket.send_fds(self._end, [_HEADER.pack(len(data), len(files))], list(files))
            self._end.sendall(data)
        except (ConnectionError, OSError) as error:
            raise Closed(str(error)) from None

    def receive(self) -> tuple[Any, list[int]]:
        """The next message, and its files, which belong to the caller. Waits for it; raises Closed."""
        try:
            head, files, _, _ = socket.recv_fds(self._end, _HEADER.size, _MOST_FILES)
            if not head:
                raise Closed("the other side has ended")
            head += self._whole(_HEADER.size - len(head))
            size, count = _HEADER.unpack(head)
            data = self._whole(size)
        except (ConnectionError, OSError) as error:
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
        """Nothing goes through any more: both sides see that, also where another process has this end too."""
        with contextlib.suppress(OSError):  # the other side has ended
            self._end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.end()
        self._end.close()
