"""Errors of standard output and standard error: the command ends with its own exit code, without a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import Any, TextIO

from graphkit.errors import RuntimeFailure

_NAMES = {1: "standard output", 2: "standard error"}


class OutputLost(Exception):
    """A standard stream cannot be written, because its reader closed it (`| head -1`) or the disk is full.

    Not an OSError, because libraries catch those of pipes. Not a GraphkitError, because commands add file names to it.
    """

    def __init__(self, descriptor: int, error: OSError):
        super().__init__(f"{_NAMES[descriptor]} cannot be written: {error.strerror or error}")
        self.is_closed = isinstance(error, BrokenPipeError)
        self.exit_code = 128 + signal.SIGPIPE if self.is_closed else RuntimeFailure.exit_code


class _Raw(io.FileIO):
    """A standard stream. After an error, all further output is dropped, so that the command can end cleanly."""

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        if not len(data):  # click writes b"" to find binary streams; some devices refuse even that
            return 0
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            raise OutputLost(self.fileno(), error) from None


def watch() -> None:
    """From now on, raise OutputLost if a standard stream cannot be written."""
    sys.stdout, sys.stderr = _watched(sys.stdout, 1), _watched(sys.stderr, 2)


def _watched(stream: TextIO, descriptor: int) -> TextIO:
    """Return a stream that raises OutputLost. A stream that was replaced or closed before is returned unchanged."""
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    stream.flush()
    raw = _Raw(descriptor, "w", closefd=False)
    buffered: Any = raw if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffered, stream.encoding, stream.errors, line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )  # fmt: skip


def flushed(code: int) -> int:
    """Flush the streams. Return the exit code of the command, or another one if flushing fails."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OutputLost as lost:
        return told(lost)
    return code


def told(lost: OutputLost) -> int:
    """Report that a stream cannot be written, unless its reader closed it. Return the exit code."""
    if not lost.is_closed and sys.stderr is not None:
        with contextlib.suppress(OutputLost):  # standard error may be lost as well
            print(f"graphkit: {lost}", file=sys.stderr)
    return lost.exit_code
