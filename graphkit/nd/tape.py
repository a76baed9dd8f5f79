"""The record of calls for `backward`: nodes that refer to the arrays that they read, as long as a result exists."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from graphkit.errors import UsageError
from graphkit.nd.calls import Call
from graphkit.nd.ndarray import NDArray
from graphkit.nd.runtime import Memory


class Used:
    """An array that a recorded call read: where it came from, and the number of writes of its memory."""

    __slots__ = ("array", "origin", "version")

    def __init__(self, x: NDArray):
        self.array, self.origin, self.version = x, x._origin, x._memory.version


class Made:
    """A result of a recorded call. It does not refer to the array of the caller, which refers to it."""

    __slots__ = ("data", "memory", "version")

    def __init__(self, y: NDArray):
        self.data: np.ndarray = y._data
        self.memory: Memory = y._memory
        self.version = y._memory.version


class TapeNode:
    """A recorded call.

    Attributes:
        number: Larger than those of all earlier calls.
        inputs: What it read; None after `backward`, which releases it.
        outputs: Its results.
    """

    __slots__ = ("number", "call", "inputs", "outputs")

    def __init__(self, call: Call, inputs: Sequence[NDArray], outputs: Sequence[NDArray]):
        self.number = next(_numbers)
        self.call = call
        self.inputs: list[Used] | None = [Used(x) for x in inputs]
        self.outputs = [Made(y) for y in outputs]


class Origin:
    """Result number `index` of a recorded call."""

    __slots__ = ("node", "index")

    def __init__(self, node: TapeNode, index: int):
        self.node, self.index = node, index


_numbers = itertools.count()


def is_tracked(x: NDArray) -> bool:
    """Whether gradients may reach the array, or flow through it."""
    return x._origin is not None or bool(x._grad_req)


def record(call: Call, arrays: Sequence[NDArray], made: Sequence[NDArray]) -> None:
    """Record a call if gradients may flow through it."""
    if not any(x._origin is not None or x._grad_req for x in arrays):
        return
    floats = [i for i, y in enumerate(made) if y.tensor.dtype.is_float]
    if not floats:
        return
    if call.outputs is None:
        raise UsageError(
            f"{call.name}: the shape of the result depends on elements, so the call cannot be recorded; call it in "
            "`with gk.nd.pause():`"
        )
    node = TapeNode(call, arrays, made)
    for i in floats:
        made[i]._origin = Origin(node, i)
