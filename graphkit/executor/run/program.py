"""A program: one lowered graph, written for the native engine and ready to run many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from graphkit.errors import GraphkitError, OutOfMemory
from graphkit.executor.devices.interpreted import check_result, owned_results
from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.emit import Emitter
from graphkit.executor.lower.lowering import Location, LoweredGraph
from graphkit.executor.lower.python_step import PythonFunction, PythonKernel
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.executor.memory.pools import Pools
from graphkit.executor.run.base_program import Instance, InstancedProgram
from graphkit.ir.graph import Node, Value
from graphkit.ir.limits import Limits
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, DType, TensorType
from graphkit.ops.evaluate import failure_of

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


# What a step takes with its node, its kernel and its part of the plan, as measured on networks.
_STEP_BYTES = 24 << 10


class Program(InstancedProgram):
    """Runs a lowered graph, whose inputs have static types, on memory of `pools`."""

    def __init__(self, lowered: LoweredGraph, pools: Pools):
        graph, placement, settings = lowered.graph, lowered.placement, lowered.settings
        super().__init__(graph, placement, pools)
        self._lowered = lowered
        self.kept_bytes = _STEP_BYTES * len(placement.steps)
        count = len(graph.inputs)
        self.emitter = Emitter(count + len(placement.results))
        inputs: list[Location] = [(i, 0) for i in range(count)]
        results: list[Location] = [(count + i, 0) for i in range(len(placement.results))]
        self.native: _native.Program | None = None
        self.arena_bytes = lowered.memory.layout.arena_bytes
        builder = cast("_native.Builder", _Calls())
        if settings.native:
            self.native = native_module().Program(settings.threads, self.arena_bytes, count + len(results))
            builder = self.native.root
        self.emitter.graph(builder, lowered, 0, inputs, results)
        self.owned = [
            (r.value.tensor.static_shape, r.value.dtype.numpy, r.value.tensor.nbytes) if r.owned else None
            for r in placement.results
        ]
        position = {v: i for i, v in enumerate(graph.inputs)}
        self.state_inputs = [position[state] for state, _ in graph.updates]
        self.donated = [state in lowered.memory.donated for state, _ in graph.updates]

    @property
    def lowered(self) -> LoweredGraph:
        return self._lowered

    @cached_property
    def fallbacks(self) -> tuple[str, ...]:
        steps = set(self.placement.steps)
        return tuple(
            f"{name} ({node.op.name}{reason and f': {reason}'})"
            for name, node, reason in self._lowered.interpreted()
            if node not in steps or not _is_shape_arithmetic(node)
        )

    def instance(self) -> Instance:
        return _Instance(self)

    @property
    def threads(self) -> int:
        return self._lowered.settings.threads

    @property
    def calls_python(self) -> bool:
        return bool(self.emitter.calls) or self.native is None


class _Calls:
    """Stands for the native program where there is none: every step is a call of Python."""

    def call(self, name: str, index: int) -> None:
        """Nothing to write down."""

    def commit(self) -> None:
        """Nothing either."""


class _BufferOperand(NamedTuple):
    """An operand of a Python step in a buffer of the native program: external memory, position, the value's type."""

    buffer: int
    position: int
    kind: TensorType


class _Reader(NamedTuple):
    """A place in a Python step's operand list that is filled at run time; `view` reshapes what the storage holds."""

    operands: list[Any]
    position: int
    view: TensorType | None


