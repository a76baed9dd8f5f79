"""Show the progress of training: a bar on a terminal, and a JSONL log in the run folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from graphkit.errors import RuntimeFailure
from graphkit.ir.atomic import write_whole
from graphkit.text import short_repr


def _is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; None: it was closed before the start."""
    return stream is not None and stream.isatty()


class ProgressBar:
    """A rich progress bar on stderr, of what goes on now; silent unless that is a terminal or `enabled` says otherwise.

    Bars of the past are lines above it, but for those that are passing.
    """

    def __init__(self, enabled: bool | None = None):
        self._enabled = _is_terminal(sys.stderr) if enabled is None else enabled
        self._bar: Any = None
        self._task: Any = None
        self._passing = False

    def __enter__(self) -> ProgressBar:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[state]}"), console=Console(stderr=True),
                redirect_stdout=_is_terminal(sys.stdout),  # what goes to a file is no line above the bar
            )  # fmt: skip
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | TracebackType | BaseException | None) -> None:
        if self._bar is not None:
            self._leave()
            self._bar.stop()

    def start(self, what: str, total: int | None, done: int = 0, *, passing: bool = False) -> None:
        """Show what goes on now, in so many batches (None: nobody knows); passing: nothing stays of it."""
        if self._bar is None:
            return
        self._leave()
        self._task = self._bar.add_task(what, total=total, completed=done, state="")
        self._passing = passing

    def _leave(self) -> None:
        """What went on until now is over."""
        if self._task is None:
            return
        if not self._passing:
            self._bar.console.print(self._bar.make_tasks_table(self._bar.tasks))
        self._bar.remove_task(self._task)
        self._task = None

    def advance(self, state: str = "") -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=1, state=state)

    def __repr__(self) -> str:
        return short_repr(self, lambda: ["shown" if self._enabled else "hidden"])


class JsonLog:
    """One JSON object a line, appended to FOLDER/log.jsonl; without a folder it only keeps the time."""

    def __init__(self, folder: str | Path | None):
        self._path = None if folder is None else Path(folder) / "log.jsonl"
        self._start = time.monotonic()

    def begin(self, epoch: int, updates: int, seconds: float) -> None:
        """Go on after so many epochs, updates and seconds: what was written later, or half, is dropped."""
        self._start = time.monotonic() - seconds
        if self._path is None or not self._path.exists():
            return
        lines = self._read().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and _is_before(line, epoch, updates)]
        if len(kept) < len(lines):
            write_whole(self._path, [line.encode() for line in kept])

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._start, 3)

    def write(self, event: str, **fields: Any) -> None:
        if self._path is None:
            return
        record = {"event": event, "seconds": self.seconds, **fields}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RuntimeFailure(f"{self._path} cannot be written: {error.strerror}") from error

    def _read(self) -> str:
        assert self._path is not None
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RuntimeFailure(f"{self._path} cannot be read: {error}") from error

    def __repr__(self) -> str:
        return short_repr(self, lambda: ["" if self._path is None else repr(str(self._path))])


def _is_before(line: str, epoch: int, updates: int) -> bool:
    """Whether a line of a log tells of one of the first so many epochs, or updates if it is of a step."""
    try:
        record = json.loads(line)
    except ValueError:
        return True
    if not isinstance(record, dict):
        return True
    field, limit = ("updates", updates) if record.get("event") == "step" else ("epoch", epoch)
    at = record.get(field, 0)
    return not isinstance(at, (int, float)) or at <= limit
