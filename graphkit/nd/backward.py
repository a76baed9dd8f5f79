"""Reverse mode over recorded calls: one compiled program for each structure of the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.autodiff.reverse_mode import gradient
from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir.graph import Graph, Value, topological
from graphkit.ir.subgraph import inline
from graphkit.named_tuples import NamedTuple
from graphkit.nd.calls import Call, compiled, remember
from graphkit.nd.ndarray import NDArray, signature, write
from graphkit.nd.runtime import queue, settings
from graphkit.nd.tape import Deferred, Made, Origin, TapeNode, Used, is_tracked, record
from graphkit.ops import F

# Programs of gradients that are kept.
_MOST = 256


class _Structure:
    """The recorded calls that some heads depend on, with a number for each array.

    Attributes:
        nodes: The calls, in the order in which they were made.
        states: Their states.
        key: A tuple that is equal for records of equal structure.
        wanted: The variables, in the order of their first use.
    """

    def __init__(self, heads: Sequence[NDArray], seeds: Sequence[NDArray | None], wanted: Sequence[NDArray] | None):
        self.nodes = _reached(heads)
        self.states = [node.state for node in self.nodes]
        self.seeds = seeds
        self._place: dict[int, int] = {}  # by the id of a node, the number of its first result
        # The array of each number: a result of a node, or another array that nodes read.
        self.arrays: list[Made | Used] = []
        self._leaves: dict[int, int] = {}
        self.inputs: list[list[int]] = []
        parts: list[Any] = []
        for node, (call, outputs, deferred) in zip(self.nodes, self.states, strict=True):
            numbers = [self._number(used) for used in node.inputs or ()]
            self.inputs.append(numbers)
            self._place[id(node)] = len(self.arrays)
            self.arrays += outputs
            parts += (call.number, deferred is not None, *numbers)
        self.heads = [self._head(y) for y in heads]
        self.wanted = self._variables() if wanted is None else list(wanted)
        self.targets = [self._target(x) for x in self.wanted]
        # Heads and targets may be variables that no recorded call uses, so the key needs their signatures.
        given = [None if s is None else s._signature for s in (*heads, *self.wanted, *seeds)]
        self.key = (*parts, *self.heads, -1, *self.targets, *given)

    def _number(self, used: Used) -> int:
        if used.origin is not None:
            place = self._place.get(id(used.origin.node))
            if place is not None:
                return place + used.origin.index
        return self._leaf(used)

    def _leaf(self, used: Used) -> int:
        key = id(used.array)
        found = self._leaves.get(key)
        if found is not None and self.arrays[found].version != used.version:
            if used.array._grad_req:
                raise UsageError(
                    f"backward: {used.array.describe()} was written between two recorded operations that read it"
                )
            found = None
        if found is None:
            found = self._leaves[key] = len(self.arrays)
            self.arrays.append(used)
        return found

    def _head(self, y: NDArray) -> int:
        return self._number(Used(y))

    def _target(self, x: NDArray) -> int:
        origin: Origin | None = x._origin
        place = self._leaves.get(id(x)) if origin is None else self._place.get(id(origin.node))
        if place is None:
            raise UsageError(f"the heads do not depend on {x.describe()}: it has no gradient")
        return place if origin is None else place + origin.index

    def _variables(self) -> list[NDArray]:
        found = [used.array for used in self.arrays if isinstance(used, Used)]
        return [x for x in dict.fromkeys(found) if x._grad_req in ("write", "add")]

    def array(self, number: int) -> NDArray:
        """Return an array that the gradient reads. Raises UsageError if it was written after it was recorded."""
        found = self.arrays[number]
        memory = found.memory if isinstance(found, Made) else found.array._memory
        if memory.version != found.version:
            kind = found.data if isinstance(found, Made) else found.array._data
            raise UsageError(
                f"backward: an array that the gradient reads, {kind.dtype}{list(kind.shape)}, was written after it was "
                "recorded; write to a copy, or call backward before"
            )
        if isinstance(found, Used):
            return found.array
        made = NDArray(found.data, found.memory, signature(found.data.dtype, found.data.shape))
        if settings.recording:
            made._origin = self._origin(number)
        return made

    def _origin(self, number: int) -> Origin | None:
        for node, (_, outputs, _) in zip(self.nodes, self.states, strict=True):
            place = self._place[id(node)]
            if place <= number < place + len(outputs):
                return Origin(node, number - place)
        return None


class _Gradients:
    """The program of the gradients for one structure.

    Its results are the gradients, and then those of the deferred calls.

    Attributes:
        call: The program.
        reads: Its first inputs, as numbers of arrays of the structure.
        seeds: Its other inputs, as positions of heads.
    """

    __slots__ = ("call", "reads", "seeds")

    def __init__(self, structure: _Structure):
        values: dict[int, Value] = {
            number: Value(used.array.type, f"x{number}")
            for number, used in enumerate(structure.arrays)
            if isinstance(used, Used)
        }
        boundary: dict[Value, int] = {value: number for number, value in values.items()}
        deferred: list[Value] = []
        for node, state, inputs in zip(structure.nodes, structure.states, structure.inputs, strict=True):
            call, _, pending = state
            results = inline(call.graph, [values[number] for number in inputs])
            first = structure._place[id(node)]
            for index, value in enumerate(results):
                values[first + index] = value
                if pending is None:
                    boundary.setdefault(value, first + index)
                else:
                    deferred.append(value)
        heads = [values[number] for number in structure.heads]
        self.seeds = [i for i, s in enumerate(structure.seeds) if s is not None]
        seeds = [Value(heads[i].type, f"seed{i}") for i in self.seeds]
        given = dict(zip(self.seeds, seeds, strict=True))
        all_seeds = [given[i] if i in given else _ones(y) for i, y in enumerate(heads)]
        found = gradient(heads, [values[n] for n in structure.targets], all_seeds, allow_unused=True)
        inputs_of, results = _cut([*found, *deferred], boundary)
        self.reads = [boundary[v] for v in inputs_of]
        graph = Graph([*inputs_of.values(), *seeds], results)
        self.call = compiled(graph, "backward")


def _ones(y: Value) -> Value:
    return F.constant_of_shape(np.array(y.tensor.static_shape, np.int64), value=np.ones(1, y.tensor.dtype.numpy))


def _cut(results: Sequence[Value], boundary: dict[Value, int]) -> tuple[dict[Value, Value], list[Value]]:
    """Return new inputs for the values of `boundary` that the results depend on, and the results that read them."""
    nodes = topological(results, stop=boundary)
    table: dict[Value, Value] = {}
    inputs: dict[Value, Value] = {}

    def replaced(value: Value | None) -> Value | None:
        if value is None or value not in boundary:
            return value if value is None else table.get(value, value)
        if value not in inputs:
            inputs[value] = Value(value.type, f"read{boundary[value]}")
        return inputs[value]

    for node in nodes:
        rebuilt = node.rebuilt([replaced(v) for v in node.inputs])
        table.update(zip(node.outputs, rebuilt.outputs, strict=True))
    found = [replaced(v) for v in results]
    return inputs, found  # type: ignore[return-value]


def _reached(heads: Sequence[NDArray]) -> list[TapeNode]:
    """Return the recorded calls that the heads depend on, in the order in which they were made."""
    found: dict[int, TapeNode] = {}
    pending = [y._origin.node for y in heads if y._origin is not None]
    while pending:
        node = pending.pop()
        if node.number in found:
            continue
        if node.inputs is None:
            raise UsageError(
                f"backward through {node.state[0].name}: an earlier call of backward has released what was recorded; "
                "give that call retain_graph=True"
            )
        found[node.number] = node
        pending += [used.origin.node for used in node.inputs if used.origin is not None]
    return [found[number] for number in sorted(found)]


_programs: dict[Any, _Gradients] = {}
# Those of records of one deferred call whose operands are different variables or constants, by `_key_of_one_call`.
_of_one_call: dict[Any, _Gradients] = {}


def _key_of_one_call(y: NDArray) -> Any:
    """Return a key for a result of one deferred call that reads no result of others; None for all other arrays.

    A hybridized function with its loss is such a call. The key is found faster than that of a structure. Its operands
    have the numbers 0, 1, ... in the structure, and the gradient reads nothing else.
    """
    origin = y._origin
    if origin is None:
        return None
    call, _, deferred = origin.node.state
    inputs = origin.node.inputs
    if deferred is None or inputs is None:
        return None
    seen = set()
    key = [call.number, origin.index]
    for used in inputs:
        x = used.array
        if used.origin is not None or id(x) in seen:
            return None
        seen.add(id(x))
        key.append(x._grad_req != "")
    return tuple(key)


def _backward_of_one_call(found: _Gradients, node: TapeNode) -> Backward | None:
    """Return the program, ready to run; None if an array that it reads was written."""
    inputs = node.inputs or []
    for number in found.reads:
        used = inputs[number]
        if used.array._memory.version != used.version:
            return None
    wanted = [used.array for used in inputs if used.array._grad_req]
    return Backward(found.call, [inputs[n].array for n in found.reads], wanted, [node.state[2]], [node])  # type: ignore[list-item]


def gradients(
    heads: Sequence[NDArray], seeds: Sequence[NDArray | None], wanted: Sequence[NDArray] | None, retain: bool
) -> Backward:
    """Find or compile the program of the gradients of `heads`. The caller holds `locks.deferring` until it has run.

    Args:
        heads: Results of recorded calls.
        seeds: For each of them, the array that it is multiplied with, or None for ones.
        wanted: The variables; None for all that the heads depend on.
        retain: Whether to keep the record.

    """
    key = _key_of_one_call(heads[0]) if wanted is None and not retain and len(heads) == 1 and seeds[0] is None else None
    if key is not None and (known := _of_one_call.get(key)) is not None:
        ready = _backward_of_one_call(known, heads[0]._origin.node)
        if ready is not None:
            return ready
    for y, seed in zip(heads, seeds, strict=True):
        if not is_tracked(y):
            raise UsageError(
                f"backward of {y.describe()}: it does not depend on a recorded operation; call attach_grad() of a "
                "variable, and compute in `with gk.nd.record():`"
            )
        if seed is not None and seed._signature is not y._signature:
            raise TypeMismatch(f"backward of {y.describe()}: its gradient must have the same type, not {seed.type}")
        if seed is not None:
            seed._memory.readable()  # it may be a result of a deferred call that the program computes
    if retain:
        for node in _reached(heads):
            deferred = node.state[2]
            if deferred is not None:
                deferred.force()
    structure = _Structure(heads, seeds, wanted)
    if not structure.wanted:
        raise UsageError("backward: the heads depend on no array with attach_grad()")
    found = _programs.get(structure.key)
    if found is None:
        found = _Gradients(structure)
        remember(_programs, structure.key, found, _MOST)
    if key is not None:
        remember(_of_one_call, key, found, _MOST)
    operands = [structure.array(number) for number in found.reads]
    operands += [seeds[i] for i in found.seeds]  # type: ignore[misc]
    waiting = [deferred for _, _, deferred in structure.states if deferred is not None]
    return Backward(found.call, operands, structure.wanted, waiting, [] if retain else structure.nodes)


class Backward(NamedTuple):
    """A program of gradients that is ready to run.

    Attributes:
        call: The program.
        operands: Its operands.
        wanted: The variables. The first results are their gradients.
        deferred: Calls that the program computes, too. The other results are theirs.
        released: Recorded calls that are released when the program is pushed.
    """

    call: Call
    operands: list[NDArray]
    wanted: list[NDArray]
    deferred: list[Deferred]
    released: list[TapeNode]

    def compute(self) -> list[NDArray]:
        """Return the gradients as new arrays. They are recorded within `record`."""
        results = self._results()
        made = self.call.run(self.operands)
        if settings.recording:
            record(self.call, self.operands, made)
        count = len(self.wanted)
        for y, result in zip(results, made[count:], strict=True):
            queue().push_copy(self.call.name, result._data, y._data, (result._memory.state,), (y._memory.state,))
        self._finish()
        return made[:count]

    def store(self) -> None:
        """Compute the gradients, and write them to `x.grad` of the variables, or add them there."""
        places = [x.grad for x in self.wanted]
        results = self._results()
        memories = {id(x._memory) for x in (*self.operands, *results)}
        direct = True
        for x, g in zip(self.wanted, places, strict=True):
            if g is None or x._grad_req != "write" or not g._data.flags.carray or id(g._memory) in memories:
                direct = False
                break
            memories.add(id(g._memory))
        if direct:
            for g in places:
                g._memory.written()  # type: ignore[union-attr]
            self.call.run_into(self.operands, [*places, *results])  # type: ignore[list-item]
            self._finish()
            return
        for x, made in zip(self.wanted, self.compute(), strict=True):
            if x.grad is None:
                x.grad = made
            elif x._grad_req == "add":
                x.grad += made
            else:
                write(made, x.grad)

    def _results(self) -> list[NDArray]:
        return [y for call in self.deferred for y in call.results()]

    def _finish(self) -> None:
        """Release the record, and note that the deferred calls are pushed."""
        for node in self.released:
            node.inputs = None
            node.state = (node.state[0], [], node.state[2])
        for call in self.deferred:
            call.finish()
