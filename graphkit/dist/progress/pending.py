"""Pending operations, and which of them run together or are sent with announcements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from graphkit.dist.arrays import sum_in_order
from graphkit.dist.progress.announcement import PAYLOAD

# Arrays of one dtype, of at most _SMALL bytes each, are summed together. Arrays of at most _PAYLOAD_BYTES bytes are
# sent with announcements.
_SMALL, _PAYLOAD_BYTES = 16 << 10, PAYLOAD.stop - PAYLOAD.start


@dataclass(slots=True)
class Sum:
    """A sum over the ranks.

    Attributes:
        out: The array for the sum; None: a new array.
        then: Takes the sum; returns the result of the operation.
        alone: Sum the array separately: the bits do not depend on other sums.
    """

    array: np.ndarray
    out: np.ndarray | None
    then: Callable[[np.ndarray], Any]
    alone: bool = False

    def deliver(self, total: np.ndarray) -> Any:
        array = self.array
        if total.dtype != array.dtype or total.shape != array.shape:
            total = total.astype(array.dtype, copy=False).reshape(array.shape)
        return self.then(placed(total, self.out))


def unchanged(result: Any) -> Any:
    """The `then` of an operation whose result needs no further step."""
    return result


def placed(result: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    if out is None or out is result:
        return result
    np.copyto(out, result)
    return out


Action: TypeAlias = Callable[[], Any] | Sum


class Waiter(Protocol):
    def wait(self, pending: Pending) -> None: ...


class Pending:
    """An operation that may not be done yet. `wait` returns its result, or raises its error."""

    __slots__ = (
        "_engine",
        "action",
        "call",
        "digest",
        "done",
        "error",
        "reported",
        "name_digest",
        "number",
        "priority",
        "result",
        "text",
    )

    def __init__(self, call: str, action: Action | None, priority: int, engine: Waiter | None = None):
        self.call, self.action, self.priority, self._engine = call, action, priority, engine
        self.name_digest = self.digest = self.number = 0
        self.text = b""
        self.done = self.reported = False
        self.result: Any = None
        self.error: Exception | None = None

    def wait(self) -> Any:
        if not self.done and self._engine is not None:
            self._engine.wait(self)
        if self.error is not None:
            self.reported = True
            raise self.error
        return self.result

    def finish(self, result: Any = None, error: Exception | None = None) -> None:
        self.result, self.error, self.action = result, error, None
        self.done = True


def complete_locally(call: str, action: Action | None) -> Pending:
    pending = Pending(call, None, 0)
    if isinstance(action, Sum):
        pending.finish(action.deliver(action.array.copy() if action.out is None else action.array))
    else:
        pending.finish(action() if action is not None else None)
    return pending


def order(pending: Pending) -> tuple[int, str]:
    """Sort key for operations; the same on all ranks."""
    return -pending.priority, pending.call


def grouped(chosen: Sequence[Pending], payload_sums: Mapping[str, np.ndarray]) -> Iterator[list[Pending]]:
    """Yield the operations that run together: neighbouring small sums of one dtype, and every other operation alone."""
    if len(chosen) == 1:
        yield [*chosen]
        return
    group: list[Pending] = []
    dtype = None
    for pending in chosen:
        action = pending.action
        small = isinstance(action, Sum) and not action.alone and action.array.nbytes <= _SMALL
        kind = action.array.dtype if isinstance(action, Sum) and small and pending.call not in payload_sums else None
        if group and (kind is None or kind != dtype):
            yield group
            group = []
        if kind is None:
            yield [pending]
        else:
            group.append(pending)
            dtype = kind
    if group:
        yield group


def can_run_in_background(group: Sequence[Pending], payload_sums: Mapping[str, np.ndarray]) -> bool:
    """Whether this is one sum that can run in the background."""
    first, action = group[0], group[0].action
    if len(group) > 1 or not isinstance(action, Sum) or first.call in payload_sums:
        return False
    return not (action.alone and fits_announcement(action))


def fits_announcement(summed: Sum) -> bool:
    return summed.array.nbytes <= _PAYLOAD_BYTES and summed.array.dtype.kind in "iufcV"


def payload(heads: Iterable[Pending]) -> dict[str, np.ndarray]:
    found, left = {}, _PAYLOAD_BYTES
    for pending in heads:
        action = pending.action
        if isinstance(action, Sum) and fits_announcement(action) and action.array.nbytes <= left:
            found[pending.call] = action.array
            left -= action.array.nbytes
    return found


def payload_sums(mine: Mapping[str, np.ndarray], rows: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Return the sums of arrays that were sent with announcements, by name. mine: the arrays of this rank."""
    found, at = {}, PAYLOAD.start
    for call, array in mine.items():
        data = b"".join(row[at : at + array.nbytes] for row in rows)
        found[call] = sum_in_order(np.ndarray((len(rows), *array.shape), array.dtype, data))
        at += array.nbytes
    return found
