"""Read tables column by column: .parquet with pyarrow, text with Python's csv module.

If pyarrow is installed, it also reads large text files. The result is the same (see arrow_csv).
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import csv
import itertools
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from graphkit.data.preprocessing import arrow_csv
from graphkit.data.preprocessing.column import Column, Mixed, Numbers, TextReader, Texts, is_number
from graphkit.data.preprocessing.parquet import column_of, read_parquet
from graphkit.errors import GraphkitWarning, InputError, UsageError, did_you_mean
from graphkit.named_tuples import NamedTuple

# The suffixes of tables.
TABLES = (".csv", ".tsv", ".parquet")

# Number of rows that are in memory as text at a time.
_ROWS = 1 << 14

# The csv module reads text files of fewer bytes in less time than the import of pyarrow takes.
_SMALL = 1 << 20

# The encoding of text files, with or without a byte order mark, and the byte order marks of UTF-16.
_UTF8 = "utf-8-sig"
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

# The most characters of a first line in which a delimiter is looked for.
_LONGEST_HEAD = 1 << 16
_QUOTED = re.compile('"[^"]*"')

# ASCII's unit separator. It replaces delimiters of several characters.
_UNIT = "\x1f"


class Table(NamedTuple):
    """Columns of equal length.

    lines: (row, line of the file) of the first row, and of each row that does not begin one line after the row before;
    empty if rows are not lines.
    """

    path: Path
    columns: dict[str, Column]
    lines: Sequence[tuple[int, int]]

    @property
    def rows(self) -> int:
        column = next(iter(self.columns.values()))
        return len(column.values if isinstance(column, Numbers) else column.codes)

    def row(self, number: int) -> str:
        """Name a row, counted from 0, for an error."""
        return f"line {_line(self.lines, number)}" if self.lines else f"row {number}"


def _line(lines: Sequence[tuple[int, int]], number: int) -> int:
    """The line of a row, counted from 0; `lines` as in Table."""
    row, line = lines[bisect.bisect_right(lines, number, key=lambda entry: entry[0]) - 1]
    return line + number - row


class Choice(NamedTuple):
    """Columns to read: the named ones (None: all) except those to drop. `categorical` columns of numbers contain
    names.
    """

    columns: Collection[str] | None = None
    drop: Collection[str] = ()
    categorical: Collection[str] = ()

    def of(self, path: Path, names: Sequence[str]) -> list[str]:
        for name in (*(self.columns or ()), *self.drop, *self.categorical):
            if name not in names:
                raise InputError(f"{path}: there is no column {name!r}{did_you_mean(name, names)}")
        found = [n for n in names if (self.columns is None or n in self.columns) and n not in self.drop]
        if not found:
            raise InputError(f"{path}: no column is left; the file has {', '.join(names)}")
        counts = Counter(names)
        if double := next((name for name in found if counts[name] > 1), None):
            raise InputError(f"{path}: two columns have the name {double!r}")
        return found


ALL = Choice()


def read_table(
    path: Path,
    choice: Choice = ALL,
    *,
    header: bool | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    decimal: str = ".",
) -> Table:
    """Return the chosen columns of a file.

    header: whether the first line of a .csv contains names; None: it does if no cell of it is a number. Columns without
    names are called by position: "0", "1", ... delimiter: between cells in text files (default: a tab in .tsv; a
    semicolon if the first line of a .csv contains semicolons, and only decimal commas; else a comma). encoding: of the
    characters of a text file, such as "latin-1" (default: UTF-8; UTF-16 if the file begins with its byte order mark).
    decimal: the decimal mark of numbers in text files, "." or ",". Columns of texts that look like numbers with decimal
    commas give a GraphkitWarning; with decimal=",", those that look like numbers with points do. Raises InputError,
    which names file and line, if it is not a table.
    """
    if decimal not in (".", ","):
        raise UsageError(f'{path}: decimal must be "." or ",", not {decimal!r}')
    if path.suffix == ".parquet":
        return _parquet(path, choice)
    encoding = _encoding(path, encoding)
    mark = delimiter or ("\t" if path.suffix == ".tsv" else _delimiter(path, encoding, decimal))
    if mark == decimal and delimiter is None:
        raise UsageError(
            f"{path}: cells are separated by {mark!r}, which is also the decimal mark; set delimiter to the mark "
            f"between cells, or to {mark!r} if numbers with this mark are in quotes (--data-option delimiter={mark})"
        )
    form = _Form(mark, header, decimal)
    table = _with_pyarrow(path, choice, form) if encoding == _UTF8 else None
    table = table or _with_csv(path, choice, form, encoding)
    for looks, fits, advice in (
        ("numbers with decimal commas", form.may_be_comma, f"{_ADVICE}; to keep the text, set categorical="),
        ("numbers with points", form.has_points, f"{_REMOVE}; to keep the text, set categorical="),
    ):
        if found := _texts_like(table, choice, fits):
            many = len(found) > 1
            warnings.warn(
                f"{path}: column{'s' * many} {', '.join(map(repr, found))} look{'s' * (not many)} like {looks}, but "
                f"{'are' if many else 'is'} read as text; {advice}{','.join(found)}",
                GraphkitWarning, stacklevel=2,
            )  # fmt: skip
    return table


class _Form(NamedTuple):
    """Form of a text file: the delimiter, whether there is a header, the decimal mark. See `read_table`."""

    mark: str
    header: bool | None
    decimal: str

    def may_be_comma(self, cell: str) -> bool:
        """Return whether a text is a number with a decimal comma, which is not the file's decimal mark."""
        return self.decimal == "." and self.mark != "," and "," in cell and is_number(cell, ",")

    def has_points(self, cell: str) -> bool:
        """Return whether a text is a number with points, in a file whose decimal mark is the comma."""
        return self.decimal == "," and "." in cell and (is_number(cell) or _THOUSANDS.fullmatch(cell) is not None)


