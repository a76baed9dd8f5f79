"""The distribution of keys over servers: small keys by consistent hashing, large ones as equal ranges of rows.

Consistent hashing: Karger et al., STOC 1997. If the number of servers changes by one, few keys move.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from graphkit.dist.collectives.row_sparse import RowSparse
from graphkit.dist.progress.announcement import digest_of
from graphkit.named_tuples import NamedTuple

# Keys with at least this many elements are divided, as with MXNet's MXNET_KVSTORE_BIGARRAY_BOUND.
LARGE = 1_000_000

_PLACES = 64


class Part(NamedTuple):
    """Rows [begin, end) of a key, along its first axis, on one server."""

    server: int
    begin: int
    end: int


class Sharding:
    def __init__(self, servers: int):
        self._servers = servers
        circle = sorted((digest_of(f"server {s} place {p}"), s) for s in range(servers) for p in range(_PLACES))
        self._places = [place for place, _ in circle]
        self._owners = [server for _, server in circle]

    def parts(self, key: int | str, size: int, rows: int | None = None) -> list[Part]:
        rows = size if rows is None else rows
        if size < LARGE or self._servers == 1:
            at = bisect.bisect(self._places, digest_of(f"{type(key).__name__} {key}")) % len(self._places)
            return [Part(self._owners[at], 0, rows)]
        bounds = [rows * server // self._servers for server in range(self._servers + 1)]
        return [Part(s, bounds[s], bounds[s + 1]) for s in range(self._servers) if bounds[s] < bounds[s + 1]]


def rows_within(indices: np.ndarray, part: Part) -> slice:
    """Return the positions of a part's rows in `indices`, which are sorted and unique."""
    begin, end = np.searchsorted(indices, (part.begin, part.end))
    return slice(int(begin), int(end))


def cut_rows(rows: RowSparse, part: Part) -> list[np.ndarray]:
    mine = rows_within(rows.indices, part)
    return [rows.indices[mine] - part.begin, rows.values[mine]]


def join_rows(indices: np.ndarray, parts: Sequence[Part], values: Sequence[np.ndarray]) -> RowSparse:
    found = np.empty((len(indices), *values[0].shape[1:]), values[0].dtype)
    for part, own in zip(parts, values, strict=True):
        found[rows_within(indices, part)] = own
    return RowSparse(indices, found)
