"""A compiled program for the CPU: a lowered graph, written for the native engine."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from graphkit.collector import without_gc
from graphkit.errors import GraphkitError, OutOfMemory
from graphkit.executor.devices.loading import native_module
from graphkit.executor.lower.emit import Emitter
from graphkit.executor.lower.lowering import Location, LoweredGraph
from graphkit.executor.memory.packing import aligned_bytes
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.executor.memory.pools import MAX_OVERSIZE, RECYCLED_BYTES, Pools
from graphkit.executor.run.base_program import Instance, InstancedProgram
from graphkit.ir.graph import Node, Value
from graphkit.ir.limits import Limits
from graphkit.ir.types import MAX_KNOWN_ELEMENTS, DType, TensorType
from graphkit.named_tuples import NamedTuple

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native
    from graphkit.executor.lower.python_step import PythonFunction


_BYTES = np.dtype(np.uint8)

# Approximate bytes of a step with its node, kernel and part of the plan, measured on networks.
_STEP_BYTES = 24 << 10


class Program(InstancedProgram):
    """Runs a lowered graph, whose inputs have static types. It uses the memory of `pools`."""

    def __init__(self, lowered: LoweredGraph, pools: Pools):
        graph, placement, settings = lowered.graph, lowered.placement, lowered.settings
        super().__init__(graph, placement, pools)
        self._lowered = lowered
        if any(lowering.trips for lowering in lowered.lowerings):
            from graphkit.executor.lower.failures import longest_loop

            self.longest_loop = longest_loop(lowered)
        self.kept_bytes = _STEP_BYTES * len(placement.steps)
        count = len(graph.inputs)
        self.emitter = Emitter(count + len(placement.results))
        inputs: list[Location] = [(i, 0) for i in range(count)]
        results: list[Location] = [(count + i, 0) for i in range(len(placement.results))]
        self.native: _native.Program | None = None
        self.arena_bytes = lowered.memory.layout.arena_bytes
        builder = cast("_native.Builder", _PythonBuilder())
        if settings.native:
            self.native = native_module().Program(settings.threads, self.arena_bytes, count + len(results))
            builder = self.native.root
        self.emitter.graph(builder, lowered, 0, inputs, results)
        self.has_dynamic_memory = self.emitter.allocates
        made: dict[int, tuple[tuple[int, ...], np.dtype, int]] = {}  # equal entries, by the number of the type
        for kind in [r.value.tensor for r in placement.results if r.owned]:
            if kind.number not in made:
                made[kind.number] = kind.static_shape, kind.dtype.numpy, kind.nbytes
        self.owned = [made[r.value.tensor.number] if r.owned else None for r in placement.results]
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

    @without_gc
    def instance(self) -> Instance:
        return _Instance(self)

    def copied(self, position: int, array: np.ndarray) -> np.ndarray:
        """Return a copy of a result in recycled or new memory. Raises OutOfMemory."""
        result = self.allocated(position, array.shape, array.dtype, array.nbytes)
        np.copyto(result, array)
        return result

    @property
    def threads(self) -> int:
        return self._lowered.settings.threads

    @property
    def calls_python(self) -> bool:
        return bool(self.emitter.calls) or self.native is None


class _PythonBuilder:
    """Replaces the native builder if there is no native engine.

    All steps then run in Python, and Emitter collects them.
    """

    def call(self, name: str, index: int) -> None:
        """Do nothing."""

    def commit(self) -> None:
        """Do nothing."""


class _BufferOperand(NamedTuple):
    """An operand of a Python step that is in a buffer of the native program.

    Attributes:
        buffer: Number of the buffer.
        position: Position among the operands.
        kind: Type of the operand.
    """

    buffer: int
    position: int
    kind: TensorType


class _OperandSlot(NamedTuple):
    """An entry of an operand list of a Python step, which is set during a run.

    Attributes:
        operands: The operand list.
        position: The entry.
        view: Type of the operand if it is a view of a storage with another type, else None.
    """

    operands: list[Any]
    position: int
    view: TensorType | None


class _Instance:
    """The native instance, and the operand lists of the steps that run in Python.

    If there are such steps, the instance has its own arena, because their operand lists contain arrays in it.
    """

    def __init__(self, program: Program):
        lowered = program.lowered
        self.arena = aligned_bytes(program.arena_bytes) if program.calls_python else None
        self.limits: Limits | None = None
        self.memory = sys.maxsize
        self.native: _native.Instance | None = None
        if program.native is not None:
            self.native = native_module().Instance(program.native)
        self._pools = program.pools
        self._sources = program.emitter.sources
        # For each storage, the operands of Python steps that are set during a run.
        self._slots: dict[Value, list[_OperandSlot]] = {}
        # Arrays that buffers of the native program refer to; they must exist until the end of the run.
        self._kept_alive: dict[int, np.ndarray] = {}
        self._position = {index: position for position, index in enumerate(lowered.memory.order)}
        self._calls: list[Callable[[], None]] = [self._python_step(program, index) for index in program.emitter.calls]
        self._finals: list[Any] = [None] * len(program.owned)
        results = lowered.placement.results
        finals = self._bind_all(program, self._finals, [None if r.owned else r.value for r in results])
        self._buffer_finals = finals
        # The bytes that each of them had in the last run. A result that has a buffer alone may get the caller's memory.
        self._last_bytes = [0] * len(finals)
        results_in = Counter(operand.buffer for operand in finals)
        self._lendable = [
            i for i, operand in enumerate(finals)
            if results_in[operand.buffer] == 1 and operand.position >= len(program.graph.updates)
        ]  # fmt: skip
        self._buffers = [operand.buffer for operand in finals]
        self._buffer_dtypes = [operand.kind.dtype.numpy for operand in finals]
        self._owned_results = [(i, lowered.placement.root[r.value]) for i, r in enumerate(results) if r.owned]
        graph = program.graph
        # Positions of sequences and optionals, which only Python steps read.
        self._not_tensors = [i for i, v in enumerate(graph.inputs) if not isinstance(v.type, TensorType)]
        fixed = lowered.fixed
        fed = [(i, v) for i, v in enumerate(graph.inputs) if v not in fixed]
        self._input_slots = [(i, slots) for i, v in fed if (slots := self._slots.get(v))]
        self._fixed_slots = [(fixed[v], slots) for v, slots in self._slots.items() if v in fixed]
        self._released_after_run = [slots for v, slots in self._slots.items() if v not in fixed]
        self._held: list[np.ndarray] = []
        self._stamp = -1
        # Whether any of `_last_bytes` is large enough for recycled memory.
        self._lends = False
        # Whether all steps are native, and each result is in the caller's memory or in a buffer.
        self._is_native = (
            self.native is not None and not (self._calls or self._slots or self._not_tensors)
            and all(final is None for final in self._finals)
        )  # fmt: skip

    def _python_step(self, program: Program, index: int) -> Callable[[], None]:
        """Return a function that runs a Python step.

        It must not refer to the instance, which refers to it: such a cycle would delay the release of memory.
        """
        from graphkit.executor.lower import python_step

        node, lowering = program.placement.steps[index], program.lowered.lowerings[index]
        used = program.placement.used
        inputs: list[Any] = [None] * len(node.inputs)
        outputs: list[Any] = [None] * len(node.outputs)
        dynamic = self._bind_all(program, inputs, node.inputs)
        run: Callable[[Any, Any], None]
        if isinstance(lowering, python_step.PythonFunction):
            run = self._with_stored_results(program, node, lowering)
        else:
            assert isinstance(lowering, python_step.PythonKernel), "calls are Python steps"
            run = lowering.kernel
            self._bind_all(program, outputs, [v if v in used else None for v in node.outputs])
        releases = program.lowered.memory.releases.get(self._position[index], ())
        done = [self._slots.setdefault(v, []) for v in releases]
        native = self.native

        def call() -> None:
            for operand in dynamic:
                inputs[operand.position] = _read(native, operand)
            try:
                run(inputs, outputs)
            except GraphkitError:
                raise
            except Exception as error:
                from graphkit.ops.evaluate import failure_of

                raise failure_of(node, error) from error
            for operand in dynamic:
                inputs[operand.position] = None
            for slots in done:
                _release(slots)

        return call

    def _bind_all(self, program: Program, operands: list[Any], values: Sequence[Value | None]) -> list[_BufferOperand]:
        """Fill the operand list of a step.

        Values in the arena are put into `operands` now. Other values get an _OperandSlot, which each run fills. Values
        in buffers of the native program are returned: the step must read them before it runs.
        """
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
                slot = _OperandSlot(operands, position, None if value is storage else value.tensor)
                self._slots.setdefault(storage, []).append(slot)
        return found

    def _with_stored_results(self, program: Program, node: Node, step: PythonFunction) -> Callable[[Any, Any], None]:
        """Return a function that runs a step and stores its results where other steps read them.

        A result of known size is copied to its planned memory. Others are kept as they are.
        """
        from graphkit.executor.devices.interpreted import check_result, owned_results

        used, buffers = program.placement.used, program.emitter.buffers
        destinations: list[Any] = [None] * len(node.outputs)
        self._bind_all(program, destinations, [v if v in used and has_fixed_size(v) else None for v in node.outputs])
        slots_of = [self._slots.setdefault(v, []) for v in node.outputs]
        declared = program.lowered.settings.declared
        native, kept_alive, function, owned = self.native, self._kept_alive, step.function, step.owned

        def run(inputs: Sequence[Any], _: Any) -> None:
            results = function(inputs) if owned else owned_results(inputs, function(inputs))
            if declared:
                declared.found(node.outputs, [r.shape if isinstance(r, np.ndarray) else None for r in results])
            outputs = zip(node.outputs, destinations, slots_of, results, strict=True)
            for position, (value, target, slots, result) in enumerate(outputs):
                if isinstance(result, np.ndarray):
                    result = np.asarray(result, order="C")
                if target is not None:
                    check_result(node, position, result, target.shape, target.dtype)
                    np.copyto(target, result)
                elif native is not None and value in buffers:
                    kept_alive[buffers[value]] = result
                    native.set_buffer(buffers[value], result, result.shape)
                else:
                    _fill(slots, result)

        return run

    def run(
        self, program: Program, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], arena: np.ndarray
    ) -> list[Any]:
        results = program.allocate_results(buffers)
        if self._is_native and self.native is not None:
            lent = self._lend(program, self.native) if self._lends else {}
            program.run_native(self.native, [*inputs, *results], arena)
            if self._buffers:
                self._fetch_buffers(program, self.native, lent, results)
            return results
        for position, slots in self._input_slots:
            _fill(slots, inputs[position])
        if self._slots:
            for position, storage in self._owned_results:
                if slots := self._slots.get(storage, []):
                    _fill(slots, _shaped(results[position], storage.tensor))
        if self.native is None:
            self._run_calls(program)
        else:
            arrays = [*inputs, *results]
            for position in self._not_tensors:
                arrays[position] = None
            lent = self._lend(program, self.native) if self._lends else {}
            program.run_native(self.native, arrays, arena, self._call if self._calls else None)
            if self._buffers:
                self._fetch_buffers(program, self.native, lent, results)
        for position, final in enumerate(self._finals):
            if final is not None:
                results[position] = _copied(final)
        self._kept_alive.clear()
        for slots in self._released_after_run:
            _release(slots)
        return results

    def _lend(self, program: Program, native: _native.Instance) -> dict[int, np.ndarray]:
        """Offer the native program memory for results in buffers, as large as the last run needed.

        A kernel then writes its result directly to the memory that the caller receives.

        Returns:
            The memory, by position in `_buffer_finals`.
        """
        lent: dict[int, np.ndarray] = {}
        for index in self._lendable:
            nbytes = self._last_bytes[index]
            if nbytes < RECYCLED_BYTES:
                continue
            operand = self._buffer_finals[index]
            rounded = 1 << (nbytes - 1).bit_length()  # as the recycled memory
            lent[index] = program.allocated(operand.position, (rounded,), _BYTES, rounded)
            native.lend(operand.buffer, lent[index])
        return lent

    def _fetch_buffers(
        self, program: Program, native: _native.Instance, lent: dict[int, np.ndarray], results: list[Any]
    ) -> None:
        """Put the results in buffers into `results`: views of lent memory, or copies."""
        copies = [None] * len(self._buffers) if self._lends else self._small_copies(native)
        shapes = {index: native.take_back(self._buffer_finals[index].buffer) for index in lent}
        for index, (operand, copy) in enumerate(zip(self._buffer_finals, copies, strict=True)):
            if copy is not None:
                results[operand.position] = copy
                continue
            self._lends = True
            memory, shape = lent.pop(index, None), shapes.get(index)
            if memory is not None and shape is not None:
                result = _array_in(memory, shape, operand.kind.dtype.numpy)
                self._last_bytes[index] = result.nbytes
                if memory.nbytes <= MAX_OVERSIZE * result.nbytes:
                    results[operand.position] = result
                    continue
            else:
                result = _read(native, operand)
                self._last_bytes[index] = result.nbytes
            del memory  # unless the buffer is in it, the copy may use it
            results[operand.position] = program.copied(operand.position, result)
        if self._lends:
            self._lends = max(self._last_bytes) >= RECYCLED_BYTES

    def _small_copies(self, native: _native.Instance) -> list[np.ndarray | None]:
        """Return copies of the results in buffers that are too small for recycled memory; None for the others."""
        try:
            return native.copies(self._buffers, self._buffer_dtypes, RECYCLED_BYTES)
        except (MemoryError, ValueError):
            return [None] * len(self._buffers)  # the caller copies again, and raises an error that names the result

    def _run_calls(self, program: Program) -> None:
        """Run all steps in Python."""
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
        """Read the parameters and constants again, and pack those that have changed."""
        held = self._pools.packed.get(self._sources)
        if self.native is not None:
            self.native.set_all([operand.external for operand in self._sources], held)
        for source, slots in self._fixed_slots:
            _fill(slots, source.array)
        self._held = held


def _read(native: _native.Instance | None, operand: _BufferOperand) -> np.ndarray:
    """Return the array in a buffer of the native program. It is valid until the buffer is written again."""
    assert native is not None, "only a native program has buffers"
    data, shape = native.read(operand.buffer, operand.kind.dtype.itemsize)
    return _array_in(data, shape, operand.kind.dtype.numpy)


def _array_in(data: Any, shape: list[int], dtype: np.dtype) -> np.ndarray:
    """Return the array of this shape at the start of a memory. Raises OutOfMemory."""
    try:
        return np.ndarray(shape, dtype, data)
    except ValueError as error:  # an empty array whose other sizes exceed numpy's limits
        raise OutOfMemory(f"an array of shape {list(shape)}: {error}") from error


def _always() -> bool:
    return True


def _fill(slots: Sequence[_OperandSlot], array: Any) -> None:
    """Set operands of Python steps to an array."""
    for operands, position, view in slots:
        operands[position] = array if view is None else _shaped(array, view)


def _release(slots: Sequence[_OperandSlot]) -> None:
    """Remove an array from the operands of Python steps."""
    for operands, position, _view in slots:
        operands[position] = None


def _shaped(array: np.ndarray, kind: TensorType) -> np.ndarray:
    """Return a view of a C-contiguous array with the dtype and shape of `kind`."""
    wanted = kind.dtype.numpy
    if array.dtype != wanted:
        array = array.reshape(-1).view(wanted)
    return array if array.shape == kind.shape else array.reshape(kind.static_shape)


def _copied(result: Any) -> Any:
    """Return a deep copy of an array, or of a sequence of arrays."""
    if isinstance(result, np.ndarray):
        return result.copy()
    return [_copied(item) for item in result] if isinstance(result, (list, tuple)) else result


def _is_shape_arithmetic(node: Node) -> bool:
    """Whether all results are small integer or boolean tensors, as in computations on shapes."""
    return all(
        isinstance(v.type, TensorType)
        and (v.type.dtype.is_integer or v.type.dtype is DType.BOOL)
        and v.type.is_static
        and v.type.nbytes <= MAX_KNOWN_ELEMENTS * v.type.dtype.itemsize
        for v in node.outputs
    )
