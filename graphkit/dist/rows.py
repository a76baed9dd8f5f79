"""Row-sparse arrays: some rows of an array by index, all others 0; their sums over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from graphkit.dist.communicator import Communicator


class RowSparse:
    """Rows of an array along its first axis. An index that comes more than once stands for the sum of its rows.

    indices: integers [K], not negative; values: [K, ...]. Raises InputError for others.
    """

    __slots__ = ("indices", "values")

    def __init__(self, indices: Any, values: Any):
        self.values = np.asarray(values)
        self.indices = row_ids(indices)
        if not self.values.ndim or len(self.values) != len(self.indices):
            raise InputError(f"{len(self.indices)} rows by index need as many values, not {list(self.values.shape)}")

    def __repr__(self) -> str:
        kind = f"{self.values.dtype}{list(self.values.shape[1:])}"
        return f"RowSparse({len(self.indices)} rows of {kind})"

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        return self.indices.nbytes + self.values.nbytes

    def dense(self, rows: int) -> np.ndarray:
        """The whole array, of so many rows."""
        found = np.zeros((rows, *self.values.shape[1:]), self.dtype)
        own = total([self])
        found[own.indices] = own.values
        return found

    def check(self, what: str, stored: np.ndarray) -> None:
        """Raises InputError, which begins with `what`, where these are no rows of such an array."""
        if self.dtype != stored.dtype or not stored.ndim or self.values.shape[1:] != stored.shape[1:]:
            given = f"{self.dtype}{list(self.values.shape[1:])}"
            raise InputError(f"{what} is {stored.dtype}{list(stored.shape)}; pushed rows of {given}")
        check_within(what, self.indices, len(stored))


def row_ids(given: Any) -> np.ndarray:
    """An int64 vector of indices that are not negative. Raises InputError for others."""
    found = np.asarray(given)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InputError(f"row indices are a vector of integers, not {found.dtype}{list(found.shape)}")
    if found.size and found.min() < 0:
        raise InputError(f"row indices count from 0; there is {found.min()}")
    return found.astype(np.int64, copy=False)


def check_within(what: str, indices: np.ndarray, rows: int) -> None:
    """Raises InputError where one of the indices is none of so many rows."""
    if indices.size and indices.max() >= rows:
        raise InputError(f"{what} has {rows} rows; there is none of index {indices.max()}")


def total(parts: Sequence[RowSparse]) -> RowSparse:
    """The sum of at least one: each row once, by ascending index, added up in the order of the parts and of each.

    Half floats are added in float32.
    """
    kind, tail = parts[0].dtype, parts[0].values.shape[1:]
    wide = np.dtype(np.float32) if kind.itemsize == 2 and kind.kind in "fV" else kind
    union, places = np.unique(np.concatenate([part.indices for part in parts]), return_inverse=True)
    sums = np.zeros((len(union), *tail), wide)
    at = 0
    for part in parts:
        mine = places[at : at + len(part.indices)]
        at += len(mine)
        if len(np.unique(mine)) == len(mine):
            sums[mine] += part.values.astype(wide, copy=False)
        else:
            np.add.at(sums, mine, part.values.astype(wide, copy=False))
    return RowSparse(union, sums.astype(kind, copy=False))


def local_rows(what: str, values: Sequence[Any], stored: np.ndarray | None) -> RowSparse:
    """The sum of what one process pushes to `stored`. Raises InputError, which begins with `what`, for other than
    rows of it, and UsageError where there is nothing stored."""
    if stored is None:
        raise UsageError(f"{what}: rows are pushed to a key that has a value: init, push and pull it")
    for rows in values:
        if not isinstance(rows, RowSparse):
            raise InputError(f"{what}: of what is pushed, some is a RowSparse and some is not")
        rows.check(what, stored)
    return total(values)


def rows_of(what: str, stored: np.ndarray, given: Any) -> RowSparse:
    """Rows of an array, each once, by ascending index. Raises InputError, which begins with `what`, for no rows."""
    wanted = np.unique(row_ids(given))
    check_within(what, wanted, len(stored) if stored.ndim else 0)
    return RowSparse(wanted, stored[wanted])


class RowSum:
    """What a process does for a sum over all of them, called when all are there: the total, the same everywhere.

    Nothing of the rows given is read any more once this is made.
    """

    def __init__(self, own: RowSparse):
        self._kind, self._tail = own.dtype, own.values.shape[1:]
        # The arrays by whose types processes find out that they do not mean the same: no rows.
        self.types = (own.values[:0], own.indices[:0])
        self._message = np.concatenate([_bytes(own.indices), _bytes(own.values)])
        self._count = len(own.indices)
        self.sent_bytes = self._message.nbytes

    def __call__(self, communicator: Communicator) -> RowSparse:
        counts = communicator.allgather(np.array([self._count], np.int64)).reshape(-1).tolist()
        width = 8 + self._kind.itemsize * int(np.prod(self._tail, dtype=np.int64))
        messages = communicator.allgather_parts(self._message, [count * width for count in counts])
        return total([self._read(m, c) for m, c in zip(messages, counts, strict=True)])

    def _read(self, message: np.ndarray, count: int) -> RowSparse:
        indices, values = message[: 8 * count].view(np.int64), message[8 * count :].view(self._kind)
        return RowSparse(indices, values.reshape(count, *self._tail))


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
