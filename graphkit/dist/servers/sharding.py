"""Which server holds what: small keys by consistent hashing, large ones in equal ranges of rows on all.

Consistent hashing: Karger et al., STOC 1997; a server more or less moves few keys.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

from graphkit.dist.rounds.announcement import digest_of

# Elements from which on a key is divided, as MXNet's MXNET_KVSTORE_BIGARRAY_BOUND.
LARGE = 1_000_000

# Places of each server on the circle.
_PLACES = 64


class Part(NamedTuple):
    """Rows [begin, end) of a key, along its first axis, and the server that holds them."""

    server: int
    begin: int
    end: int


class Sharding:
    """Of keys over so many servers."""

    def __init__(self, servers: int):
        self._servers = servers
        circle = sorted((digest_of(f"server {s} place {p}"), s) for s in range(servers) for p in range(_PLACES))
        self._places = [place for place, _ in circle]
        self._owners = [server for _, server in circle]

    def parts(self, key: int | str, size: int, rows: int | None = None) -> list[Part]:
        """Of a key with so many elements in so many rows (default: one each); one part at least."""
        rows = size if rows is None else rows
        if size < LARGE or self._servers == 1:
            at = bisect.bisect(self._places, digest_of(f"{type(key).__name__} {key}")) % len(self._places)
            return [Part(self._owners[at], 0, rows)]
        bounds = [rows * server // self._servers for server in range(self._servers + 1)]
        return [Part(s, bounds[s], bounds[s + 1]) for s in range(self._servers) if bounds[s] < bounds[s + 1]]
