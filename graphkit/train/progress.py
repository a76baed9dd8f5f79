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
    return stream is not None and stream.isatty()


class ProgressBar:
    """A progress bar on stderr for one task at a time (with the library rich).

    Bars of earlier tasks remain visible, except for transient bars. enabled: None: only on a terminal.
    """

    def __init__(self, enabled: bool | None = None):
        self._enabled = _is_terminal(sys.stderr) if enabled is None else enabled
        self._bar: Any = None
        self._task: Any = None
        self._transient = False

    def __enter__(self) -> ProgressBar:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[state]}"), console=Console(stderr=True),
                redirect_stdout=_is_terminal(sys.stdout),
            )  # fmt: skip
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | TracebackType | BaseException | None) -> None:
        if self._bar is not None:
            self._end_task()
            self._bar.stop()

    def start(self, title: str, total: int | None, done: int = 0, *, transient: bool = False) -> None:
        """Show a new task, and end the previous one."""
        if self._bar is None:
            return
        self._end_task()
        self._task = self._bar.add_task(title, total=total, completed=done, state="")
        self._transient = transient

    def _end_task(self) -> None:
        if self._task is None:
            return
        if not self._transient:
            self._bar.console.print(self._bar.make_tasks_table(self._bar.tasks))
        self._bar.remove_task(self._task)
        self._task = None

    def advance(self, state: str = "") -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=1, state=state)

    def __repr__(self) -> str:
        return short_repr(self, lambda: ["shown" if self._enabled else "hidden"])


class JsonLog:
    """Appends one JSON object per line to FOLDER/log.jsonl. Without a folder, it only measures the time."""

    def __init__(self, folder: str | Path | None):
        self._path = None if folder is None else Path(folder) / "log.jsonl"
        self._start = time.monotonic()

    def begin(self, epoch: int, updates: int, seconds: float, *, ended: bool = False) -> None:
        """Continue the log of a run at this position, and remove later and incomplete lines.

        Args:
            ended: Whether to keep the line with the event "end" (the run ended within an epoch).
        """
        self._start = time.monotonic() - seconds
        if self._path is None or not self._path.exists():
            return
        lines = self._read().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and _is_before(line, epoch, updates, ended)]
        if len(kept) < len(lines):
            write_whole(self._path, [line.encode() for line in kept])

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._start, 3)

    def write(self, event: str, **fields: Any) -> None:
        """Append a line: `event`, `seconds` (duration of the run) and `fields`."""
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


def _is_before(line: str, epoch: int, updates: int, ended: bool) -> bool:
    """Whether a log line belongs to the first `epoch` epochs or `updates` updates. ended: see `JsonLog.begin`."""
    try:
        record = json.loads(line)
    except ValueError:
        return True
    if not isinstance(record, dict):
        return True
    if record.get("event") == "end":
        return ended
    field, limit = ("updates", updates) if record.get("event") == "step" else ("epoch", epoch)
    at = record.get(field, 0)
    return not isinstance(at, (int, float)) or at <= limit
