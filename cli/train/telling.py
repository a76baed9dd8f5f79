"""The output of `graphkit train`: a line or a table row per epoch, and a summary at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli._output import log, print_json, print_table
from graphkit.text import quantity
from graphkit.train.callbacks import Callback, Numbers
from graphkit.train.checkpoint import MANIFEST
from graphkit.train.run_folder import ADAPTER_FILES, BEST, CONFIG, MODEL, RECORD

if TYPE_CHECKING:
    from graphkit.dist.kvstore import KVStore
    from graphkit.executor.run.profile import Profile
    from graphkit.train.trainer import Trainer

# Numbers of an epoch that the table shows in another form, or not at all.
_OTHERS = ("epoch", "updates", "learning_rate", "processes", "samples_per_second", "waiting", "peak_memory")
# Columns that a narrow terminal omits, in this order; minimum width of a column.
_DISPENSABLE = ("memory", "samples/s", "left")
_WIDTH = 7


def lines(store: KVStore, as_json: bool) -> Callable[[int, dict[str, float]], None]:
    """Return a function that prints a line per epoch."""
    together = f" ({store.num_workers} processes)" if store.num_workers > 1 else ""

    def tell(epoch: int, record: dict[str, float]) -> None:
        line = f"epoch {epoch}{together}: " + ", ".join(f"{k} {v:.5g}" for k, v in record.items())
        _say(line, err=as_json)

    return tell


def _say(text: str, *, err: bool = False) -> None:
    """Print above the progress bar, which redirects sys.stdout and sys.stderr while it is shown."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:  # it may be closed
        stream.write(f"{text}\n")
        stream.flush()


class Table(Callback):
    """Prints a row per epoch: loss and metrics, samples per second, remaining time, memory.

    A row is printed after the checkpoint of its epoch is written (`tell`).
    """

    def __init__(self) -> None:
        self._row: dict[str, str] = {}
        self._columns: list[str] = []
        self._until, self._first, self._start = 0, 0, 0.0

    def on_fit_begin(self, trainer: Trainer, numbers: Numbers) -> None:
        self._until, self._first, self._start = int(numbers["until"]), int(numbers["epoch"]), time.monotonic()

    def on_epoch_end(self, trainer: Trainer, numbers: Numbers) -> None:
        epoch = int(numbers["epoch"])
        self._until = max(self._until, trainer.position.until)  # --max-steps may need more epochs than expected
        each = (time.monotonic() - self._start) / max(epoch - self._first, 1)
        self._row = {"epoch": f"{epoch}/{self._until}"}
        self._row |= {name: f"{value:.4g}" for name, value in numbers.items() if name not in _OTHERS}
        rate = numbers["samples_per_second"]
        self._row["samples/s"] = f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}"
        self._row["left"] = duration(each * (self._until - epoch))
        if "peak_memory" in numbers:
            self._row["memory"] = f"{numbers['peak_memory'] / 1e6:,.0f} MB"

    def tell(self, epoch: int, record: dict[str, float]) -> None:
        """Print the row of the epoch. A header comes first, if the columns differ from those of the last row."""
        from rich.console import Console
        from rich.table import Table as Drawn

        width = Console().width
        columns = _fitting(self._row, width)
        table = Drawn(box=None, show_header=columns != self._columns, pad_edge=False)
        for name in columns:
            table.add_column(name, justify="right", min_width=max(len(name), _WIDTH), no_wrap=True, overflow="fold")
        table.add_row(*(self._row[name] for name in columns))
        self._columns = columns
        drawn = Console(width=max(width, _width(columns)), color_system=None)
        with drawn.capture() as text:
            drawn.print(table)
        _say(text.get().rstrip())


def _fitting(row: Mapping[str, str], width: int) -> list[str]:
    """Return the columns that fit a terminal of this width. Loss and metrics are always shown."""
    columns = list(row)
    for name in _DISPENSABLE:
        if _width(columns) > width and name in columns:
            columns.remove(name)
    return columns


def _width(columns: list[str]) -> int:
    return sum(max(len(name), _WIDTH) + 2 for name in columns) - 2


def duration(seconds: float) -> str:
    """Format seconds as 0:07, 12:34 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def report(
    trainer: Trainer, store: KVStore, folder: Path | None, history: list[dict[str, float]] | None,
    recorded: Profile | None, trace: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Print the summary at the end. history: None if nothing was left to train."""
    result: dict[str, Any] = {
        "model": trainer.net.name,
        "folder": None if folder is None else str(folder),
        "epochs": trainer.epoch,
        "updates": trainer.updates,
        "processes": store.num_workers,
        "history": history or [],
        "stopped": trainer.position.stopped,
        "within_epoch": trainer.position.within,
    }
    if recorded is not None:
        result["operators"] = [asdict(operator) for operator in recorded.operators]
    if as_json:
        print_json("train", result)
        return
    position = trainer.position
    if history and position.at_limit and position.within:
        line = ", ".join(f"{k} {v:.5g}" for k, v in history[-1].items())
        _say(f"epoch {position.epoch + 1}, ended after {quantity(trainer.updates, 'update')} (--max-steps): {line}")
    if recorded is not None:
        print_table("time per operator", *recorded.table())
        log(f"wrote {trace}")
    if history is not None and trainer.position.stopped is not None:
        log(f"stopped after epoch {trainer.epoch}: {trainer.position.stopped}")
    if history is not None and folder is not None:
        names = (MODEL, BEST, *ADAPTER_FILES, MANIFEST, "log.jsonl", CONFIG, RECORD)
        optional = {name for name in (BEST, *ADAPTER_FILES) if not (folder / name).exists()}
        log(f"wrote {folder}: {', '.join(name for name in names if name not in optional)}")


def report_rate(curve: Any, file: Path | None, as_json: bool) -> None:
    """Print the result of --find-lr."""
    result = {
        "suggestion": curve.suggestion, "diverged": curve.diverged, "file": None if file is None else str(file),
        "learning_rates": curve.rates, "losses": curve.losses, "smoothed": curve.smoothed,
    }  # fmt: skip
    if as_json:
        print_json("find-lr", result)
    elif curve.suggestion is None:
        click.echo("no suggestion: the loss did not fall at any of these learning rates")
    else:
        click.echo(f"suggested learning rate: {curve.suggestion:.3g}")
    if not as_json:
        ended = "the loss diverged at learning rate" if curve.diverged else "the largest learning rate was"
        written = "" if file is None else f"; wrote {file}"
        log(f"{quantity(len(curve.rates), 'update')}; {ended} {curve.rates[-1]:.3g}{written}")
