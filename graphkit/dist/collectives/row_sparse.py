"""Row-sparse arrays (rows of an array; all other rows are 0), and their sums over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.dist.arrays import as_bytes, sum_dtype
from graphkit.errors import InputError, UsageError

if TYPE_CHECKING:
    from graphkit.dist.communicator import Communicator
    from graphkit.dist.hosts.groups import Group, Levels


class RowSparse:
    """Rows of an array along its first axis. If an index occurs more than once, its rows are added.

    Args:
        indices: Integers [K], at least 0.
        values: [K, ...].

    Raises:
        InputError: Indices or values have another shape or type.
    """

    __slots__ = ("indices", "values")

    def __init__(self, indices: Any, values: Any):
        self.values = _array(values, "values of rows")
        self.indices = row_ids(indices)
        if not self.values.ndim or len(self.values) != len(self.indices):
            raise InputError(
                f"RowSparse: values must have one row per index ({len(self.indices)}); their shape is "
                f"{list(self.values.shape)}"
            )

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
        """Return the whole array. rows: number of rows of the array."""
        found = np.zeros((rows, *self.values.shape[1:]), self.dtype)
        own = total([self])
        found[own.indices] = own.values
        return found

    def check(self, what: str, stored: np.ndarray) -> None:
        """Raise InputError, which begins with `what`, unless these rows fit the array `stored`."""
        if self.dtype != stored.dtype or not stored.ndim or self.values.shape[1:] != stored.shape[1:]:
            given = f"{self.dtype}{list(self.values.shape[1:])}"
            raise InputError(f"{what} is {stored.dtype}{list(stored.shape)}; pushed rows of {given}")
        check_within(what, self.indices, len(stored))


def row_ids(given: Any) -> np.ndarray:
    """Return indices as an int64 vector. Raises InputError unless they are integers of at least 0."""
    found = _array(given, "row indices")
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InputError(f"row indices must be a vector of integers, not {found.dtype}{list(found.shape)}")
    if found.size and found.min() < 0:
        raise InputError(f"row indices must be at least 0, not {found.min()}")
    if found.size and int(found.max()) > np.iinfo(np.int64).max:
        raise InputError(f"row indices must be below 2**63, not {found.max()}")
    return found.astype(np.int64, copy=False)


def _array(given: Any, what: str) -> np.ndarray:
    """Return an array of numbers. Raises InputError, which begins with `what`, for other values."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} are not an array: {error}") from None
    if found.dtype.hasobject:
        raise InputError(f"{what} must be an array of numbers, not {type(given).__name__}")
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def wanted_rows(what: str, shape: Sequence[int], given: Any) -> np.ndarray:
    """Return requested row indices, each once, in ascending order.

    Raises InputError, which begins with `what`, unless `given` is a vector of indices for this shape.
    """
    if not shape:
        raise InputError(f"{what} has no rows: it is a single number")
    try:
        wanted = np.unique(row_ids(given))
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    check_within(what, wanted, shape[0])
    return wanted


def check_within(what: str, indices: np.ndarray, rows: int) -> None:
    if indices.size and indices.max() >= rows:
        raise InputError(f"{what} has {rows} rows, so index {indices.max()} is out of range")


def total(parts: Sequence[RowSparse]) -> RowSparse:
    """Return the sum: each row once, by ascending index.

    Rows of equal index are added part by part, and inside a part in the order of its rows. float16 and bfloat16 are
    added in float32.
    """
    kind, tail = parts[0].dtype, parts[0].values.shape[1:]
    wide = sum_dtype(kind)
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
    """Return the sum of the rows that one rank pushes to the array `stored`.

    Raises InputError if a value is not a RowSparse that fits `stored`, and UsageError if `stored` is None. Messages
    begin with `what`.
    """
    if stored is None:
        raise UsageError(f"{what}: a RowSparse needs a key with a value: call init, then push and pull")
    for rows in values:
        if not isinstance(rows, RowSparse):
            raise InputError(f"{what}: the pushed values must be either all RowSparse or all arrays")
        rows.check(what, stored)
    return total(values)


def rows_of(what: str, stored: np.ndarray, given: Any) -> RowSparse:
    """Return rows of an array, each once, by ascending index. Raises InputError, which begins with `what`."""
    wanted = wanted_rows(what, stored.shape, given)
    return RowSparse(wanted, stored[wanted])


class RowSum:
    """The sum of rows over all ranks, called after all ranks have posted their rows. All ranks get the same result.

    Rows are added in the order of the ranks. With several hosts, and more ranks than hosts, the rows of each host are
    added first, so that a row crosses the network once per host. The given rows are copied.

    ordered: add in the order of the ranks, also across hosts.
    """

    def __init__(self, own: RowSparse, ordered: bool = False):
        self._own = RowSparse(own.indices.copy(), own.values.copy())
        self.types = (self._own.values[:0], self._own.indices[:0])
        self.ordered = ordered
        self.sent_bytes = self._own.nbytes

    def __call__(self, communicator: Communicator) -> RowSparse:
        levels = None if self.ordered else communicator.levels
        return total(_gathered_rows(communicator, self._own)) if levels is None else self._over_hosts(levels)

    def _over_hosts(self, levels: Levels) -> RowSparse:
        kind = self._own.dtype
        own = RowSparse(self._own.indices, self._own.values.astype(sum_dtype(kind), copy=False))
        here = _gathered_rows(levels.inside, own)
        found = None if levels.leaders is None else total(_gathered_rows(levels.leaders, total(here)))
        count = int(levels.inside.broadcast(np.array([0 if found is None else len(found.indices)]))[0])
        message = np.empty(count * _width(own.values), np.uint8) if found is None else _message(found)
        rows = _read(levels.inside.broadcast(message), count, own.values)
        return RowSparse(rows.indices, rows.values.astype(kind, copy=False))


def _gathered_rows(group: Group | Communicator, own: RowSparse) -> list[RowSparse]:
    counts = group.allgather(np.array([len(own.indices)], np.int64)).reshape(-1).tolist()
    messages = group.allgather_parts(_message(own), [count * _width(own.values) for count in counts])
    return [_read(m, c, own.values) for m, c in zip(messages, counts, strict=True)]


def _width(values: np.ndarray) -> int:
    return 8 + values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))


def _message(rows: RowSparse) -> np.ndarray:
    return np.concatenate([as_bytes(rows.indices), as_bytes(rows.values)])


def _read(message: np.ndarray, count: int, like: np.ndarray) -> RowSparse:
    indices, values = message[: 8 * count].view(np.int64), message[8 * count :].view(like.dtype)
    return RowSparse(indices, values.reshape(count, *like.shape[1:]))
