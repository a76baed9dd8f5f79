"""Reads the log of a run, also while training writes it."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphkit.collector import without_gc

LOG = "log.jsonl"

# Number of damaged lines that are reported one by one.
_TOLD = 5

# Fields that every record of a step or an epoch must have.
_PLACE = ("updates", "epoch", "seconds")

# Number of bytes before the read position that are compared, to detect that the file was replaced.
_KNOWN = 256


class Log:
    """The records of a log file. Calling `read` again only reads new lines.

    epochs, steps: records in the order of updates. Each has finite numbers "updates", "epoch" and "seconds".
    stopped: why the run was stopped early, if that is its last event.
    notes: sentences about damaged lines, which are skipped.

    A last line without a line break is still being written, and is not read.
    """

    def __init__(self, path: Path):
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.epochs: list[Mapping[str, float]] = []
        self.steps: list[Mapping[str, float]] = []
        self.stopped: str | None = None
        self._damage: list[str] = []
        self._offset = self._lines = self._damaged = 0
        self._last = b""

    @property
    def notes(self) -> list[str]:
        more = self._damaged - len(self._damage)
        return [*self._damage, *([f"{self.path}: skipped {more} more damaged lines"] if more else [])]

    @without_gc
    def read(self) -> None:
        """Read new lines. A file that does not exist is an empty log. Raises OSError."""
        try:
            opened = self.path.open("rb")
        except FileNotFoundError:
            self._forget()
            return
        with opened as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(self._offset - _KNOWN, 0))
            # A run that resumes from a checkpoint replaces the log by one that ends at the checkpoint.
            if size < self._offset or file.read(min(self._offset, _KNOWN)) != self._last:
                self._forget()
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        for line in whole.split(b"\n")[:-1]:
            self._lines += 1
            self._add(line)
        self._offset += len(whole)
        self._last = (self._last + whole)[-_KNOWN:]
        for records in (self.epochs, self.steps):
            records.sort(key=lambda record: record["updates"])

    def _add(self, line: bytes) -> None:
        try:
            kind, record = _event(line)
        except (ValueError, RecursionError) as error:
            self._damaged += 1
            if self._damaged <= _TOLD:
                self._damage.append(f"{self.path}: skipped line {self._lines}, which is damaged: {error}")
            return
        if kind == "step":
            self.steps.append(record)
        elif kind == "epoch":
            self.epochs.append(record)
            self.stopped = None
        elif kind == "stopped":
            self.stopped = str(record.get("reason", ""))


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Return the event and the fields of a line; only numbers for steps and epochs.

    Raises ValueError, with a message, for a damaged line.
    """
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(kind := record.pop("event", None), str):
        raise ValueError("it is not a JSON object with an event")
    if kind not in ("epoch", "step"):
        return kind, record
    try:
        found = {name: float(value) for name, value in record.items() if type(value) in (float, int)}
    except OverflowError:
        long = next(n for n, v in record.items() if type(v) is int and abs(v) > sys.float_info.max)
        raise ValueError(f"{long!r} is too large a number") from None
    for name in _PLACE:
        if not math.isfinite(found.get(name, math.nan)):
            raise ValueError(f"{name!r} is {json.dumps(record.get(name))[:60]}, not a number")
    return kind, found
