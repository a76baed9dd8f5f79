"""What GRAPHKIT_DEBUG prints on stderr, a line at a time. docs/passes.md lists the levels."""

from __future__ import annotations

import sys

from graphkit import config
from graphkit.text import printable

# The levels: each prints what those below it print.
EFFECTS = 1
DECISIONS = 2
LISTINGS = 3


def level() -> int:
    """The level in force, 0 where nothing is printed. Raises UsageError for a value that is none."""
    return config.DEBUG.get()


def say(line: str) -> None:
    """Print one line; characters that a terminal obeys are escaped."""
    sys.stderr.write(f"graphkit: {printable(line, line=True)}\n")


def show(text: str) -> None:
    """Print several lines, as those of a graph."""
    sys.stderr.write(f"{printable(text)}\n")


def milliseconds(seconds: float) -> str:
    """0.01234 -> '12.3 ms'."""
    return f"{1000 * seconds:.1f} ms"
