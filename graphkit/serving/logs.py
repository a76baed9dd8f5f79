"""Logs as JSON, one object per line, written by a thread of their own."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import queue
import time
from collections.abc import Iterator
from typing import Any, TextIO

_LOGGERS = ("graphkit.serve", "uvicorn", "py.warnings")
# Attributes of every record; all others come from `extra`.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, event, and the fields of `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z", "level": record.levelname.lower(),
            "event": record.getMessage(),
        }  # fmt: skip
        line |= {key: value for key, value in vars(record).items() if key not in _USUAL}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=True)


class _Queue(logging.handlers.QueueHandler):
    """Passes records on as they are: they stay in this process, so nothing needs to be formatted here."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record


@contextlib.contextmanager
def json_logs(stream: TextIO, level: str = "info") -> Iterator[None]:
    """Write the logs of the server to a stream while the block runs. A slow stream does not delay requests.

    Args:
        stream: Where lines are written.
        level: "debug", "info", "warning" or "error".
    """
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    listener = logging.handlers.QueueListener(lines, handler)
    queued = _Queue(lines)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(queued)
        logger.setLevel(level.upper() if logger.name == _LOGGERS[0] else logging.WARNING)
        logger.propagate = False
    logging.captureWarnings(True)
    listener.start()
    try:
        yield
    finally:
        logging.captureWarnings(False)
        listener.stop()
        for logger, (usual, propagates) in zip(loggers, before, strict=True):
            logger.removeHandler(queued)
            logger.setLevel(usual)
            logger.propagate = propagates
