"""Read text tables with pyarrow, ten times as fast as with Python's csv module, and with the same result.

Both parsers agree on regular files only. Therefore this module checks each block of a file, and each column of a block.
In these cases it returns nothing, and the csv module reads the file:

- A block has NUL bytes, invalid UTF-8, a carriage return without a line feed, quotes inside of a cell, line breaks
  between quotes, or a cell near the csv module's limit for its length.
- A column has numbers and texts.
- There is an error, for example rows of different lengths. The csv module finds it again, and names the line.

pyarrow converts cells to numbers. If all values are finite, they have the bits that Python's float() returns: both
round to the nearest float64, and Python accepts all decimal numbers that pyarrow accepts. Otherwise, for example for
" NA", "inf", "+1" or digits of other scripts, Python converts the different cells of the column in this block.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from graphkit.data.preprocessing.column import MISSING, Column, Numbers, Texts, is_number, number
from graphkit.errors import InputError

# Bytes of a file that are in memory as text at a time: of the first block, which shows the kinds of the columns, and of
# the others.
_FIRST = 1 << 16
_BLOCK = 1 << 22

# Blocks are longer if fewer rows like the last one fit into one, because each column of a block takes some time.
# `_LONGEST` limits blocks and lines.
_FEWEST_ROWS = 256
_LONGEST = 1 << 26

_BOM = b"\xef\xbb\xbf"
_QUOTE, _LF, _CR = b'"\n\r'

# Rows that a column has memory for at first.
_ROWS = 1 << 12

# Delimiters that both parsers treat alike. The last one replaces delimiters of several characters.
_DELIMITERS = ",;\t|:\x1f"


class _Doubt(Exception):
    """The csv module might read the file differently."""


def read(
    path: Path, delimiter: str, replaced: str | None, names: Callable[[list[str]], tuple[bool, int, dict[str, int]]],
    categorical: Collection[str], decimal: str = ".",
) -> tuple[dict[str, Column], list[tuple[int, int]]] | None:  # fmt: skip
    """Return (columns, lines as in Table) of a file; None if pyarrow is missing, or the csv module must read the file.

    replaced: a text that `delimiter` replaces first. names: returns for the cells of the first line whether they are a
    header, how many columns there are, and the places of those to read. categorical: as in Choice.
    decimal: the decimal mark of numbers.
    """
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        return None
    if delimiter not in _DELIMITERS or not (replaced or "").isascii() or set(replaced or "") & set('"\r\n\0'):
        return None
    try:
        with path.open("rb") as file:
            return _read(_blocks(file, delimiter, replaced), delimiter, names, categorical, decimal)
    except (_Doubt, pyarrow.ArrowException, InputError, UnicodeDecodeError, OSError, csv.Error):
        return None


def _read(
    blocks: Iterator[bytes], delimiter: str, names: Callable[[list[str]], tuple[bool, int, dict[str, int]]],
    categorical: Collection[str], decimal: str,
) -> tuple[dict[str, Column], list[tuple[int, int]]]:  # fmt: skip
    lines = _Lines()
    fillings: list[_Filling] = []
    width = 0
    for block in blocks:
        if not fillings:
            end = block.index(b"\n") + 1
            if block.count(b'"', 0, end) % 2:  # a line break between quotes
                raise _Doubt
            header, width, places = names(next(csv.reader([block[:end].decode()], delimiter=delimiter)))
            fillings = [_Filling(name, str(place), name in categorical, decimal) for name, place in places.items()]
            if header:
                block = block[end:]
                lines.next = 2
        lines.add(
            block, _add(block, delimiter, decimal, width, fillings, not lines.rows) if block.lstrip(b"\r\n") else 0
        )
    if not lines.rows:
        raise _Doubt
    return {filling.name: filling.column() for filling in fillings}, lines.found


# --- blocks -----------------------------------------------------------------------------------------


def _blocks(file: BinaryIO, delimiter: str, replaced: str | None) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines, without byte order mark. Raises _Doubt if a block is irregular."""
    limit = csv.field_size_limit()
    rest, size = file.read(len(_BOM)).removeprefix(_BOM), _FIRST
    while part := file.read(size):
        end = part.rfind(b"\n") + 1
        if end:
            block = b"".join((rest, memoryview(part)[:end]))
            size = min(max(_BLOCK, _FEWEST_ROWS * (len(block) - 1 - block.rfind(b"\n", 0, -1))), _LONGEST)
            rest = part[end:]
            del part  # its memory is used for the next block
            yield _regular(block, delimiter, replaced, limit)
        else:
            rest += part
            size = _BLOCK
            if len(rest) > _LONGEST:
                raise _Doubt
    if rest:
        yield _regular(rest + b"\n", delimiter, replaced, limit)