class _Instance:
    """The native instance, and the operand lists of the steps that run in Python.

    These read and write an arena of their own; an instance without any runs on whatever arena there is.
    """

    def __init__(self, program: Program):
        lowered = program.lowered
        self.arena = aligned_bytes(program.arena_bytes) if program.calls_python else None
        self.limits: Limits | None = None
        self.native: _native.Instance | None = None
        if program.native is not None:
            self.native = native_module().Instance(program.native)
        self._pools = program.pools
        self._sources = program.emitter.sources
        self._readers: dict[Value, list[_Reader]] = {}
        self._referred: dict[int, np.ndarray] = {}  # what buffers refer to in this run
        self._position = {index: position for position, index in enumerate(lowered.memory.order)}
        self._calls: list[Callable[[], None]] = [self._python_step(program, index) for index in program.emitter.calls]
        self._finals: list[Any] = [None] * len(program.owned)
        results = lowered.placement.results
        self._buffer_finals = self._bind_all(program, self._finals, [None if r.owned else r.value for r in results])
        self._owners = [(i, lowered.placement.root[r.value]) for i, r in enumerate(results) if r.owned]
        graph = program.graph
        # Sequences and optionals are for Python steps only.
        self._not_native = [i for i, v in enumerate(graph.inputs) if not isinstance(v.type, TensorType)]
        fixed = lowered.fixed
        fed = [(i, v) for i, v in enumerate(graph.inputs) if v not in fixed]
        self._input_readers = [(i, readers) for i, v in fed if (readers := self._readers.get(v))]
        self._fixed_readers = [(fixed[v], readers) for v, readers in self._readers.items() if v in fixed]
        self._forget = [readers for v, readers in self._readers.items() if v not in fixed]
        self._held: list[np.ndarray] = []
        self._stamp = -1

    def _python_step(self, program: Program, index: int) -> Callable[[], None]:
        """The call of a step. It holds parts of the instance, not the instance, which holds it."""
        node, lowering = program.placement.steps[index], program.lowered.lowerings[index]
        used = program.placement.used
        inputs: list[Any] = [None] * len(node.inputs)
        outputs: list[Any] = [None] * len(node.outputs)
        dynamic = self._bind_all(program, inputs, node.inputs)
        run: Callable[[Any, Any], None]
        if isinstance(lowering, PythonFunction):
            run = self._delivered(program, node, lowering)
        else:
            assert isinstance(lowering, PythonKernel), "calls are Python steps"
            run = lowering.kernel
            self._bind_all(program, outputs, [v if v in used else None for v in node.outputs])
        releases = program.lowered.memory.releases.get(self._position[index], ())
        done = [self._readers.setdefault(v, []) for v in releases]
        native = self.native

        def call() -> None:
            for operand in dynamic:
                inputs[operand.position] = _read(native, operand)
            try:
                run(inputs, outputs)
            except GraphkitError:
                raise
            except Exception as error:
                raise failure_of(node, error) from error
            for operand in dynamic:
                inputs[operand.position] = None
            for readers in done:
                _release(readers)

        return call

    def _bind_all(self, program: Program, operands: list[Any], values: Sequence[Value | None]) -> list[_BufferOperand]:
        """Put the arrays of `values` into `operands`, now or (by readers) in every run; return those to read first."""
        memory, buffers = program.lowered.memory, program.emitter.buffers
        found: list[_BufferOperand] = []
        for position, value in enumerate(values):
            if value is None:
                continue
            storage = program.placement.root[value]
            offset = memory.offset(storage)
            if offset is not None:
                kind = value.tensor
                operands[position] = np.ndarray(kind.static_shape, kind.dtype.numpy, self.arena, offset)
            elif storage in buffers:
                found.append(_BufferOperand(buffers[storage], position, value.tensor))
            else:
                reader = _Reader(operands, position, None if value is storage else value.tensor)
                self._readers.setdefault(storage, []).append(reader)
        return found

    def _delivered(self, program: Program, node: Node, step: PythonFunction) -> Callable[[Any, Any], None]:
        """Return a function that runs the step's function and stores its results for the steps that read them.

        A result of known size is copied to its planned memory.
        """
        used, buffers = program.placement.used, program.emitter.buffers
        destinations: list[Any] = [None] * len(node.outputs)
        self._bind_all(program, destinations, [v if v in used and has_fixed_size(v) else None for v in node.outputs])
        readers_of = [self._readers.setdefault(v, []) for v in node.outputs]
        declared = program.lowered.settings.declared
        native, referred, function, owned = self.native, self._referred, step.function, step.owned

        def run(inputs: Sequence[Any], _: Any) -> None:
            results = function(inputs) if owned else owned_results(inputs, function(inputs))
            if declared:
                declared.found(node.outputs, [r.shape if isinstance(r, np.ndarray) else None for r in results])
            made = zip(node.outputs, destinations, readers_of, results, strict=True)
            for position, (value, target, readers, result) in enumerate(made):
                if isinstance(result, np.ndarray):
                    result = np.asarray(result, order="C")
                if target is not None:
                    check_result(node, position, result, target.shape, target.dtype)
                    np.copyto(target, result)
                elif native is not None and value in buffers:
                    referred[buffers[value]] = result
                    native.set_buffer(buffers[value], result, result.shape)
                else:
                    _fill(readers, result)

        return run

    def run(
        self, program: Program, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], arena: np.ndarray
    ) -> list[Any]:
        results = program.results(buffers)
        for position, readers in self._input_readers:
            _fill(readers, inputs[position])
        if self._readers:
            for position, storage in self._owners:
                if readers := self._readers.get(storage, []):
                    _fill(readers, _shaped(results[position], storage.tensor))
        if self.native is None:
            self._run_calls(program)
        else:
            arrays = [*inputs, *results]
            for position in self._not_native:
                arrays[position] = None
            program.run_native(self.native, arrays, arena, self._call if self._calls else None)
        for operand in self._buffer_finals:
            results[operand.position] = _read(self.native, operand).copy()
        for position, final in enumerate(self._finals):
            if final is not None:
                results[position] = _copied(final)
        self._referred.clear()
        for readers in self._forget:
            _release(readers)
        return results

    def _run_calls(self, program: Program) -> None:
        if program.state_inputs and not any(program.donated):
            program.interruptible = _always
        try:
            for call in self._calls:
                call()
        finally:
            program.interruptible = None

    def _call(self, index: int) -> None:
        self._calls[index]()

    def refresh(self) -> None:
        if (stamp := self._pools.stamp()) != self._stamp:
            self._refresh()
            self._stamp = stamp

    def _refresh(self) -> None:
        """Read parameters and constants again; pack those that changed."""
        packed = self._pools.packed
        held = []
        for external, source, kernel, position in self._sources:
            array = packed.plain(source) if kernel is None else packed.get(source, kernel, position)
            held.append(array)
            if self.native is not None:
                self.native.set(external, array)
        for source, readers in self._fixed_readers:
            _fill(readers, source.array)
        self._held = held


