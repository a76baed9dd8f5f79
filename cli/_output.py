"""Printing results: JSON with a schema name, or a plain table."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click

from graphkit.text import aligned, printable

SCHEMA_VERSION = 1


def print_json(kind: str, result: Mapping[str, Any]) -> None:
    """Print a JSON object: `{"schema": "graphkit.<kind>", "version": 1, ...}`. NaN and infinities become strings."""
    click.echo(json.dumps({"schema": f"graphkit.{kind}", "version": SCHEMA_VERSION, **_plain(result)}, indent=1))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def is_terminal() -> bool:
    """Whether standard output is a terminal that can draw. False if it is closed."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table to stdout: with borders on a terminal, with aligned columns elsewhere."""
    cells = [[printable(str(c), line=True) for c in row] for row in rows]
    title = printable(title, line=True)
    if is_terminal():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns, title=title, title_justify="left")
        for row in cells:
            table.add_row(*row)
        Console().print(table)
        return
    click.echo("\n".join([title, *aligned([list(columns), *cells])]))


@contextmanager
def rounding_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar for the runs of `gk.verify` in double precision: its `progress`."""
    from graphkit.train.progress import ProgressBar

    with ProgressBar() as bar:

        def progress(done: int, total: int) -> None:
            if not done:
                bar.start("measuring rounding in double precision", total, transient=True)
            else:
                bar.advance()

        yield progress


def log(message: str) -> None:
    """Print a line to stderr."""
    click.echo(printable(message), err=True)


def show(text: str) -> None:
    """Print text to stdout. Control characters, which may be in names from a file, are escaped."""
    click.echo(printable(text))
