"""Convert text of docstrings and terminals to Markdown, for pages that scripts write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PLAIN = {"\\": "\\\\", "<": "&lt;", "*": "\\*", "|": "&#124;"}


def code(text: str) -> str:
    """Return code that is valid in a cell of a table."""
    return f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def prose(text: str) -> str:
    """Return a paragraph in which only code spans are markup; all other markup is escaped."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else "".join(_PLAIN.get(c, c) for c in p) for p in parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table of these cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