def _read(native: _native.Instance | None, operand: _BufferOperand) -> np.ndarray:
    """The array in a buffer, valid until the buffer is written again."""
    assert native is not None, "buffers are the native program's"
    data, shape = native.read(operand.buffer, operand.kind.dtype.itemsize)
    try:
        return np.ndarray(shape, operand.kind.dtype.numpy, data)
    except ValueError as error:  # numpy multiplies sizes up to the one that is 0
        raise OutOfMemory(f"an array of shape {list(shape)}: {error}") from error


def _always() -> bool:
    return True


def _fill(readers: Sequence[_Reader], array: Any) -> None:
    for operands, position, view in readers:
        operands[position] = array if view is None else _shaped(array, view)


def _release(readers: Sequence[_Reader]) -> None:
    for operands, position, _view in readers:
        operands[position] = None


def _shaped(array: np.ndarray, kind: TensorType) -> np.ndarray:
    """The bytes of a C-contiguous array as another type; no copy."""
    wanted = kind.dtype.numpy
    if array.dtype != wanted:
        array = array.reshape(-1).view(wanted)
    return array if array.shape == kind.shape else array.reshape(kind.static_shape)


def _copied(result: Any) -> Any:
    """An array, or a sequence of arrays, that shares no memory with anything."""
    if isinstance(result, np.ndarray):
        return result.copy()
    return [_copied(item) for item in result] if isinstance(result, (list, tuple)) else result


def _is_shape_arithmetic(node: Node) -> bool:
    """Whether all results are small integer tensors: work that follows shapes, not data."""
    return all(
        isinstance(v.type, TensorType)
        and (v.type.dtype.is_integer or v.type.dtype is DType.BOOL)
        and v.type.is_static
        and v.type.nbytes <= MAX_KNOWN_ELEMENTS * v.type.dtype.itemsize
        for v in node.outputs
    )
