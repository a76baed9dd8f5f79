"""The rows of a key that each server stores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.dist.servers.sharding import Part
from graphkit.dist.sums.rows import RowSparse


def within(indices: np.ndarray, part: Part) -> slice:
    """Return the positions of a part's rows in `indices`, which are sorted and unique."""
    begin, end = np.searchsorted(indices, (part.begin, part.end))
    return slice(int(begin), int(end))


def cut(rows: RowSparse, part: Part) -> list[np.ndarray]:
    """Return the rows of a part: indices, counted from its first row, and values. rows: sorted and unique."""
    mine = within(rows.indices, part)
    return [rows.indices[mine] - part.begin, rows.values[mine]]


def joined(indices: np.ndarray, parts: Sequence[Part], values: Sequence[np.ndarray]) -> RowSparse:
    """Join the rows of all parts. indices: sorted and unique; parts: of one key, in order."""
    found = np.empty((len(indices), *values[0].shape[1:]), values[0].dtype)
    for part, own in zip(parts, values, strict=True):
        found[within(indices, part)] = own
    return RowSparse(indices, found)
