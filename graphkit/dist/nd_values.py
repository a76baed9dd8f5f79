"""Values of a store as arrays of `gk.nd`: sums, copies and updates are operations of the dependency engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from graphkit.dist.arrays import is_half
from graphkit.ir.types import DType
from graphkit.nd.autograd import pause
from graphkit.nd.ndarray import NDArray, copied, own, write, write_all
from graphkit.nd.operators import call, check_writable
from graphkit.nd.runtime import Memory, queue

__all__ = [
    "Memory", "NDArray", "batch", "copied", "copy_all", "copy_to", "own", "pause", "settle", "total", "update_later",
]  # fmt: skip


def batch(name: str) -> AbstractContextManager[None]:
    """Context in which the operations that this thread pushes are one operation of the engine."""
    return queue().batch(name)


def total(values: Sequence[NDArray]) -> NDArray:
    """Return the sum of at least two arrays of one type, added one after the other.

    float16 and bfloat16 are added in float32, and rounded once. The sum has no gradient.
    """
    kind, half = values[0].tensor.dtype, is_half(values[0].dtype)
    with pause():
        parts = [call("cast", v, to=DType.FLOAT32) if half else v for v in values]
        found: NDArray = call("add", parts[0], parts[1])
        for part in parts[2:]:
            found += part
        return call("cast", found, to=kind) if half else found


def copy_to(source: NDArray, target: NDArray) -> None:
    if source._signature is target._signature:
        check_writable(target)
        write(source, target)
    else:
        target[...] = source


def copy_all(sources: Sequence[NDArray], targets: Sequence[NDArray]) -> None:
    for target in targets:
        check_writable(target)
    with batch("pull"):
        write_all(sources, targets)


def update_later(
    name: str, update: Callable[[np.ndarray, np.ndarray], Any], pushed: NDArray, stored: NDArray, order: Memory
) -> None:
    """Call `update(pushed, stored)` with numpy's arrays on a thread of the engine, once both are computed.

    Args:
        order: Calls with the same `order` run one after the other.
    """
    check_writable(stored)
    stored._memory.written()
    state = stored._memory.state
    given, into = pushed._data, stored._data
    reads = (pushed._memory.readable(), state)
    queue().push_call(name, lambda: update(given, into), reads, (state, order.state), into.nbytes)


def settle(order: Memory) -> None:
    """Wait for the calls of `update_later` with this `order`. Their errors stay with the stored arrays."""
    queue().wait(order.state)
