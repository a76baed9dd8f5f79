"""The record of calls for `backward`: nodes that refer to the arrays that they read, as long as a result exists."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph
from graphkit.nd import elements
from graphkit.nd.calls import Call
from graphkit.nd.ndarray import NDArray
from graphkit.nd.runtime import Memory, deferred, locks


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
    """The record of a call: a `Call`, or a call that is not pushed yet."""

    graph: Graph
    number: int
    name: str


class TapeNode:
    """A recorded call.

    Attributes:
        number: Larger than those of all earlier calls.
        inputs: The arrays that it read; None after `backward`, which releases them.
        state: The call, its results, and the deferred call if it is not pushed yet; `backward` then computes it
            together with the gradients. One attribute, so that other threads never see a part of a change.
    """

    __slots__ = ("number", "inputs", "state", "__weakref__")

    def __init__(self, call: Recorded, inputs: Sequence[NDArray], outputs: Sequence[NDArray]):
        self.number = next(_numbers)
        self.inputs: list[Used] | None = [Used(x) for x in inputs]
        self.state: tuple[Recorded, list[Made], Deferred | None] = (call, [Made(y) for y in outputs], None)


class Deferred:
    """A recorded call that is pushed when its results are read, or by `backward`, with the gradients in one program.

    If pushing fails or is interrupted, the call stays deferred, and the next read of a result pushes it.

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
        node.state = (*node.state[:2], self)
        for y in made:
            y._memory.maker = self
        own = weakref.ref(self)
        with locks.listing:
            for x in operands:
                x._memory.add_reader(own)
            deferred.add(self)

    def results(self) -> list[NDArray]:
        """Return arrays of the memory of the results. A result that was dropped has a memory of its own."""
        return [NDArray(data, memory() or Memory(), kind) for data, memory, kind in self._made]

    def force(self) -> None:
        """Push the call, unless that was done."""
        with locks.deferring:
            operands = self._operands
            if operands is None:
                return
            results = self.results()
            call = self._program()
            kinds = call.outputs
            assert kinds is not None, "hybridized functions have results of known shapes"
            rest = [NDArray(elements.empty(k.shape, k.dtype), Memory(), k) for k in kinds[len(results) :]]
            made = [*results, *rest]
            call.run_into(operands, made)
            self.finish(call, made)

    def finish(self, call: Recorded | None = None, made: Sequence[NDArray] = ()) -> None:
        """Note that the call is pushed. The caller holds `locks.deferring`, and has pushed it.

        Args:
            call: The program that was pushed; None if `backward` pushed it with the gradients, and released the record.
            made: The results of `call`.
        """
        if (node := self._node()) is not None:
            before, outputs, _ = node.state
            if call is not None and node.inputs is not None:
                before, outputs = call, [Made(y) for y in made]
            node.state = (before, outputs, None)
        self._operands = None
        with locks.listing:
            deferred.discard(self)
        # Last: from now on, other threads read the results without taking the lock.
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
