"""Columns of files: numbers or texts, with missing values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import InputError

# What stands in a cell that has no value, as pandas reads it.
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
    """Reads a column of text cell by cell. It contains numbers, unless it is `categorical` or no cell is a number.

    Cells are added in order, in parts of any size.
    """

    def __init__(self, name: str, categorical: bool):
        self.name = name
        self._numbers: list[np.ndarray] | None = None if categorical else []
        self._codes: list[np.ndarray] = []
        self._places: dict[str, int] = {}
        # The first row of each kind that a column of the other kind cannot have: its number from 0, and its cell.
        self._number: tuple[int, str] | None = None
        self._text: tuple[int, str] | None = None
        self._categorical = categorical
        self._rows = 0

    def add(self, cells: Sequence[str]) -> None:
        """Take the next cells. Raises InputError where numbers and texts are mixed: rows are numbered from 0 there."""
        if self._numbers is not None and self._text is None:
            numbers = _numbers(cells)
            if numbers is not None:
                self._see(cells, np.flatnonzero(~np.isnan(numbers))[:1], is_text=False)
                self._numbers.append(numbers)
                self._rows += len(cells)
                return
        if not self._categorical:
            stripped = [cell.strip() for cell in cells]
            texts = [i for i, cell in enumerate(stripped) if cell not in MISSING and not is_number(cell)]
            numeric = [i for i, cell in enumerate(stripped) if cell not in MISSING and is_number(cell)]
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


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    # Python's own way of writing numbers in code is none of tables.
    return "_" not in cell


def _numbers(cells: Sequence[str]) -> np.ndarray | None:
    """float64 of cells, NaN for those without a value; None if one is a text."""
    try:
        found = np.array(cells).astype(np.float64)
    except ValueError:
        try:
            # As `is_number` reads: space and digits of every script.
            found = np.array([np.nan if (c := cell.strip()) in MISSING else float(c) for cell in cells])
        except ValueError:
            return None
    return None if any("_" in cell for cell in cells) else found
