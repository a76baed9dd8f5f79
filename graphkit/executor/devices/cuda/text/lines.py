"""Indentation of the lines of a kernel."""

from __future__ import annotations

from collections.abc import Sequence


def indented(lines: Sequence[str]) -> list[str]:
    """Return the lines, indented by one more level."""
    return ["    " + line for line in lines]
