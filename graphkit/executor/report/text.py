"""Sizes and tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def human(size: int) -> str:
    """1536 -> '1.5 KiB'."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / (1 << 10 * power):.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns under a ruled head."""
    table = [list(head), *map(list, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
