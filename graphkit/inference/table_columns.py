"""Columns of a table as inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.data.preprocessing.column import Numbers
from graphkit.data.preprocessing.encoding import Encoding
from graphkit.data.preprocessing.table_reading import Table, read_table
from graphkit.errors import InputError
from graphkit.ir.types import DType, TensorType, Type
from graphkit.text import quantity


def inputs_of_table(
    path: Path, encoding: Encoding | None, types: Mapping[str, Type], form: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], str]:
    """Return the inputs of a table's rows, and how they were made.

    With an encoding, columns are encoded as in training. Otherwise, each input is the column of the same name, or the
    only input gets all columns in their order. form: header, delimiter, encoding and decimal, as in `read_table`.

    Raises:
        InputError: The file cannot be read, or its columns do not match the inputs.
    """
    if encoding is not None:
        return encoding.read(path, **form), f"{path}: columns are encoded as in training, by the model's metadata"
    table = read_table(path, **form)
    if set(types) <= set(table.columns):
        return {name: _named(table, name, kind) for name, kind in types.items()}, (
            f"{path}: each column is the input of the same name, because the model's metadata describe no columns"
        )
    if len(types) != 1:
        raise InputError(
            f"{path}: the model's metadata do not describe how columns become inputs, and the file lacks a column for "
            f"input {next(n for n in types if n not in table.columns)!r}; its columns are {', '.join(table.columns)}"
        )
    ((name, kind),) = types.items()
    width = kind.shape[1] if isinstance(kind, TensorType) and kind.shape is not None and len(kind.shape) == 2 else None
    if not isinstance(kind, TensorType) or width is None or kind.dtype is DType.STRING:
        raise InputError(f"{path}: columns of numbers need an input of shape [N, columns], but {name!r} is {kind}")
    if isinstance(width, int) and width != len(table.columns):
        raise InputError(
            f"{path}: the file has {quantity(len(table.columns), 'column')} ({', '.join(table.columns)}), but input "
            f"{name!r} is {kind}; the model's metadata do not say which columns to use"
        )
    values = np.stack([_numbers(table, column) for column in table.columns], axis=1)
    return {name: values.astype(kind.dtype.numpy)}, (
        f"{path}: the columns {', '.join(table.columns)} are input {name!r} in this order, because the model's "
        "metadata describe no columns"
    )


def _named(table: Table, name: str, kind: Type) -> np.ndarray:
    """Return the column of this name as an array [N] or [N, 1]."""
    if not isinstance(kind, TensorType) or kind.rank not in (1, 2):
        raise InputError(f"{table.path}: column {name!r} cannot be input {name!r}, which is {kind}")
    if kind.dtype is DType.STRING:
        column = table.columns[name]
        if isinstance(column, Numbers):
            raise InputError(f"{table.path}: column {name!r} contains numbers, but input {name!r} is {kind}")
        values: np.ndarray = np.array([*column.texts, ""], object)[column.codes]
    else:
        values = _numbers(table, name).astype(kind.dtype.numpy)
    return values if kind.rank == 1 else values[:, None]


def _numbers(table: Table, name: str) -> np.ndarray:
    column = table.columns[name]
    if not isinstance(column, Numbers):
        raise InputError(
            f"{table.path}: column {name!r} contains text, and the model's metadata do not describe how text becomes "
            "numbers"
        )
    if column.missing.any():
        row = int(np.flatnonzero(column.missing)[0])
        raise InputError(f"{table.path}: column {name!r} has no value in {table.row(row)}")
    return column.values
