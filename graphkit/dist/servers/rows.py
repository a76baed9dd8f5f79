"""Rows of keys that are divided among servers: which part has which of them, and all of them again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.dist.servers.sharding import Part
from graphkit.dist.sums.rows import RowSparse


def within(indices: np.ndarray, part: Part) -> slice:
    """Where those of a part stand. indices: each once, ascending."""
    begin, end = np.searchsorted(indices, (part.begin, part.end))
    return slice(int(begin), int(end))


def cut(rows: RowSparse, part: Part) -> list[np.ndarray]:
    """Indices, counted from the first row of a part, and values of those that it has. rows: each once, ascending."""
    mine = within(rows.indices, part)
    return [rows.indices[mine] - part.begin, rows.values[mine]]


def joined(indices: np.ndarray, parts: Sequence[Part], values: Sequence[np.ndarray]) -> RowSparse:
    """All rows from those of each part. indices: each once, ascending; parts: of the key, in its order."""
    found = np.empty((len(indices), *values[0].shape[1:]), values[0].dtype)
    for part, own in zip(parts, values, strict=True):
        found[within(indices, part)] = own
    return RowSparse(indices, found)
