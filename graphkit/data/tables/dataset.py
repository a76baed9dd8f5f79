"""Tables as data sets: which columns are inputs and targets, and what is learned from the training rows."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data import order
from graphkit.data.dataset import TARGETS, Dataset, Splits
from graphkit.data.preprocessing.column import Texts
from graphkit.data.preprocessing.encoding import CODES, NUMBERS, Encoding, names_of, targets_of
from graphkit.data.preprocessing.table_reading import Choice, Table, read_table
from graphkit.errors import InputError, UsageError, did_you_mean


class TableData(Dataset):
    """Rows of a table. The input `x` contains numbers, float32 [N, columns].

    With the option categories="codes", the columns of text or categories are a second input `categories`, int64 [N,
    columns]. Otherwise they are one-hot encoded in `x`. `encoding` describes how each column was encoded.
    """

    def __init__(self, inputs: Any, targets: Any, encoding: Encoding, *, classes: Any = None, name: str = "table"):
        super().__init__(inputs, targets, classes=classes, name=name)
        self.encoding: Encoding = encoding


def load(
    path: Path, *, test_fraction: float | None = 0.2, seed: int = 0, like: Dataset | None = None,
    target: str | Collection[str] | None = None, columns: str | Collection[str] | None = None,
    drop: str | Collection[str] = (), categorical: str | Collection[str] = (), categories: str = "onehot",
    missing: str = "raise", indicator: bool | str = False, scale: str = "none", header: bool | str | None = None,
    delimiter: str | None = None, encoding: str | None = None, decimal: str = ".", weight: str | None = None,
) -> Splits | Dataset:  # fmt: skip
    """Load (train, test) of the rows of a table; with test_fraction None, one data set of all rows.

    Names of several columns may be given as one text, separated by commas. missing, indicator, scale and categories are
    described in Encoding. They are learned only from the training part, or are those of `like`.

    Args:
        path: The file.
        target: The target column, or several (default: y, target, targets, label, labels or class, else the last
            column).
        columns: The input columns (default: all others).
        drop: Columns that are not inputs.
        categorical: Columns of numbers that are names of categories.
        like: Data of the same table, whose encoding is used.
        header, delimiter, encoding, decimal: See read_table.
        weight: A column with weights of the samples. It is an array of this name, for `fit(sample_weight=...)`.

    Raises:
        InputError: A cell cannot be used. The message names file, line and column.
    """
    named, taken = names_of(target), names_of(columns)
    further = (weight,) if weight else ()
    choice = Choice((*taken, *named, *further) if taken and named else None, names_of(drop), names_of(categorical))
    table = read_table(
        path, choice, header=flag_of("header", header), delimiter=delimiter, encoding=encoding, decimal=decimal
    )
    weights = {} if weight is None else {weight: _weights(table, weight, named)}
    named = _targets(table, named, weight)
    inputs = _inputs(table, (*named, *further), taken)
    found = {name: targets_of(table, name) for name in named}
    targets, classes = found[named[0]] if len(named) == 1 else ({n: t for n, (t, _) in found.items()}, None)
    train, test = _divided(path, table.rows, targets, test_fraction, seed)
    if like is not None and like.encoding is not None:
        fitted = like.encoding
    else:
        fitted = Encoding.fit(
            table, inputs, train, missing=missing, indicator=bool(flag_of("indicator", indicator)), scale=scale,
            categories=categories,
        )  # fmt: skip

    def part(rows: np.ndarray | slice, name: str) -> TableData:
        arrays = {**fitted.inputs(table, rows), **{name: array[rows] for name, array in weights.items()}}
        chosen = {n: t[rows] for n, t in targets.items()} if isinstance(targets, dict) else targets[rows]
        return TableData(
            arrays[NUMBERS] if list(arrays) == [NUMBERS] else arrays, chosen, fitted, classes=classes, name=name
        )

    if test_fraction is None:
        return part(train, str(path))
    return Splits(part(train, f"{path} (train)"), part(test, f"{path} (test)"))


def _divided(
    path: Path, rows: int, targets: Any, test_fraction: float | None, seed: int
) -> tuple[np.ndarray | slice, np.ndarray | slice]:
    """Return the rows for training and for testing. Classes have the same shares in both."""
    if test_fraction is None:
        return slice(None), slice(0)
    labels = targets if isinstance(targets, np.ndarray) and targets.dtype.kind == "i" else None
    return order.hold_out(str(path), rows, test_fraction, seed, labels)


def _weights(table: Table, name: str, targets: tuple[str, ...]) -> np.ndarray:
    """Return the column of sample weights. Raises InputError if it is not one of numbers, or has another purpose."""
    where = f"{table.path}: the column of sample weights, {name!r} (--weight-column),"
    if name not in table.columns:
        raise InputError(f"{table.path}: there is no column {name!r}{did_you_mean(name, table.columns)}")
    if isinstance(table.columns[name], Texts):
        raise InputError(f"{where} contains texts")
    if name in targets or name in (NUMBERS, CODES):
        raise InputError(f"{where} {'is a target' if name in targets else 'has the name of an input: rename it'}")
    return targets_of(table, name)[0]


def _targets(table: Table, named: tuple[str, ...], weight: str | None) -> tuple[str, ...]:
    if named:
        for name in named:
            if name not in table.columns:
                raise InputError(f"{table.path}: there is no column {name!r}{did_you_mean(name, table.columns)}")
        return named
    columns = [name for name in table.columns if name != weight]
    if not columns:
        raise InputError(f"{table.path}: the only column, {weight!r}, contains the weights of the samples")
    lower = {name.lower(): name for name in columns}
    return (next((lower[name] for name in TARGETS if name in lower), columns[-1]),)


def _inputs(table: Table, targets: tuple[str, ...], taken: tuple[str, ...]) -> list[str]:
    for name in taken:
        if name not in table.columns:
            raise InputError(f"{table.path}: there is no column {name!r}{did_you_mean(name, table.columns)}")
    found = [n for n in taken or table.columns if n not in targets]
    if not found:
        raise InputError(f"{table.path}: no column is left for the inputs; the table has {', '.join(table.columns)}")
    for name in found:
        column = table.columns[name]
        if isinstance(column, Texts) and len(column.texts) > max(1000, table.rows // 2):
            raise InputError(
                f"{table.path}: column {name!r} has {len(column.texts)} different texts in {table.rows} rows, too "
                f"many for a category; drop={name} (--data-option drop={name}) leaves it out"
            )
    return found


def flag_of(option: str, given: bool | str | None) -> bool | None:
    if given is None or isinstance(given, bool):
        return given
    if given.lower() in ("true", "false"):
        return given.lower() == "true"
    raise UsageError(f"{option} must be true or false, not {given!r}")
