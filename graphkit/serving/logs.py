"""Logs as JSON, one object per line, written by a thread of their own."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, TextIO

from graphkit.errors import error_text

_LOGGERS = ("graphkit.serve", "uvicorn", "py.warnings")
# Attributes of every record; all others come from `extra`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
# Lines that wait for a slow stream, and the seconds in which the last ones are written.
_MOST_WAITING, _LAST_LINES = 10_000, 2.0
# Seconds in which lines collect after the first one: if lines are rare, and if they keep coming.
_COLLECTING, _MOST_COLLECTING = 0.02, 0.32
# Most lines that are written together.
_TOGETHER = 256


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, event, and the fields of `extra`."""

    _encode = staticmethod(json.JSONEncoder(default=str).encode)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {
            "time": f"{_second(int(record.created))}.{int(record.msecs):03d}Z", "level": record.levelname.lower(),
            "event": record.getMessage(),
        }  # fmt: skip
        line |= {key: value for key, value in vars(record).items() if key not in _USUAL}
        if record.exc_text:
            line["traceback"] = record.exc_text
        return self._encode(line)


@lru_cache(maxsize=4)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class _Pauses:
    """How long lines collect before they are written: longer and longer while lines keep coming."""

    def __init__(self) -> None:
        self._pause, self._written = _COLLECTING, -math.inf

    def next(self, now: float) -> float:
        """Return the seconds to wait after a line that comes `now`, in monotonic seconds."""
        keeps_coming = now - self._written <= _MOST_COLLECTING
        self._pause = min(2 * self._pause, _MOST_COLLECTING) if keeps_coming else _COLLECTING
        return self._pause

    def written(self, now: float) -> None:
        """Note that all lines so far were written."""
        self._written = now


class _Lines(logging.Handler):
    """Passes records to a thread that writes them. If the stream is slow, records beyond a limit are lost.

    The thread wakes for many lines at a time: a wake-up for each would take the interpreter from the event loop, and a
    core from the threads of a run.
    """

    def __init__(self, stream: TextIO):
        super().__init__()
        self._stream, self._formatter = stream, JsonLines()
        self._records: deque[logging.LogRecord] = deque()
        self._taken = 0  # records that are being written
        self._lost = 0
        # Set when there is a line, when lines must be written at once, and when no more lines come.
        self._new, self._hurry, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="graphkit-logs", daemon=True)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._records) + self._taken >= _MOST_WAITING:
            self._lost += 1
            return
        if record.exc_info:  # it would keep the frames, with the bodies of requests, until the line is written
            record.exc_text = self._formatter.formatException(record.exc_info)
            record.exc_info = None
        self._records.append(record)  # not formatted, because it stays in this process
        if not self._new.is_set():
            self._new.set()
        if len(self._records) >= _MOST_WAITING // 2 and not self._hurry.is_set():
            self._hurry.set()

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write the waiting lines. Takes at most a few seconds, even if no process reads the stream."""
        self._stopping.set()
        self._hurry.set()
        self._new.set()
        self._thread.join(_LAST_LINES)

    def _work(self) -> None:
        stops, pauses = False, _Pauses()
        while not stops:
            self._new.wait()
            self._hurry.wait(pauses.next(time.monotonic()))
            self._hurry.clear()
            self._new.clear()  # before the records are read: the next one sets it again
            stops = self._stopping.is_set()  # after `clear`, which may undo what `stop` sets
            while self._records or self._lost:
                self._write_some()
            pauses.written(time.monotonic())

    def _write_some(self) -> None:
        self._taken = min(len(self._records), _TOGETHER)
        self._write([self._records.popleft() for _ in range(self._taken)])
        self._taken = 0
        if self._lost and len(self._records) < max(_MOST_WAITING // 2, 1):
            lost, self._lost = self._lost, 0
            self._write([
                logging.makeLogRecord({
                    "levelname": "WARNING", "levelno": logging.WARNING, "lines": lost,
                    "msg": "log lines were lost, because the stream is slow",
                })
            ])  # fmt: skip

    def _write(self, records: Sequence[logging.LogRecord]) -> None:
        lines = "".join(map(self._line, records))
        with contextlib.suppress(OSError, ValueError):  # the stream is closed
            if (number := _descriptor(self._stream)) is None:
                self._stream.write(lines)
                self._stream.flush()
                return
            data = memoryview(lines.encode())
            while data:  # not by the stream: its lock would stop the end of the process while a pipe is full
                try:
                    data = data[os.write(number, data) :]
                except BlockingIOError:  # another process with the same pipe has made it non-blocking, and it is full
                    _wait_until_writable(number)

    def _line(self, record: logging.LogRecord) -> str:
        try:
            return f"{self._formatter.format(record)}\n"
        except Exception as error:  # noqa: BLE001 - the thread must live, or all later lines would be lost
            fields = {"levelname": record.levelname, "msg": "a log line cannot be written", "error": error_text(error)}
            return f"{self._formatter.format(logging.makeLogRecord({**fields, 'text': str(record.msg)}))}\n"


def _wait_until_writable(number: int) -> None:
    """Wait until a file descriptor takes bytes, or its reader has closed it."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    poll.poll()


def _descriptor(stream: TextIO) -> int | None:
    """Return the file descriptor of a stream; None if it is not a file."""
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None


@contextlib.contextmanager
def json_logs(stream: TextIO, level: str = "info") -> Iterator[None]:
    """Write the logs of the server to a stream while the block runs. A slow stream does not delay requests.

    Args:
        stream: Where lines are written.
        level: "debug", "info", "warning" or "error".
    """
    lines = _Lines(stream)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(lines)
        logger.setLevel(level.upper() if logger.name == _LOGGERS[0] else logging.WARNING)
        logger.propagate = False
    logging.captureWarnings(True)
    lines.start()
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, (usual, propagates) in zip(loggers, before, strict=True):
            logger.removeHandler(lines)
            logger.setLevel(usual)
            logger.propagate = propagates
        lines.stop()