def _regular(block: bytes, delimiter: str, replaced: str | None, limit: int) -> bytes:
    """Return a block in which the delimiter replaces `replaced`. Raises _Doubt if parsers might disagree on it."""
    if replaced is not None:
        block = block.replace(replaced.encode(), delimiter.encode())
    if b"\0" in block or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
        raise _Doubt
    if not block.isascii():
        block.decode()
    has_quotes = b'"' in block
    # If a cell ends in each window, no cell is longer than two windows.
    ends = (b"\n",) if has_quotes else (b"\n", delimiter.encode())
    window = max(limit // 2, 1)
    if any(all(block.find(end, i, i + window) < 0 for end in ends) for i in range(0, len(block) - window, window)):
        raise _Doubt
    if has_quotes and not _quotes_whole_cells(np.frombuffer(block, np.uint8), ord(delimiter)):
        raise _Doubt
    return block


def _quotes_whole_cells(text: np.ndarray, delimiter: int) -> bool:
    """Whether quotes in a block only enclose whole cells, and are doubled between these quotes.

    Line feeds between quotes are found by `_Lines`: such a row has several lines with text.
    """
    places = np.flatnonzero(text == _QUOTE)
    if places.size % 2:
        return False
    # The second and third quotes of "a""b" close and open as well.
    opening, closing = places[::2], places[1::2]
    starts, ends = np.zeros((2, 256), bool)
    starts[[delimiter, _LF, _QUOTE]] = ends[[delimiter, _LF, _CR, _QUOTE]] = True
    if opening[0] == 0:
        opening = opening[1:]
    return bool(starts[text[opening - 1]].all() and ends[text[closing + 1]].all())


class _Lines:
    """Finds the lines of rows, `found`, as Table describes them."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int]] = []
        self.rows = 0
        # The line with which the next block begins, and that of the next row unless there are empty lines before it.
        self.next = 1
        self._expected = 0

    def add(self, block: bytes, rows: int) -> None:
        """Add a block that has `rows` rows. Raises _Doubt if this is not the number of lines with text."""
        text = np.frombuffer(block, np.uint8)
        count = int(np.count_nonzero(text == _LF))
        if not rows or rows == count:
            lines = np.arange(self.next, self.next + rows)
        else:
            ends = np.flatnonzero(text == _LF)
            starts = np.concatenate([[0], ends[:-1] + 1])
            empty = (starts == ends) | ((starts + 1 == ends) & (text[starts] == _CR))
            lines = self.next + np.flatnonzero(~empty)
        if len(lines) != rows:
            raise _Doubt
        jumps = np.flatnonzero(np.diff(lines, prepend=self._expected - 1) != 1)
        self.found.extend((self.rows + int(i), int(lines[i])) for i in jumps)
        self.rows += rows
        self.next += count
        if rows:
            self._expected = int(lines[-1]) + 1


# --- columns ----------------------------------------------------------------------------------------


class _Growing:
    """An array that grows at its end. Large arrays grow without a copy."""

    def __init__(self, dtype: type):
        self._array: np.ndarray = np.empty(_ROWS, dtype)
        self.size = 0

    def extend(self, count: int) -> np.ndarray:
        """Add `count` elements, and return a view of them that is valid until the next call."""
        end = self.size + count
        if end > len(self._array):
            self._array.resize(max(end, len(self._array) * 5 // 4), refcheck=False)
        added = self._array[self.size : end]
        self.size = end
        return added

    def taken(self) -> np.ndarray:
        """Return the elements as an array of their size. Nothing can be added then."""
        self._array.resize(self.size, refcheck=False)
        return self._array


class _Filling:
    """A column that grows by blocks. `texts`: whether pyarrow returns its next cells as texts, not as numbers."""

    def __init__(self, name: str, place: str, categorical: bool, decimal: str):
        self.name, self.place, self.texts = name, place, True
        self._decimal = decimal
        self._categorical = categorical
        self._numbers, self._codes = _Growing(np.float64), _Growing(np.int64)
        self._places: dict[str, int] = {}
        self._has_number = False

    @property
    def _is_text(self) -> bool:
        return self._categorical or bool(self._places)

    def add_numbers(self, chunks: Any) -> bool:
        """Add cells that pyarrow converted. Returns False, and adds nothing, if not all of them are finite or empty."""
        values = chunks.to_numpy()
        if np.isfinite(values).sum() + chunks.null_count != len(values):
            return False
        if chunks.null_count:
            values = np.where(np.isnan(values), np.nan, values)  # all with the same bits
        self._has_number = self._has_number or chunks.null_count < len(values)
        self._numbers.extend(len(values))[:] = values
        return True

    def add_texts(self, encoded: Any) -> None:
        """Add cells, an arrow array with a dictionary. Raises _Doubt if the column has numbers and texts."""
        raw = encoded.dictionary.to_pylist()
        cells = [cell.strip() for cell in raw]
        indices = encoded.indices.fill_null(len(raw)).to_numpy(zero_copy_only=False)
        if not self._categorical:
            numeric = [cell not in MISSING and is_number(cell, self._decimal) for cell in cells]
            self._has_number = self._has_number or any(numeric)
            has_text = any(cell not in MISSING for cell, known in zip(cells, numeric, strict=True) if not known)
            if self._has_number and (has_text or self._places):
                raise _Doubt
            if not has_text and not self._places:
                found = np.full(len(cells) + 1, np.nan)
                found[:-1][numeric] = [number(cell, self._decimal) for cell in compress(cells, numeric)]
                found[np.isnan(found)] = np.nan
                found.take(indices, out=self._numbers.extend(len(indices)), mode="clip")
                return
        seen = np.maximum.accumulate(indices[indices < len(raw)])
        if (np.diff(seen, prepend=-1) > 1).any():  # texts must be numbered in the order of the file
            raise _Doubt
        places = self._places
        codes = [-1 if cell in MISSING else places.setdefault(cell, len(places)) for cell in cells]
        if not self._codes.size:  # until now, all cells were empty
            self._codes.extend(self._numbers.size)[:] = -1
        np.array([*codes, -1], np.int64).take(indices, out=self._codes.extend(len(indices)), mode="clip")

    def choose_reading(self, encoded: Any) -> None:
        """Read the next cells as numbers, if the column has no texts and pyarrow can convert these cells."""
        import pyarrow
        import pyarrow.compute

        self.texts = True
        if not self._is_text:
            try:
                cells = pyarrow.compute.utf8_trim(encoded.dictionary, " \t")
                if self._decimal == ",":
                    cells = pyarrow.compute.replace_substring(cells, ",", ".")
                values = cells.cast(pyarrow.float64())
            except pyarrow.ArrowInvalid:
                return
            self.texts = not np.isfinite(values.to_numpy(zero_copy_only=False)).all()

    def column(self) -> Column:
        """Return the column. Nothing can be added to it then."""
        if self._is_text:
            return Texts(self.name, self._codes.taken(), tuple(self._places))
        return Numbers(self.name, self._numbers.taken())


def _add(block: bytes, delimiter: str, decimal: str, width: int, fillings: list[_Filling], is_first: bool) -> int:
    """Add the cells of a block to the columns. Returns the number of rows."""
    import pyarrow

    if block.startswith(_BOM):  # pyarrow would remove it
        raise _Doubt
    parse = partial(_parse, block, delimiter, decimal, width)
    again = []
    try:
        table = parse({filling.place: filling.texts for filling in fillings})
    except pyarrow.ArrowInvalid:
        table = parse({filling.place: True for filling in fillings})
        again = [filling for filling in fillings if not filling.texts]
    else:
        for filling in fillings:
            if not filling.texts and not filling.add_numbers(table.column(filling.place)):
                again.append(filling)
        if again:
            texts = parse({filling.place: True for filling in again})
            for filling in again:
                table = table.set_column(
                    table.column_names.index(filling.place), filling.place, texts.column(filling.place)
                )
    for filling in fillings:
        if filling.texts or filling in again:
            for chunk in table.column(filling.place).chunks:
                filling.add_texts(chunk)
                if is_first or filling in again:
                    filling.choose_reading(chunk)
    return int(table.num_rows)


def _parse(block: bytes, delimiter: str, decimal: str, width: int, texts: Mapping[str, bool]) -> Any:
    """Return the columns of a block as float64, or with a dictionary of texts where `texts` is True."""
    import pyarrow
    import pyarrow.csv

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    return pyarrow.csv.read_csv(
        pyarrow.BufferReader(block),
        read_options=pyarrow.csv.ReadOptions(
            use_threads=False, block_size=len(block) + 1, column_names=[str(place) for place in range(width)]
        ),
        parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter),
        convert_options=pyarrow.csv.ConvertOptions(
            check_utf8=False,
            decimal_point=decimal,
            column_types={place: text if is_text else pyarrow.float64() for place, is_text in texts.items()},
            include_columns=list(texts),
            null_values=list(MISSING),
            strings_can_be_null=True,
        ),
    )
