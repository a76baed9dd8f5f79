"""The log of a run, line by line, also while it grows."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphkit.ir.collector import uncollected

LOG = "log.jsonl"

# Of lines that cannot be read, so many are told one by one.
_TOLD = 5

# What makes a step or an epoch a point of a curve.
_PLACE = ("updates", "epoch", "seconds")

# Bytes by which a log is known to be the one that was read before.
_KNOWN = 256


class Log:
    """The records of a log file; a further `read` looks only at the lines that have come since.

    epochs, steps: in the order of updates, each with finite numbers under "updates", "epoch" and "seconds" at least.
    stopped: the reason, where the last that happened is a record of a run that ended early. notes: which lines are
    damaged, in sentences; they are left out. A last line without its end is still being written, and not read.
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
        return [*self._damage, *([f"{self.path}: {more} more lines are damaged and left out"] if more else [])]

    @uncollected
    def read(self) -> None:
        """A log that is not there is empty. Raises OSError."""
        try:
            opened = self.path.open("rb")
        except FileNotFoundError:
            self._forget()
            return
        with opened as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(self._offset - _KNOWN, 0))
            # Who goes on from a checkpoint replaces the log by one without what came later.
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
                self._damage.append(f"{self.path}, line {self._lines} is damaged and left out: {error}")
            return
        if kind == "step":
            self.steps.append(record)
        elif kind == "epoch":
            self.epochs.append(record)
            self.stopped = None
        elif kind == "stopped":
            self.stopped = str(record.get("reason", ""))


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """What a line is about, and its fields, of steps and epochs the numbers; raises ValueError, which says what is
    wrong with it."""
    record = json.loads(line)
    if not isinstance(record, dict) or not isinstance(kind := record.pop("event", None), str):
        raise ValueError("no record of an event")
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
