"""How `graphkit train` stops after an interrupt: it prints where, and how to continue."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from graphkit.cli import _interrupts


class Terminated(KeyboardInterrupt):
    """Raised by SIGTERM, which schedulers send before they kill a process."""


class Stopped(click.Abort):
    """Training was interrupted. Exit codes are those of a shell: 130 for SIGINT, 143 for SIGTERM."""

    def __init__(self, interrupt: KeyboardInterrupt, model: str, folder: Path | None, replaces: bool):
        notes: list[str] = getattr(interrupt, "__notes__", [])
        message = notes[0] if notes else "interrupted before training began"
        if folder is None:
            message += "; nothing was saved, because there is no output folder (-o)"
        elif replaces and not notes:
            message += f"; {folder} still holds the old run, which --overwrite did not replace yet"
        elif (folder / "checkpoint.json").exists():
            message += f"; continue with: graphkit train {shlex.quote(model)} -o {shlex.quote(str(folder))} --resume"
        super().__init__(message)
        self.exit_code = 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def told(model: str, folder: Path | None, replaces: bool = False) -> Iterator[None]:
    """Turn interrupts, and SIGTERM unless it has a handler already, into Stopped.

    replaces: whether the folder still holds another run, which this one will replace (--overwrite).
    """
    before = signal.getsignal(signal.SIGTERM)
    ours = before == signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise Stopped(interrupt, model, folder, replaces) from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: FrameType | None) -> None:
    _interrupts.has_come(number)
    raise Terminated
