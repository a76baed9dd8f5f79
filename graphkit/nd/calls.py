"""Calls of operators on arrays: each is a small program, compiled once for its operator and operand types."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError, UsageError
from graphkit.executor.run.array_program import ArrayProgram
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import INTEGERS, DType, TensorType, dtype_of
from graphkit.nd import elements
from graphkit.nd.ndarray import NDArray, Signature, contiguous, own, signature
from graphkit.nd.runtime import Memory, locks, queue, settings
from graphkit.ops import Op, constant
from graphkit.ops._registry import literal_operand

# Calls and operand constants that are kept. The oldest half is dropped if there are more.
_MOST = 4096
# A literal operand with more integers is an array, not a part of the program.
_MOST_LITERALS = 64


class Call:
    """A compiled graph, which arrays of its input types run.

    Attributes:
        graph: The graph. Its inputs are the arrays.
        outputs: Signatures of the results; None if their shapes depend on elements.
        number: A number of its own, for keys.
    """

    __slots__ = ("graph", "name", "program", "outputs", "number", "task", "single", "nbytes")

    def __init__(self, graph: Graph, name: str):
        self.graph, self.name = graph, name
        self.number = next_number()
        for value in graph.outputs:
            if not isinstance(value.type, TensorType) or value.type.dtype is DType.STRING:
                raise UnsupportedError(
                    f"{name}: a result is {value.type}; functions on arrays return tensors of numbers only"
                )
        self.program = program = ArrayProgram(graph, name)
        self.outputs: tuple[Signature, ...] | None = None
        if program.has_fixed_results or all(v.tensor.is_static for v in graph.outputs):
            self.outputs = tuple([signature(v.dtype.numpy, v.tensor.static_shape) for v in graph.outputs])
        self.task = program.task
        self.nbytes = sum(s.nbytes for s in self.outputs or ())
        # The task if it computes a single result, which `run` and `overwrite` push without further checks. Else None.
        self.single = self.task if len(graph.outputs) == 1 and not program.copies else None

    def run(self, operands: Sequence[NDArray]) -> list[NDArray]:
        """Push the program, and return the arrays of its results. If their shapes depend on elements, wait."""
        inputs, reads = _readable(operands)
        if self.single is not None:
            (kind,) = self.outputs or ()
            shape, dtype = kind.shape, kind.dtype
            data = np.empty(shape, dtype) if kind.nbytes < elements.LARGE else elements.empty(shape, dtype)
            memory = Memory()
            inputs.append(data)
            queue().push_task(self.name, self.single, inputs, reads, (memory.state,), 1, kind.nbytes)
            return [NDArray(data, memory, kind)]
        if self.outputs is None:
            return self._run_now(operands, inputs)
        made = [NDArray(elements.empty(s.shape, s.dtype), Memory(), s) for s in self.outputs]
        self.push(inputs, reads, made)
        return made

    def run_into(self, operands: Sequence[NDArray], made: Sequence[NDArray]) -> None:
        """Push the program, which writes its results to contiguous arrays whose memory no operand uses."""
        inputs, reads = _readable(operands)
        self.push(inputs, reads, made)

    def overwrite(self, x: NDArray, other: NDArray) -> bool:
        """Push the program, and write its single result to `x`. Return False if that is not possible.

        The call is a result of `Immediate.in_place` for operands of these types.
        """
        data, given, memory, task = x._data, other._data, x._memory, self.single
        if task is None or not data.flags.carray or not given.flags.carray:
            return False
        if memory is other._memory and data is not given:
            return False  # they may overlap in part
        memory.written()
        reads, write = (memory.state, other._memory.readable()), (memory.state,)
        queue().push_task(self.name, task, [data, given, data], reads, write, 1, self.nbytes)
        return True

    def push(self, inputs: list[np.ndarray], reads: list[Any], made: Sequence[NDArray]) -> None:
        """Push the program, which writes its results to the arrays `made`. inputs: contiguous arrays, which it owns."""
        waiting, program = queue(), self.program
        if self.task is None:
            writes = [y._memory.state for y in made]
            run = program.deferred(inputs, [y._data for y in made])
            waiting.push_call(self.name, run, reads, writes, sum([y.nbytes for y in made]))
            return
        for output, source in program.copies:
            y = made[output]
            waiting.push_copy(self.name, inputs[source].reshape(y.shape), y._data, (reads[source],), (y._memory.state,))
        if program.computed:
            writes = [made[i]._memory.state for i in program.computed]
            arrays = program.task_arrays(inputs, [y._data for y in made])
            waiting.push_task(self.name, self.task, arrays, reads, writes, len(made), self.nbytes)

    def _run_now(self, operands: Sequence[NDArray], inputs: list[np.ndarray]) -> list[NDArray]:
        for x in operands:
            x.wait_to_read()
        return [own(np.asarray(result, order="C")) for result in self.program.call(inputs, None)]


def _readable(operands: Sequence[NDArray]) -> tuple[list[Any], list[Any]]:
    """Return the elements of operands as contiguous numpy arrays, and their states."""
    inputs, reads = [], []
    for x in operands:
        data = x._data
        if not data.flags.carray:
            x = contiguous(x)
            data = x._data
        inputs.append(data)
        memory = x._memory
        reads.append(memory.state if memory.maker is None else memory.readable())
    return inputs, reads


_numbers = itertools.count()


def next_number() -> int:
    """Return a number for the keys of recorded calls, which no other graph has."""
    return next(_numbers)


_calls: dict[Any, Call] = {}


def remember(cache: dict[Any, Any], key: Any, found: Any, most: int = _MOST) -> None:
    """Put something into a cache. If it is full, drop the oldest half."""
    if len(cache) >= most:
        for old in list(itertools.islice(cache, most // 2)):
            cache.pop(old, None)
    cache[key] = found


def exact(x: Any) -> Any:
    """Return a key for something that is not an array. 0, 0.0 and -0.0 have different keys, and NaN has one."""
    if isinstance(x, float):
        return (type(x), x.hex())
    if isinstance(x, np.generic):
        return (type(x), x.dtype.str, x.tobytes())
    return (type(x), (x.real.hex(), x.imag.hex()) if isinstance(x, complex) else x)


def compiled(graph: Graph, name: str) -> Call:
    """Compile a graph. One thread compiles at a time."""
    with locks.compiling:
        return Call(graph, name)


# --- the hook of the functions of operators -----------------------------------------------------------


class Immediate:
    """Runs functions of operators at once if an operand is an array (see `graphkit.ops._registry.Immediate`)."""

    kind = NDArray

    def __init__(self, record: Callable[[Call, Sequence[NDArray], list[NDArray]], None]):
        self._record = record

    @property
    def is_tracing(self) -> bool:
        """Whether the current thread traces a function."""
        return settings.capture is not None

    def constant(self, x: NDArray) -> Value:
        """Return the graph value for an array that a graph reads: an input of a traced function, or a constant."""
        if settings.capture is not None:
            found: Value = settings.capture(x)
            return found
        return constant(x.asnumpy())

    def apply(self, operator: Op, operands: Sequence[Any]) -> Any:
        """Run an operator; return an array, or a tuple of arrays if it has several results."""
        made = self.call(operator, operands)
        return made[0] if len(made) == 1 else tuple(made)

    def call(self, operator: Op, operands: Sequence[Any]) -> list[NDArray]:
        given = [
            x if type(x) is NDArray or x is None else _operand(operator, i, operands) for i, x in enumerate(operands)
        ]
        while given and given[-1] is None:
            given.pop()
        if operator.random:
            operator, given = _with_random_state(operator, given)
        key = (operator, *[x._signature if type(x) is NDArray else x for x in given])
        call = _calls.get(key)
        if call is None:
            call = _compile(operator, given, key)
        while call is _NEEDS_INTEGERS or call is _NEEDS_NUMBERS:
            given = _with_literals(operator, given, call is _NEEDS_NUMBERS)
            key = (operator, *[x._signature if type(x) is NDArray else x for x in given])
            call = _calls.get(key) or _compile(operator, given, key)
        arrays = [x for x in given if type(x) is NDArray]
        made = call.run(arrays)
        if settings.recording:
            self._record(call, arrays, made)
        return made

    def known(self, operator: Op, operands: Sequence[NDArray]) -> Call | None:
        """Return the compiled call of an operator for arrays; None if there is none, or if it reads their elements."""
        found = None if operator.random else _calls.get((operator, *[x._signature for x in operands]))
        return None if found is _NEEDS_INTEGERS or found is _NEEDS_NUMBERS else found

    def in_place(self, operator: Op, x: NDArray, other: NDArray) -> Call | None:
        """Return the call of an operator that can write its result to the first of its two operands, or None."""
        if (0, 0) not in operator.inplace:
            return None
        key = (operator, x._signature, other._signature)
        found = _calls.get(key) or _compile(operator, (x, other), key)
        return found if found.outputs == (x._signature,) else None


# Kept instead of a call if the types of the results depend on the elements of small arrays: of integers, or of floats
# as well.
_NEEDS_INTEGERS: Any = object()
_NEEDS_NUMBERS: Any = object()


class Literal:
    """An operand that is part of the program: a small array of integers, such as axes or a shape."""

    __slots__ = ("array", "_key")

    def __init__(self, array: np.ndarray):
        self.array = array
        self._key = (array.dtype.str, array.shape, array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _operand(operator: Op, position: int, operands: Sequence[Any]) -> NDArray | Literal:
    """Return an operand that is not an array: integers become part of the program, everything else an array."""
    x = literal_operand(operator, position, operands)
    x = x.array if isinstance(x, Tensor) else np.asarray(x)
    if x.dtype.kind in "iu" and x.size <= _MOST_LITERALS and _is_setting(operator, position):
        return Literal(np.asarray(x, order="C"))
    if dtype_of(x.dtype) is DType.STRING:
        return Literal(x)
    return own(np.array(x, order="C"))


def _is_setting(operator: Op, position: int) -> bool:
    """Whether a literal operand is part of the program: an operand of integers, such as axes, but not indices."""
    formals = operator.formals
    if not formals:
        return False
    name = formals[min(position, len(formals) - 1)].name
    allowed = operator.types.get(name, ())
    return name != "indices" and not isinstance(allowed, str) and bool(allowed) and INTEGERS.issuperset(allowed)


def _may_be_setting(position: int, x: Any, floats: bool) -> bool:
    """Whether an operand may become a literal. floats: also if it has floating-point numbers."""
    if type(x) is not NDArray or x._data.size > _MOST_LITERALS:
        return False
    return x.tensor.dtype.is_integer or (floats and position > 0 and x.tensor.dtype.is_float)


def _with_literals(operator: Op, given: Sequence[Any], floats: bool) -> list[Any]:
    """Return the operands with literals in place of small arrays. Raises UsageError if gradients would be lost."""
    found = list(given)
    for i, x in enumerate(given):
        if _may_be_setting(i, x, floats):
            if settings.recording and (x._origin is not None or x._grad_req):
                raise UsageError(
                    f"{operator.name}: the shape of the result depends on the elements of {x}, so it has no gradient; "
                    "give the operator x.detach()"
                )
            found[i] = Literal(x.asnumpy())
    return found


def _missing_literals(operator: Op, given: Sequence[Any], values: Sequence[Value | None]) -> Any:
    """Return which literals make the result types static: _NEEDS_INTEGERS, _NEEDS_NUMBERS, or None for none."""
    integers = any(i > 0 and _may_be_setting(i, x, False) for i, x in enumerate(given))
    for floats in (False, True):
        chosen = [_may_be_setting(i, x, floats) for i, x in enumerate(given)]
        if any(chosen[1:]):
            tried = [
                constant(x.asnumpy()) if is_chosen else v for x, v, is_chosen in zip(given, values, chosen, strict=True)
            ]
            if _is_fixed(Node(operator, tried)):
                return _NEEDS_NUMBERS if floats else _NEEDS_INTEGERS
    return _NEEDS_INTEGERS if integers else None


def _is_fixed(node: Node) -> bool:
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in node.outputs)


def _compile(operator: Op, given: Sequence[NDArray | Literal | None], key: Any) -> Call:
    """Compile the program of a call, or return which literals it needs.

    Raises TypeMismatch if the operands do not fit.
    """
    inputs: list[Value] = []
    values: list[Value | None] = []
    for x in given:
        if isinstance(x, NDArray):
            inputs.append(Value(x.type, f"x{len(inputs)}"))
            values.append(inputs[-1])
        else:
            values.append(None if x is None else constant(x.array))
    node = Node(operator, values)
    call = None if _is_fixed(node) else _missing_literals(operator, given, values)
    if call is None:
        call = compiled(Graph(inputs, node.outputs), operator.name)
    remember(_calls, key, call)
    return call


# --- random numbers -----------------------------------------------------------------------------------


class _Generator:
    """The state of random numbers of this process."""

    seed = 0
    step = itertools.count()


generator = _Generator()


def random_state() -> NDArray:
    """Return the state for the next random operator: the seed, and a number that each call increases."""
    return own(np.array([generator.seed % (1 << 64), next(generator.step)], np.uint64))


def _with_random_state(operator: Op, given: list[Any]) -> tuple[Op, list[Any]]:
    position = [formal.name for formal in operator.formals].index("rng")
    if len(given) > position and given[position] is not None:
        return operator, given
    return operator, [*given, *[None] * (position - len(given)), random_state()]
