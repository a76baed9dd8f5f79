"""Lines of kernels."""

from __future__ import annotations

from collections.abc import Sequence


def indented(lines: Sequence[str]) -> list[str]:
    """The same, one level further in."""
    return ["    " + line for line in lines]
