"""Texts in rows: a .csv, .tsv, .jsonl or .parquet file with a column of texts and perhaps a column of labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from graphkit.data.dataset import TARGETS
from graphkit.data.preprocessing.parquet import ParquetColumns
from graphkit.data.preprocessing.vocabulary import read_text
from graphkit.errors import InputError, did_you_mean
from graphkit.text import listed

# Suffixes of files that `read_columns` reads.
SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
# Names of columns that contain the text, the most specific first.
_TEXTS = ("text", "texts", "sentence", "review", "content")

# Cells by column. Those of .csv and .tsv files are texts.
Columns: TypeAlias = Mapping[str, Sequence[Any]]


def read_columns(path: Path) -> Columns:
    """Return the columns of a file. Raises InputError, which names file and line, if it cannot be read."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetColumns(path)
    found = _objects(path) if suffix == ".jsonl" else _cells(path)
    if not found or not len(next(iter(found.values()))):
        raise InputError(f"{path}: the file contains no row")
    return found


def _objects(path: Path) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(row, dict) or (columns and set(row) != set(columns)):
            raise InputError(f"{path}, line {number}: expected a JSON object with the same keys in every line")
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _cells(path: Path) -> dict[str, list[str]]:
    mark = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader(io.StringIO(read_text(path), newline=""), delimiter=mark, strict=True)
    try:
        names = next(reader, [])
        if len(set(names)) != len(names):
            raise InputError(f"{path}: two columns have one name; the first line is {listed(names, len(names), 8)}")
        columns: dict[str, list[str]] = {name: [] for name in names}
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise InputError(
                    f"{path}, line {reader.line_num}: {len(row)} cells, but the first line has {len(names)}"
                )
            for name, cell in zip(names, row, strict=True):
                columns[name].append(cell)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None
    return columns


def text_column(path: Path, columns: Columns, name: str | None = None, besides: Collection[str] = ()) -> list[str]:
    """Return the texts of the rows.

    Args:
        path: The file, for errors.
        columns: Its columns.
        name: Name of the column. Default: text, texts, sentence, review or content, else the only column.
        besides: Names of columns that are not the text.

    Raises:
        InputError: It is not clear which column it is, or a value is not a text.
    """
    if name is None:
        others = [column for column in columns if column not in besides]
        name = _known(others, _TEXTS) or (others[0] if len(others) == 1 else None)
    if name is None:
        raise InputError(
            f"{path}: it is not clear which column contains the texts: the columns are "
            f"{listed(list(columns), len(columns), 8)}. Name it text, or give its name (--data-option text=NAME)"
        )
    if name not in columns:
        raise InputError(f"{path}: there is no column {name!r}{did_you_mean(name, columns)}")
    values = columns[name]
    for row, value in enumerate(values):
        if not isinstance(value, str):
            raise InputError(f"{path}, {_place(path, row)}: {name!r} must be a text, not {json.dumps(value)}")
    return list(values)


def _place(path: Path, row: int) -> str:
    """Name a row of a .jsonl or .parquet file for an error. row: counted from 0."""
    if path.suffix.lower() == ".parquet":
        return f"row {row}"
    lines = [number for number, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    return f"line {lines[row]}"


def target_column(columns: Columns) -> str | None:
    """Return the name of the column of labels: y, target, targets, label, labels or class; None if there is none."""
    return _known(columns, TARGETS)


def _known(columns: Collection[str], known: Iterable[str]) -> str | None:
    """Return the first of the known names that a column has. Case does not matter, unless a name fits exactly."""
    names = {column.lower(): column for column in columns}
    names |= {column: column for column in columns if column == column.lower()}
    return next((names[name] for name in known if name in names), None)


def targets_of(path: Path, name: str, values: Sequence[Any]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return (targets, classes): int64 for whole numbers, float32 for others, and for texts their number among classes.

    Raises InputError if a label is missing, or if some are texts and others are not.
    """
    if any(value is None or value == "" for value in values):
        number = next(i for i, value in enumerate(values) if value is None or value == "")
        raise InputError(f"{path}: the label {name!r} of sample {number} is missing")
    for kind, dtype in ((int, np.int64), (float, np.float32)):
        try:
            if not all(isinstance(value, str) or (kind is float or float(value).is_integer()) for value in values):
                continue
            return np.array([kind(value) for value in values], dtype), None
        except (TypeError, ValueError, OverflowError):
            continue
    if odd := [value for value in values if not isinstance(value, str)]:
        raise InputError(f"{path}: the label {name!r} is text in some samples, and {odd[0]!r} in others")
    classes = sorted(set(values))
    places = {label: number for number, label in enumerate(classes)}
    return np.array([places[value] for value in values], np.int64), tuple(classes)
