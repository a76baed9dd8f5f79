"""The record of calls for `backward`: nodes that refer to the arrays that they read, as long as a result exists."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph
from graphkit.nd.calls import Call
from graphkit.nd.ndarray import NDArray
from graphkit.nd.runtime import Memory, deferred


class Used:
    """An array that a recorded call read: where it came from, and the number of writes of its memory."""

    __slots__ = ("array", "origin", "version")

    def __init__(self, x: NDArray):
        self.array, self.version = x, x._memory.version
        self.origin: Origin | None = x._origin


class Made:
    """A result of a recorded call. It does not refer to the array of the caller, which refers to it."""

    __slots__ = ("data", "memory", "version")

    def __init__(self, y: NDArray):
        self.data: np.ndarray = y._data
        self.memory: Memory = y._memory
        self.version = y._memory.version


class Recorded(Protocol):
    """What is recorded about a call. `Call` has it, and a call that is not pushed yet."""

    graph: Graph
    number: int
    name: str


class TapeNode:
    """A recorded call.

    Attributes:
        number: Larger than those of all earlier calls.
        inputs: What it read; None after `backward`, which releases it.
        outputs: Its results.
        deferred: The call, if it is not pushed yet. `backward` then computes it together with the gradients.
    """

    __slots__ = ("number", "call", "inputs", "outputs", "deferred", "__weakref__")

    def __init__(self, call: Recorded, inputs: Sequence[NDArray], outputs: Sequence[NDArray]):
        self.number = next(_numbers)
        self.call = call
        self.deferred: Deferred | None = None
        self.inputs: list[Used] | None = [Used(x) for x in inputs]
        self.outputs = [Made(y) for y in outputs]


class Deferred:
    """A recorded call that is pushed when its results are read, or by `backward`, with the gradients in one program.

    Args:
        node: Its record.
        program: Returns the program of the call, whose first results are those of the call. The others are values that
            the gradient reads.
        operands: The operands.
        made: The results, whose memory the call writes.
    """

    def __init__(
        self, node: TapeNode, program: Callable[[], Call], operands: Sequence[NDArray], made: Sequence[NDArray]
    ):
        self._program = program
        self._operands: list[NDArray] | None = list(operands)
        # The record and the memory of the results refer to this object, so it must not refer to them.
        self._node = weakref.ref(node)
        self._made = [(y._data, weakref.ref(y._memory), y._signature) for y in made]
        self._lock = threading.RLock()
        node.deferred = self
        own = weakref.ref(self)
        for x in operands:
            memory = x._memory
            if memory.readers is None:
                memory.readers = [own]
            elif memory.readers[-1] is not own:
                memory.readers = [r for r in memory.readers if r() is not None]
                memory.readers.append(own)
        for y in made:
            y._memory.maker = self
        deferred.add(self)

    def results(self) -> list[NDArray]:
        """Return arrays of the memory of the results. A result that was dropped has a memory of its own."""
        return [NDArray(data, memory() or Memory(), kind) for data, memory, kind in self._made]

    def force(self) -> None:
        """Push the call, unless that was done."""
        with self._lock:
            operands = self._operands
            if operands is None:
                return
            results = self.results()
            self.finish()
            call = self._program()
            kinds = call.outputs
            assert kinds is not None, "hybridized functions have results of known shapes"
            rest = [NDArray(np.empty(k.shape, k.dtype), Memory(), k) for k in kinds[len(results) :]]
            made = [*results, *rest]
            call.run_into(operands, made)
            node = self._node()
            if node is not None and node.inputs is not None:
                node.call, node.outputs = call, [Made(y) for y in made]

    def finish(self) -> None:
        """Note that the call is pushed now."""
        self._operands = None
        deferred.discard(self)
        if (node := self._node()) is not None:
            node.deferred = None
        for _, reference, _ in self._made:
            if (memory := reference()) is not None:
                memory.maker = None


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
    if not any(y.tensor.dtype.is_float for y in made):
        return
    if call.outputs is None:
        raise UsageError(
            f"{call.name}: the shape of the result depends on elements, so the call cannot be recorded; call it in "
            "`with gk.nd.pause():`"
        )
    trace(call, arrays, made)


def trace(call: Recorded, arrays: Sequence[NDArray], made: Sequence[NDArray]) -> TapeNode:
    """Record a call whose results are `made`."""
    node = TapeNode(call, arrays, made)
    for i, y in enumerate(made):
        if y.tensor.dtype.is_float:
            y._origin = Origin(node, i)
    return node
