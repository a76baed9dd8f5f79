"""Ratings of items by users, in the formats of MovieLens."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphkit.data import order
from graphkit.data.dataset import Dataset, Splits
from graphkit.data.preprocessing.column import Numbers, Texts, is_number
from graphkit.data.preprocessing.table_reading import Choice, read_table
from graphkit.errors import InputError, UsageError

# Files by name, in the order in which they are looked for: u.data of MovieLens 100K, ratings.dat of 1M and 10M,
# ratings.csv of all later ones.
_FILES = ("u.data", "ratings.dat", "ratings.csv")

_COLUMNS = ("user", "item", "rating", "time")


class Ratings(Dataset):
    """Ratings: inputs user and item, int64 [N], numbered from 0; targets float32 [N].

    User i has the name `users[i]` in the file, and item i the name `items[i]`. Both tuples of names are sorted.
    """

    def __init__(
        self, user: np.ndarray, item: np.ndarray, ratings: np.ndarray, users: tuple[str, ...], items: tuple[str, ...],
        *, name: str,
    ):  # fmt: skip
        super().__init__({"user": user, "item": item}, ratings, name=name)
        self.users, self.items = users, items


def is_ratings(folder: Path) -> bool:
    """Return whether a folder contains ratings under one of MovieLens' names."""
    return any((folder / name).is_file() for name in _FILES)


def load(path: Path, *, test_fraction: float | None = 0.2, seed: int = 0, held_out: str = "random") -> Splits | Ratings:
    """Load (train, test) of a file of ratings, or of the one in a folder.

    With test_fraction None, all ratings are one data set. A line contains a user, an item, a rating and optionally
    a time, separated by tabs, `::` or commas. held_out: with "random", the test part consists of random ratings; with
    "last", of the latest rating of each user (leave one out, as in He et al., Neural Collaborative Filtering, 2017).
    Raises InputError, which names the file.
    """
    if held_out not in ("random", "last"):
        raise UsageError(f"{path}: held_out must be random or last, not {held_out!r}")
    file = path
    if path.is_dir():
        file = next((path / name for name in _FILES if (path / name).is_file()), path)
        if file == path:
            raise InputError(f"{path}: the folder contains none of {', '.join(_FILES)}")
    user, users, item, items, rating, time = _read(file)

    def part(rows: np.ndarray, name: str) -> Ratings:
        return Ratings(user[rows], item[rows], rating[rows], users, items, name=name)

    everything = np.arange(len(rating))
    if test_fraction is None:
        return part(everything, str(path))
    if held_out == "last":
        if time is None:
            raise InputError(f"{file}: held_out=last (--data-option held_out=last) needs times, but the file has none")
        test = np.sort(_last(user, time))
        train = np.setdiff1d(everything, test, assume_unique=True)
        if not train.size:
            raise InputError(f"{file}: each user has only one rating, so nothing is left to train on")
    else:
        train, test = order.hold_out(str(path), len(rating), test_fraction, seed)
    return Splits(part(train, f"{path} (train)"), part(test, f"{path} (test)"))


def _read(
    file: Path,
) -> tuple[np.ndarray, tuple[str, ...], np.ndarray, tuple[str, ...], np.ndarray, np.ndarray | None]:
    """(user, users, item, items, rating, time or None) of a file."""
    try:
        with file.open(encoding="utf-8-sig") as stream:
            first = stream.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as text: {error}") from None
    delimiter = next((mark for mark in ("::", "\t", ",") if mark in first), None)
    if delimiter is None:
        raise InputError(f"{file}: expected lines of user, item and rating, separated by tabs, :: or commas")
    table = read_table(file, Choice(categorical=_first_two(first, delimiter)), delimiter=delimiter)
    columns = list(table.columns.values())
    if not 3 <= len(columns) <= 4:
        raise InputError(
            f"{file}: expected the columns user, item, rating and optionally time, not {len(columns)} columns"
        )
    for column, what in zip(columns, _COLUMNS, strict=False):
        if column.missing.any():
            row = table.row(int(np.flatnonzero(column.missing)[0]))
            raise InputError(f"{file}: {row}: the {what} is missing")
    (user, users), (item, items) = (_numbered(column) for column in columns[:2])
    rating, *rest = columns[2:]
    for column in (rating, *rest):
        if not isinstance(column, Numbers):
            raise InputError(f"{file}: column {column.name!r} contains text, but ratings and times must be numbers")
    assert isinstance(rating, Numbers)
    times = [column.values for column in rest if isinstance(column, Numbers)]
    return user, users, item, items, rating.values.astype(np.float32), times[0] if times else None


def _first_two(line: str, delimiter: str) -> tuple[str, ...]:
    """The first two columns as `read_table` calls them: users and items are names, even if they are numbers."""
    cells = [cell.strip() for cell in line.split(delimiter)]
    return ("0", "1") if any(is_number(cell) for cell in cells) else tuple(cells[:2])


def _numbered(column: Texts | Numbers) -> tuple[np.ndarray, tuple[str, ...]]:
    """(numbers from 0, names). Names that are whole numbers are sorted as numbers, others as text."""
    assert isinstance(column, Texts)
    texts = column.texts
    numeric = all(text.isdecimal() for text in texts)
    places = sorted(range(len(texts)), key=(lambda i: (int(texts[i]), texts[i])) if numeric else texts.__getitem__)
    numbers = np.empty(len(texts), np.int64)
    numbers[places] = np.arange(len(texts))
    return numbers[column.codes], tuple(texts[i] for i in places)


def _last(user: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The row of each user's latest rating, int64. If several have the same time, it is the last one in the file."""
    order_ = np.lexsort((np.arange(len(user)), time, user))
    ends = np.flatnonzero(np.append(np.diff(user[order_]), 1))
    return order_[ends]
