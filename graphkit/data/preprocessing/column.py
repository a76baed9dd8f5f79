"""Columns of files: numbers or texts, with missing values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import InputError

# Texts of cells without a value, as in pandas.
MISSING = frozenset([
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null", "?",
])  # fmt: skip


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, float64 [rows]; NaN for a missing value."""

    name: str
    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Which rows have no value, bool [rows]."""
        found: np.ndarray = np.isnan(self.values)
        return found


@dataclass(frozen=True)
class Texts:
    """A column of texts, int64 [rows]: the index in `texts`, which are all different; -1 for a missing value."""

    name: str
    codes: np.ndarray
    texts: tuple[str, ...]

    @property
    def missing(self) -> np.ndarray:
        """Which rows have no value, bool [rows]."""
        return self.codes < 0


Column = Numbers | Texts


class TextReader:
    """Reads a column of text cell by cell. It becomes numbers, unless it is `categorical` or its cells are texts.

    Cells are added in order, in parts of any size. decimal: the decimal mark of numbers, "." or ",".
    """

    def __init__(self, name: str, categorical: bool, decimal: str = "."):
        self.name = name
        self._decimal = decimal
        self._numbers: list[np.ndarray] | None = None if categorical else []
        self._codes: list[np.ndarray] = []
        self._places: dict[str, int] = {}
        # The first number and the first text, as (row from 0, cell). A column with both is an error.
        self._number: tuple[int, str] | None = None
        self._text: tuple[int, str] | None = None
        self._categorical = categorical
        self._rows = 0

    def add(self, cells: Sequence[str]) -> None:
        """Add the next cells. Raises Mixed, which has row numbers from 0, if the column contains numbers and texts."""
        if self._numbers is not None and self._text is None:
            numbers = _numbers(cells, self._decimal)
            if numbers is not None:
                self._see(cells, np.flatnonzero(~np.isnan(numbers))[:1], is_text=False)
                self._numbers.append(numbers)
                self._rows += len(cells)
                return
        if not self._categorical:
            stripped = [cell.strip() for cell in cells]
            texts = [i for i, cell in enumerate(stripped) if cell not in MISSING and not is_number(cell, self._decimal)]
            numeric = [i for i, cell in enumerate(stripped) if cell not in MISSING and is_number(cell, self._decimal)]
            self._see(cells, texts[:1], is_text=True)
            self._see(cells, numeric[:1], is_text=False)
        self._codes.append(self._coded(cells))
        self._rows += len(cells)

    def _see(self, cells: Sequence[str], found: Iterable[int], *, is_text: bool) -> None:
        for i in found:
            seen = self._rows + int(i), cells[int(i)].strip()
            if is_text:
                self._text = self._text or seen
            else:
                self._number = self._number or seen
        if self._text is not None and self._number is not None:
            raise Mixed(self.name, self._text, self._number)

    def _coded(self, cells: Sequence[str]) -> np.ndarray:
        places = self._places
        return np.array(
            [-1 if (cell := raw.strip()) in MISSING else places.setdefault(cell, len(places)) for raw in cells],
            np.int64,
        )

    def column(self) -> Column:
        """Return the column. If all cells are empty, it contains numbers."""
        if self._numbers is not None and self._text is None:
            return Numbers(self.name, np.concatenate([np.zeros(0), *self._numbers]))
        before = 0 if self._numbers is None else sum(map(len, self._numbers))
        codes = np.concatenate([np.full(before, -1), *self._codes]).astype(np.int64)
        return Texts(self.name, codes, tuple(self._places))


class Mixed(InputError):
    """A column with numbers and texts: `text` and `number` are the first of each, as (row from 0, cell)."""

    def __init__(self, column: str, text: tuple[int, str], number: tuple[int, str]):
        super().__init__(f"column {column!r} contains both {text[1]!r} and {number[1]!r}")
        self.column, self.text, self.number = column, text, number


# Exchanges the decimal point and the decimal comma: "1.5" is not a number where numbers have decimal commas.
_EXCHANGED = str.maketrans(".,", ",.")


def is_number(cell: str, decimal: str = ".") -> bool:
    """Return whether a cell is a number with this decimal mark, "." or ","."""
    try:
        number(cell, decimal)
    except ValueError:
        return False
    # Python accepts 1_000; in a table, this is a text.
    return "_" not in cell


def number(cell: str, decimal: str) -> float:
    """Return the number in a cell. Raises ValueError if there is none."""
    return float(cell if decimal == "." else cell.translate(_EXCHANGED))


def _numbers(cells: Sequence[str], decimal: str) -> np.ndarray | None:
    """Convert cells to float64, NaN for cells without a value; None if a cell is a text."""
    try:
        found = np.array(cells if decimal == "." else [cell.translate(_EXCHANGED) for cell in cells]).astype(np.float64)
    except ValueError:
        try:
            # Like `is_number`, this accepts spaces and digits of every script.
            found = np.array([np.nan if (c := cell.strip()) in MISSING else number(c, decimal) for cell in cells])
        except ValueError:
            return None
    if any("_" in cell for cell in cells):
        return None
    found[np.isnan(found)] = np.nan  # "-nan" has the same bits as ""
    return found
