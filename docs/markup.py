"""Text of docstrings and terminals as Markdown, for the pages that scripts write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PLAIN = {"\\": "\\\\", "<": "&lt;", "*": "\\*", "|": "&#124;"}


def code(text: str) -> str:
    """Code that may stand in a table."""
    return f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def prose(text: str) -> str:
    """A paragraph: code stays code, nothing else is markup."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(p if p.startswith("`") else "".join(_PLAIN.get(c, c) for c in p) for p in parts)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells of Markdown as a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
