"""Format sizes, amounts and tables as text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

# Characters that are escaped for a terminal: control characters, and characters that change the direction of text.
_COMMANDS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_OF_TEXT = {code: escape for code, escape in _COMMANDS.items() if chr(code) not in "\n\t"}


def printable(text: str, line: bool = False) -> str:
    """Escape the control characters of a text from an unknown source, for a terminal. line: escape line ends, too."""
    return text.translate(_COMMANDS if line else _OF_TEXT)


# Most characters of a `repr`.
_LONGEST = 200


def short_repr(item: object, facts: Callable[[], Iterable[str]]) -> str:
    """A `repr` of one line: `<Model 'lenet': (x) -> (y), 10 parameters>`. It never fails.

    Args:
        item: The object, for the name of its class.
        facts: Returns the facts to print, in order. The first stands behind the class, and may be "". If it raises,
            because the object is half built or closed, the facts before the error are printed.

    Returns:
        At most 200 characters. Characters that a terminal obeys are escaped.
    """
    found: list[str] = []
    try:
        for fact in facts():
            found.append(fact)
            if sum(map(len, found)) > _LONGEST:
                break
    except Exception as error:  # noqa: BLE001 - whatever state the object is in, it can be printed
        found += ([] if found else [""]) + [f"no more is known ({type(error).__name__})"]
    head = f" {found[0]}" if found and found[0] else ""
    rest = f": {', '.join(found[1:])}" if len(found) > 1 else ""
    line = printable(f"{type(item).__name__}{head}{rest}", line=True)
    # Escape unpaired surrogates, which cannot be encoded.
    line = line.encode(errors="backslashreplace").decode()
    return f"<{line}>" if len(line) <= _LONGEST - 2 else f"<{line[: _LONGEST - 5]}...>"


def listed(items: Iterable[Any], count: int, most: int = 3) -> str:
    """List the first of `count` items: `a, b, c and 97 more`."""
    shown = ", ".join(str(item) for item in itertools.islice(items, most))
    return shown if count <= most else f"{shown} and {count - most} more"


def nodes_by_operator(nodes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line for each operator, sorted, with the names of its first nodes: `  Foo: 'a', 'b' and 7 more`."""
    return [f"  {operator}: {listed(names, len(names), 5)}" for operator, names in sorted(nodes.items())]


def quantity(count: int, noun: str) -> str:
    """Return a count and its noun: `1 operand`, `2,000 operands`. noun: in the singular; its plural must add an s."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def settings(item: object) -> Iterator[str]:
    """Return `name=value` of the public attributes that are numbers, strings, bools or None, for `short_repr`."""
    for name, value in list(vars(item).items()):
        if not name.startswith("_") and (value is None or isinstance(value, (bool, int, float, str))):
            yield f"{name}={value!r}"


def human(size: int) -> str:
    """Format bytes: 1536 -> '1.5 KiB'."""
    size = int(size)
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / (1 << 10 * power):.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def si(count: int) -> str:
    """Format an amount: 8178368512 -> '8.18 G'."""
    power = min((len(str(int(count))) - 1) // 3, 6)
    return f"{count / 1000**power:.3g} {'kMGTPE'[power - 1]}" if power else str(int(count))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with left-aligned columns. All rows must have the same number of cells."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table with left-aligned columns and a ruled header."""
    table = [list(head), *map(list, rows)]
    ruled = ["-" * max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join(aligned([table[0], ruled, *table[1:]]))
