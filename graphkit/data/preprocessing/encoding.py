"""Encode the columns of a table as inputs, with settings learned from the training rows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.preprocessing.column import Column, Numbers, Texts
from graphkit.data.preprocessing.table_reading import Choice, Table, read_table
from graphkit.errors import InputError, UsageError

# Treatment of empty cells in columns of numbers.
FILLS = ("raise", "mean", "median", "zero")
SCALES = ("none", "standard", "minmax")
CATEGORIES = ("onehot", "codes")

# Names of the inputs: of numbers, and of the codes of categories.
NUMBERS, CODES = "x", "categories"

# Rows of x that are filled at a time.
_ROWS = 1 << 10


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: (value - shift) / scale; `fill` replaces an empty cell. flagged: a flag after it marks
    empty cells.
    """

    name: str
    fill: float | None = None
    shift: float = 0.0
    scale: float = 1.0
    flagged: bool = False


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories. Its values have the codes 1, 2, ... in order; 0 is an empty cell or an unknown value."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Encoding:
    """Encodes rows of a table as the input `x`, float32 [rows, columns of x], and with "codes" also as `categories`.

    x begins with the columns of numbers, in their order, each followed by its flag. With "onehot", x also contains a
    column for each value of each column of categories; for an unknown value, all of them are 0. With "codes", the
    columns of categories are the input `categories`, int64 [rows, columns].
    """

    numbers: tuple[NumberColumn, ...]
    categories: tuple[CategoryColumn, ...]
    onehot: bool

    @staticmethod
    def fit(
        table: Table, names: Collection[str], rows: np.ndarray | slice, *, missing: str = "raise",
        indicator: bool = False, scale: str = "none", categories: str = "onehot",
    ) -> Encoding:  # fmt: skip
        """Learn the fills, shifts, scales and values of the named columns from `rows`.

        missing: one of FILLS; with "raise", an InputError names the first empty cell of all rows. indicator: add a flag
        to columns that have empty cells. scale: "standard" to mean 0 and standard deviation 1, "minmax" to [0, 1].
        """
        for option, value, known in (
            ("missing", missing, FILLS), ("scale", scale, SCALES), ("categories", categories, CATEGORIES),
        ):  # fmt: skip
            if value not in known:
                raise UsageError(f"{table.path}: {option} must be one of {', '.join(known)}, not {value!r}")
        if not len(np.arange(table.rows)[rows]):
            raise InputError(f"{table.path}: there are no rows to learn the columns from")
        numbers, named = [], []
        for name in names:
            column = table.columns[name]
            if isinstance(column, Numbers):
                numbers.append(_number_column(table, column, rows, missing, indicator, scale))
            else:
                seen = np.unique(column.codes[rows])
                named.append(CategoryColumn(name, tuple(sorted(column.texts[i] for i in seen if i >= 0))))
        return Encoding(tuple(numbers), tuple(named), categories == "onehot")

    def inputs(self, table: Table, rows: np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
        """Return the inputs of a table's rows. Raises InputError if a column is missing or of another kind, or a
        cell is empty and has no fill.
        """
        numbers = [self._number(table, column, rows) for column in self.numbers]
        codes = [self._codes(table, column)[rows] for column in self.categories]
        inputs = {}
        if numbers or (codes and self.onehot):
            inputs[NUMBERS] = self._filled(numbers, codes if self.onehot else [])
        if codes and not self.onehot:
            inputs[CODES] = np.stack(codes, axis=1)
        return inputs

    def _filled(self, numbers: list[tuple[np.ndarray, np.ndarray]], codes: list[np.ndarray]) -> np.ndarray:
        """Return x of the (values, missing) of each column of numbers, and the codes of those that are one-hot."""
        widths = [1 + column.flagged for column in self.numbers]
        widths += [len(column.values) for column in self.categories[: len(codes)]]
        places = [0, *itertools.accumulate(widths)]
        x = np.zeros((len(codes[0] if codes else numbers[0][0]), places[-1]), np.float32)
        # Parts of x stay in the processor's cache until all their columns are filled.
        for start in range(0, len(x), _ROWS):
            part, rows = x[start : start + _ROWS], slice(start, start + _ROWS)
            for place, column, (values, missing) in zip(places, self.numbers, numbers, strict=False):
                is_scaled = (column.shift, column.scale) != (0, 1)
                part[:, place] = (values[rows] - column.shift) / column.scale if is_scaled else values[rows]
                if column.flagged:
                    part[:, place + 1] = missing[rows]
            for place, found in zip(places[len(numbers) :], codes, strict=False):
                known = np.flatnonzero(found[rows])
                part[known, place - 1 + found[rows][known]] = 1
        return x

    def read(self, path: Path, **form: Any) -> dict[str, np.ndarray]:
        """Return the inputs of all rows of a file. Other columns are ignored. Raises InputError as `inputs` does.

        form: header, delimiter, encoding and decimal of a text file, as in `read_table`.
        """
        named = [column.name for column in self.categories]
        choice = Choice([*(column.name for column in self.numbers), *named], (), named)
        return self.inputs(read_table(path, choice, **form))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of codes of each column of `categories`: the number of rows of its embedding table."""
        return tuple(len(column.values) + 1 for column in self.categories)

    def _number(self, table: Table, column: NumberColumn, rows: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """Return the values of a column, with its empty cells filled, and which cells were empty."""
        found = _column(table, column.name)
        if not isinstance(found, Numbers):
            raise InputError(f"{table.path}: column {column.name!r} contains text, but contained numbers in training")
        values, missing = found.values[rows], found.missing[rows]
        if missing.any():
            if column.fill is None:
                raise _gap(table, found)
            values = np.where(missing, column.fill, values)
        return values, missing

    def _codes(self, table: Table, column: CategoryColumn) -> np.ndarray:
        found = _column(table, column.name)
        if isinstance(found, Numbers):  # in this file, all cells of the column are numbers or empty
            raise InputError(
                f"{table.path}: column {column.name!r} contains numbers, but contained names in training; read it "
                f"with categorical={column.name} (--data-option categorical={column.name})"
            )
        places = {value: i for i, value in enumerate(column.values, 1)}
        of_texts = np.array([*(places.get(text, 0) for text in found.texts), 0], np.int64)
        codes: np.ndarray = of_texts[found.codes]  # the code -1 of an empty cell selects the last element, 0
        return codes

    # --- as text ------------------------------------------------------------------------------------

    def to_json(self) -> str:
        return json.dumps({
            "numbers": [asdict(c) for c in self.numbers], "categories": [asdict(c) for c in self.categories],
            "onehot": self.onehot,
        }, ensure_ascii=False)  # fmt: skip

    @staticmethod
    def from_json(text: str) -> Encoding:
        """Read the text of `to_json`. Raises InputError for any other text."""
        try:
            found = json.loads(text)
            numbers = tuple(NumberColumn(**c) for c in found["numbers"])
            named = tuple(CategoryColumn(str(c["name"]), tuple(map(str, c["values"]))) for c in found["categories"])
            for column in numbers:
                float(column.shift), float(column.scale), float(column.fill or 0.0)
            return Encoding(numbers, named, bool(found["onehot"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"the description of a table's columns in the metadata is damaged: {error!r}") from None


def _number_column(
    table: Table, column: Numbers, rows: np.ndarray | slice, missing: str, indicator: bool, scale: str
) -> NumberColumn:
    gaps = column.missing
    if gaps.any() and missing == "raise":
        raise _gap(table, column)
    known = column.values[rows]
    if gaps.any():
        known = known[~gaps[rows]]
    if not known.size:
        raise InputError(
            f"{table.path}: column {column.name!r} is empty in all training rows; drop={column.name} (--data-option "
            f"drop={column.name}) leaves it out"
        )
    fill = None
    if missing != "raise":
        fill = {"mean": float(known.mean()), "median": float(np.median(known)), "zero": 0.0}[missing]
    shift, size = 0.0, 1.0
    if scale == "standard":
        shift, size = float(known.mean()), float(known.std())
    elif scale == "minmax":
        shift, size = float(known.min()), float(known.max() - known.min())
    flagged = indicator and bool(gaps.any())
    return NumberColumn(column.name, fill, shift, size or 1.0, flagged)


def _column(table: Table, name: str) -> Column:
    if name not in table.columns:
        raise InputError(f"{table.path}: there is no column {name!r}, which the model was trained with")
    return table.columns[name]


def _gap(table: Table, column: Numbers) -> InputError:
    gaps = np.flatnonzero(column.missing)
    return InputError(
        f"{table.path}: column {column.name!r} has no value in {len(gaps)} of {table.rows} rows, first in "
        f"{table.row(int(gaps[0]))}; to fill such cells, train with missing=mean, median or zero (--data-option "
        "missing=mean)"
    )


def names_of(given: str | Collection[str] | None) -> tuple[str, ...]:
    """Return names of columns, given as a text with commas or as a sequence."""
    if given is None:
        return ()
    parts = given.split(",") if isinstance(given, str) else given
    return tuple(name for part in parts if (name := str(part).strip()))


# From this number on, float64 cannot represent all whole numbers.
_EXACT = 2.0**53


def targets_of(table: Table, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return (targets, classes) of a column: int64 for whole numbers from 0, float32 for others, int64 for text."""
    column = table.columns[name]
    gaps = np.flatnonzero(column.missing)
    if gaps.size:
        raise InputError(
            f"{table.path}: the target {name!r} has no value in {len(gaps)} of {table.rows} rows, first in "
            f"{table.row(int(gaps[0]))}"
        )
    if isinstance(column, Texts):
        classes = sorted(column.texts)
        places: Mapping[str, int] = {text: i for i, text in enumerate(classes)}
        return np.array([places[text] for text in column.texts], np.int64)[column.codes], tuple(classes)
    values: Any = column.values
    whole = bool(np.isfinite(values).all() and (values == np.round(values)).all() and (values >= 0).all())
    if whole and values.size and values.max() >= _EXACT:
        row = int(values.argmax())
        where = (
            f"{table.path}: the target {name!r} is about {values[row]:.0f} in {table.row(row)}, too large for a "
            "class number"
        )
        raise InputError(
            f"{where}: columns of numbers are read as float64, which is exact only below 2^53. Write classes as text, "
            "and measured values with a decimal point"
        )
    return values.astype(np.int64 if whole else np.float32), None
