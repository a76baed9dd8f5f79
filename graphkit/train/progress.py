"""What training tells the world: a progress bar on a terminal, a JSONL log in the run's folder."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from graphkit.errors import RuntimeFailure


class ProgressBar:
    """A rich progress bar per epoch on stderr; silent unless stderr is a terminal or `enabled` says otherwise."""

    def __init__(self, enabled: bool | None = None):
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                TextColumn("{task.fields[state]}"), console=Console(stderr=True),
            )  # fmt: skip
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | TracebackType | BaseException | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start_epoch(self, epoch: int, epochs: int, batches: int, done: int = 0) -> None:
        if self._bar is not None:
            self._task = self._bar.add_task(f"epoch {epoch + 1}/{epochs}", total=batches, completed=done, state="")

    def advance(self, loss: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, advance=1, state=f"loss {loss:.4f}")


class JsonLog:
    """One JSON object a line, appended to FOLDER/log.jsonl; without a folder it only keeps the time."""

    def __init__(self, folder: str | Path | None):
        self._path = None if folder is None else Path(folder) / "log.jsonl"
        self._start = time.time()

    def write(self, event: str, **fields: Any) -> None:
        if self._path is None:
            return
        record = {"event": event, "seconds": round(time.time() - self._start, 3), **fields}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RuntimeFailure(f"{self._path} cannot be written: {error.strerror}") from error
