"""Data sets in .csv files: a sample per line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from graphkit.data.dataset import TARGETS, Dataset
from graphkit.errors import InputError


def load(path: Path) -> Dataset:
    """float32 inputs [N, columns] and a target, by the header's names where there is one."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            first = next(lines, [])
            second = next(lines, [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    if len(first) < 2:
        raise InputError(f"{path}: a line of comma-separated numbers, inputs and a target, is expected")
    header = [cell.strip().lower() for cell in first] if not any(_is_number(cell) for cell in first) else None
    if header and not second:
        raise InputError(f"{path}: a header, and no sample below it")
    last = len(first) - 1
    target = next((header.index(name) for name in TARGETS if name in header), last) if header else last
    columns = [i for i in range(len(first)) if i != target]
    sample = second if header else first
    textual = target < len(sample) and not _is_number(sample[target])
    options = {
        "delimiter": ",",
        "skiprows": 1 if header else 0,
        "encoding": "utf-8-sig",
        "quotechar": '"',
        "comments": None,
    }
    try:
        x = np.loadtxt(path, np.float32, usecols=columns, ndmin=2, **options)  # type: ignore[call-overload]
        y = np.loadtxt(path, str if textual else np.float64, usecols=target, ndmin=1, **options)  # type: ignore[call-overload]
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if textual:
        classes, targets = np.unique(np.char.strip(y), return_inverse=True)
        return Dataset(x, targets.astype(np.int64), classes=list(classes), name=str(path))
    whole = bool(np.isfinite(y).all() and (y == np.round(y)).all() and (y >= 0).all())
    return Dataset(x, y.astype(np.int64 if whole else np.float32), name=str(path))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
