"""Callbacks of `fit` that pass the numbers of training on: to a CSV file, another tracker, or Python's logging."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import RuntimeFailure, UsageError
from graphkit.ir.atomic import PendingFile, write_whole, writing_of
from graphkit.signatures import shown, typed_constructor
from graphkit.train.arguments import integer
from graphkit.train.callbacks import Callback, Numbers

if TYPE_CHECKING:
    from graphkit.train.trainer import Trainer

# Numbers of an epoch that are not scores.
_SPEED = ("samples_per_second", "peak_memory", "waiting", "processes")
_PLACE = ("epoch", "updates")


def scalars(numbers: Numbers) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an epoch with their names in trackers: `train/loss`, `valid/loss`, `speed/...`."""
    for name, value in numbers.items():
        if name in _PLACE:
            continue
        if name in _SPEED:
            yield f"speed/{name}", value
        elif name == "learning_rate":
            yield name, value
        elif name.startswith("valid_"):
            yield f"valid/{name.removeprefix('valid_')}", value
        else:
            yield f"train/{name}", value


@typed_constructor("gk")
class CSVLogger(Callback):
    """Writes the numbers of each epoch as a row of a CSV file, such as `epoch,updates,learning_rate,loss,valid_loss`.

    After each epoch, the file contains all rows so far; it is replaced as a whole. If an interrupted run is resumed,
    rows of epochs that are trained again are replaced. A new run replaces the file of an older one. If a later epoch
    has a new number, the file gets another column, which is empty in earlier rows. With several processes, rank 0
    writes.

    Args:
        path: The file.

    Raises:
        RuntimeFailure: In `fit`: the file cannot be written, or exists and is not a CSV file with a column `epoch`.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._rows: list[dict[str, str]] = []

    @property
    def name(self) -> str:
        return f"CSVLogger({self.path})"

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        self._rows = []
        if trainer.rank > 0:
            return
        self._check_writable()
        if numbers["epoch"] and self.path.exists():
            self._rows = [row for row in self._read() if int(row["epoch"]) <= numbers["epoch"]]

    def _check_writable(self) -> None:
        """Create the folder of the file. Raise RuntimeFailure if the file cannot be written."""
        with writing_of(self.path):
            # If the parent is a file, creating the file below gives a better reason.
            with contextlib.suppress(FileExistsError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            with PendingFile(self.path.parent, self.path.name):
                pass  # the file is removed again

    def _read(self) -> list[dict[str, str]]:
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = [{k: v for k, v in row.items() if k and v} for row in csv.DictReader(file)]
                _ = [int(row["epoch"]) for row in rows]
        except OSError as error:
            raise RuntimeFailure(f"{self.path} cannot be read: {error.strerror or error}") from error
        except (KeyError, ValueError, csv.Error):
            raise RuntimeFailure(f"{self.path} was not written by CSVLogger: give another path, or remove it") from None
        return rows

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        if trainer.rank > 0:
            return
        self._rows.append({name: str(value) for name, value in numbers.items()})
        columns = dict.fromkeys(name for row in self._rows for name in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        with writing_of(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, [text.getvalue().encode()])


@typed_constructor("gk")
class RunLogger(Callback):
    """Passes the numbers of training to another tracker, by `run.log(numbers, step=updates)`.

    This is the interface of a run of Weights & Biases: `gk.RunLogger(wandb.init(project="digits"))`. A function of the
    same arguments is allowed, too: `gk.RunLogger(mlflow.log_metrics)`. With several processes, give the callback to
    every rank; rank 0 calls the tracker, so other ranks may pass None.

    Numbers of steps are `step/loss` and `step/learning_rate`. Numbers of epochs are `epoch`, `learning_rate`,
    `train/...`, `valid/...` and `speed/...`. A step is an update of the parameters.

    Args:
        run: An object with a method `log`, or a function.
        every: Number of updates between numbers of steps. With 0, only numbers of epochs are passed.

    Raises:
        UsageError: In `fit`, on rank 0: `run` is something else.
    """

    def __init__(self, run: Any, *, every: int = 10):
        self.run = run
        self.every = integer("RunLogger", "every", every, 0)
        self._last = 0
        self._log: Callable[..., Any] | None = None

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        self._last, self._log = int(numbers["updates"]), None
        if trainer.rank > 0:
            return
        log = getattr(self.run, "log", self.run)
        if not callable(log):
            raise UsageError(f"RunLogger: run must have a method log(numbers, step=...), not be {shown(self.run)}")
        self._log = log

    def on_step_end(self, trainer: Trainer, numbers: Numbers) -> None:
        updates = numbers["updates"]
        if self._log is None or not self.every or updates == self._last or updates % self.every:
            return
        self._last = updates
        self._log({f"step/{name}": numbers[name] for name in ("loss", "learning_rate")}, step=updates)

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        if self._log is not None:
            self._log({"epoch": numbers["epoch"], **dict(scalars(numbers))}, step=numbers["updates"])


@typed_constructor("gk")
class PythonLogger(Callback):
    """Passes the numbers of each epoch to Python's `logging`, as one message.

    The record's attribute `numbers` contains them as a dict, for handlers that write other formats. Python shows
    messages of level INFO only if you configure it, for example by `logging.basicConfig(level="INFO")`. With several
    processes, rank 0 logs.

    Args:
        logger: The name of the logger.
        level: The level of the messages: a number or a name, such as "INFO" or "DEBUG".

    Raises:
        UsageError: There is no such level.
    """

    def __init__(self, logger: str = "graphkit", level: int | str = "INFO"):
        levels = logging.getLevelNamesMapping()
        if isinstance(level, str) and level not in levels:
            raise UsageError(f"PythonLogger: level must be a number or one of {', '.join(levels)}, not {level!r}")
        self.logger = logger
        self.level = levels[level] if isinstance(level, str) else level

    @property
    def name(self) -> str:
        return f"PythonLogger({self.logger})"

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        verb = "resume" if numbers["resumed"] else "begin"
        self._write(trainer, f"{verb} training {trainer.net.name!r} after epoch {numbers['epoch']}", numbers)

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        scores = {n: v for n, v in numbers.items() if n not in (*_PLACE, *_SPEED)}
        text = ", ".join(f"{n} {v:.5g}" if isinstance(v, (int, float)) else f"{n} {v}" for n, v in scores.items())
        self._write(trainer, f"{trainer.net.name!r}, epoch {numbers['epoch']}: {text}", numbers)

    def on_fit_end(self, trainer: Trainer, numbers: Numbers) -> None:
        why = f": {numbers['stopped']}" if numbers["stopped"] else "" if numbers["finished"] else ", not complete"
        self._write(trainer, f"end training {trainer.net.name!r} after epoch {numbers['epoch']}{why}", numbers)

    def _write(self, trainer: Trainer, text: str, numbers: Mapping[str, Any]) -> None:
        if trainer.rank == 0:
            logging.getLogger(self.logger).log(self.level, "%s", text, extra={"numbers": dict(numbers)})