_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:[.][0-9]{3})+(?:,[0-9]+)?")
_REMOVE = "to read them as numbers, remove points between thousands from the file, and write decimal points as commas"
_ADVICE = "to read them as numbers, set decimal=, (--data-option decimal=,)"


def _texts_like(table: Table, choice: Choice, fits: Callable[[str], bool]) -> list[str]:
    """Return the names of text columns whose cells all fit. Columns that are chosen as categorical do not count."""
    return [
        name
        for name, column in table.columns.items()
        if isinstance(column, Texts) and name not in choice.categorical and all(map(fits, column.texts))
    ]


def _encoding(path: Path, given: str | None) -> str:
    if given is None:
        if path.is_file():
            with path.open("rb") as file:
                return "utf-16" if file.read(2) in _UTF16_MARKS else _UTF8
        return _UTF8
    try:
        "".encode(given)  # `lookup` also finds codecs that are not for texts, such as hex
        name = codecs.lookup(given).name
    except (LookupError, TypeError, ValueError):
        raise InputError(
            f"{path}: unknown encoding {given!r}; expected a name such as latin-1, cp1252 or utf-16"
        ) from None
    return _UTF8 if name == "utf-8" else name


def _delimiter(path: Path, encoding: str, decimal: str) -> str:
    """Return a semicolon if the first line contains semicolons, and no commas but decimal ones. Otherwise, a comma.

    Semicolons and commas between quotes do not count.
    """
    try:
        with path.open(encoding=encoding, errors="replace") as file:
            first = file.readline(_LONGEST_HEAD)
    except (OSError, UnicodeError):
        return ","  # reading reports the error
    cells = _QUOTED.sub("", first).split(";")
    if len(cells) == 1:
        return ","
    has_only_decimal = all(is_number(cell, ",") for cell in cells if "," in cell)
    return ";" if decimal == "," or has_only_decimal else ","


