"""Debug output on stderr, which GRAPHKIT_DEBUG turns on. docs/passes.md lists the levels."""

from __future__ import annotations

import sys

from graphkit import config
from graphkit.text import printable

# Levels of GRAPHKIT_DEBUG. Each also prints everything of the lower levels.
EFFECTS = 1
DECISIONS = 2
LISTINGS = 3


def level() -> int:
    """Return the value of GRAPHKIT_DEBUG; 0: print nothing. Raises UsageError if it is not a level."""
    return config.DEBUG.get()


def say(line: str) -> None:
    """Print one line. Control characters are escaped."""
    sys.stderr.write(f"graphkit: {printable(line, line=True)}\n")


def show(text: str) -> None:
    """Print a text of several lines, such as a graph. Control characters are escaped."""
    sys.stderr.write(f"{printable(text)}\n")


def milliseconds(seconds: float) -> str:
    """Format a duration given in seconds: 0.01234 -> '12.3 ms'."""
    return f"{1000 * seconds:.1f} ms"