@contextlib.contextmanager
def _opened(path: Path, encoding: str) -> Iterator[TextIO]:
    """Open a text file. Raises InputError if it cannot be read."""
    try:
        with path.open(newline="", encoding=encoding) as file:
            yield file
    except UnicodeError as error:  # not always a UnicodeDecodeError: UTF-16 without a byte order mark
        raise InputError(
            f"{path}: cannot be read as text: {error}; if the file has another encoding, name it in encoding= "
            "(--data-option encoding=latin-1), or convert the file to UTF-8"
        ) from None
    except (OSError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None


def _with_pyarrow(path: Path, choice: Choice, form: _Form) -> Table | None:
    """Return a large table as `_with_csv` does, but faster; None if `_with_csv` must read it."""
    if not path.is_file() or path.stat().st_size < _SMALL:
        return None

    def places(first: list[str]) -> tuple[bool, int, dict[str, int]]:
        has_names, names, found = _names(path, first, choice, form)
        return has_names, len(names), found

    unit, replaced = (form.mark, None) if len(form.mark) == 1 else (_UNIT, form.mark)
    found = arrow_csv.read(path, unit, replaced, places, choice.categorical, form.decimal)
    return None if found is None else Table(path, *found)


def _with_csv(path: Path, choice: Choice, form: _Form, encoding: str) -> Table:
    mark = form.mark
    with _opened(path, encoding) as file:
        # The csv module only accepts delimiters of one character.
        lines = file if len(mark) == 1 else (line.replace(mark, _UNIT) for line in file)
        return _csv(path, csv.reader(lines, delimiter=mark if len(mark) == 1 else _UNIT), choice, form)


def _csv(path: Path, lines: Any, choice: Choice, form: _Form) -> Table:
    first: list[str] = next(lines, [])
    if not first and next(lines, None) is None:
        raise InputError(f"{path}: the file is empty; expected one line of comma-separated cells per sample")
    header, names, places = _names(path, first, choice, form)
    readers = {name: TextReader(name, name in choice.categorical, form.decimal) for name in places}
    found: list[tuple[int, int]] = []
    rows = 0
    try:
        for part in _parts(path, lines, None if header else first, len(names), found):
            for name, reader in readers.items():
                reader.add([row[places[name]] for row in part])
            rows += len(part)
    except Mixed as error:
        row, cell = error.text
        raise InputError(
            f"{path}: line {_line(found, row)}: {cell!r} in column {error.column!r} is not a number, but "
            f"{error.number[1]!r} in line {_line(found, error.number[0])} is; "
            + (
                _ADVICE
                if form.may_be_comma(cell)
                else _REMOVE
                if form.has_points(cell)
                else f"correct the file, or set categorical={error.column} (--data-option "
                f"categorical={error.column}) to read all cells as names"
            )
        ) from None
    if not rows:
        raise InputError(f"{path}: there is a header, but no sample below it")
    return Table(path, {name: reader.column() for name, reader in readers.items()}, found)


def _names(path: Path, first: list[str], choice: Choice, form: _Form) -> tuple[bool, list[str], dict[str, int]]:
    """(whether the first line is a header, names of all columns, places of the chosen ones) of a first line's cells."""
    if not any(cell.strip() for cell in first):
        raise InputError(f"{path}: the first line is empty; expected comma-separated names or numbers in it")
    header = form.header
    if header is None:
        header = not any(is_number(cell, form.decimal) or form.may_be_comma(cell) for cell in first)
    names = [cell.strip() or str(i) for i, cell in enumerate(first)] if header else list(map(str, range(len(first))))
    place = {name: i for i, name in enumerate(names)}
    return header, names, {name: place[name] for name in choice.of(path, names)}


def _parts(
    path: Path, reader: Any, first: list[str] | None, width: int, found: list[tuple[int, int]]
) -> Iterator[list[list[str]]]:
    """The rows in parts, without empty lines. first: a row that `reader` has already read. Appends to `found` (see
    `Table.lines`).
    """
    part: list[list[str]] = []
    rows, line, expected = 0, 1 if first else reader.line_num + 1, 0
    for row in reader if first is None else itertools.chain([first], reader):
        if row:
            if len(row) != width:
                raise InputError(
                    f"{path}: line {line} has {len(row)} column{'s' * (len(row) != 1)} "
                    f"({','.join(row)[:40]!r}); the first line has {width}"
                )
            if line != expected:
                found.append((rows, line))
            expected = line + 1
            part.append(row)
            rows += 1
            if len(part) == _ROWS:
                yield part
                part = []
        line = reader.line_num + 1
    if part:
        yield part


# --- Parquet ----------------------------------------------------------------------------------------


def _parquet(path: Path, choice: Choice) -> Table:
    table = read_parquet(path, lambda schema: choice.of(path, schema.names))
    columns = {
        name: column_of(path, name, table.column(name), name in choice.categorical) for name in table.column_names
    }
    return Table(path, columns, ())
