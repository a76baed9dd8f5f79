"""A program: one graph of known sizes, planned and written for the native engine, ready to run many times."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from graphkit.errors import GraphkitError, NotFinite, OutOfMemory, RuntimeFailure, lacks_memory
from graphkit.executor.devices.kernels import SizedKernel, VersionedArray, native_module
from graphkit.executor.lower.emit import Emitter, Where
from graphkit.executor.lower.region import Region, Settings
from graphkit.executor.memory.errors import explain, out_of_memory
from graphkit.executor.memory.packing import PackedArrays, aligned_bytes
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.executor.report.describe import describe, is_shape_arithmetic
from graphkit.executor.report.plan import Plan
from graphkit.executor.run.ownership import LOCAL_REFERENCES
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.evaluate import run_node

# Instances that wait for the next run; a burst of more concurrent runs makes more and lets them go.
IDLE_INSTANCES = 4

# Results of at least this many bytes are given out again once nobody holds them: fresh pages cost more than a copy.
RECYCLED_BYTES = 1 << 16


class Recorder(Protocol):
    """What every run goes through while a profile is made."""

    def run(self, program: Program, native: Any, run: Callable[[], list[Any]]) -> list[Any]:
        """Call `run`, which runs the native instance of a program."""
        ...


recorder: Recorder | None = None


class Program:
    """Runs `graph`, whose inputs have static types. `fixed` gives the operands that only change with a version.

    `stamp` tells whether any of these versions may have changed; `packed` holds what kernels made of them.
    """

    def __init__(
        self,
        graph: Graph,
        fixed: Mapping[Value, VersionedArray],
        settings: Settings,
        packed: PackedArrays,
        stamp: Callable[[], int],
    ):
        self.graph = graph
        self.region = Region(graph, fixed, settings)
        self.packed = packed
        self.stamp = stamp
        self.placement = self.region.placement
        self._idle: list[_Instance] = []
        count = len(graph.inputs)
        self.emitter = Emitter(count + len(self.placement.results))
        inputs: list[Where] = [(i, 0) for i in range(count)]
        results: list[Where] = [(count + i, 0) for i in range(len(self.placement.results))]
        native = native_module()
        self.native: Any = None
        if native is None:
            self.emitter.region(_Calls(), self.region, 0, inputs, results)
        else:
            self.native = native.Program(settings.threads, self.region.layout.arena_bytes, count + len(results))
            self.emitter.region(self.native.root, self.region, 0, inputs, results)
        self.owned = [
            (r.value.tensor.static_shape, r.value.dtype.numpy, r.value.tensor.nbytes) if r.owned else None
            for r in self.placement.results
        ]
        position = {v: i for i, v in enumerate(graph.inputs)}
        self.state_inputs = [position[state] for state, _ in graph.updates]
        self.overwrites = [state in self.region.overwritten for state, _ in graph.updates]
        # Whether the run that goes on may be interrupted; None while there is none. Of programs that write states.
        self.interruptible: Callable[[], bool] | None = None
        self._given_out: list[deque[np.ndarray]] = [deque(maxlen=2) for _ in self.owned]

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """Run once; return the new values of states, then the outputs, all in memory of their own.

        `inputs` has one array per graph input (None: not needed); `buffers` gives C-contiguous memory for results
        by position, where the result is `owned`: that of the old value where `overwrites` says so, else none that an
        input has. Safe to call from several threads.
        """
        try:
            instance = self._idle.pop()
        except IndexError:
            with out_of_memory(self.graph, f"the arena, {self.region.layout.arena_bytes} bytes"):
                instance = _Instance(self)
        if recorder is None:
            results = instance.run(inputs, buffers)
        else:
            results = recorder.run(self, instance.native, lambda: instance.run(inputs, buffers))
        # An instance whose run failed is left to the garbage collector: it may hold somebody's arrays.
        if len(self._idle) < IDLE_INSTANCES:
            self._idle.append(instance)
        return results

    def results(self, buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """Memory for the results that are written in place; None for the others."""
        made: list[Any] = []
        for position, spec in enumerate(self.owned):
            buffer = buffers.get(position) if buffers else None
            if spec is None or buffer is not None:
                made.append(buffer)
                continue
            shape, dtype, nbytes = spec
            # What a state keeps is not given out again.
            fresh = nbytes < RECYCLED_BYTES or position < len(self.overwrites)
            try:
                made.append(np.empty(shape, dtype) if fresh else self._recycled(position, shape, dtype))
            except (MemoryError, ValueError) as error:
                explain(self.graph, f"result {position}, {nbytes} bytes", error)
                raise
        return made

    def _recycled(self, position: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array given out before that nobody holds any more, or a new one."""
        pool = self._given_out[position]
        for _ in range(len(pool)):
            try:
                array = pool.popleft()
            except IndexError:  # taken by another thread
                break
            # A view, a buffer or a capsule would hold another reference.
            unheld = sys.getrefcount(array) == LOCAL_REFERENCES
            if unheld and array.shape == shape and array.dtype == dtype and array.flags.writeable:
                pool.append(array)
                return array
            if not unheld:
                pool.append(array)
        array = np.empty(shape, dtype)
        pool.append(array)
        return array

    @cached_property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes that run by reference, as "name (Op)". Shape arithmetic outside of subgraphs is left out."""
        once = {node for node in self.placement.steps if is_shape_arithmetic(node)}
        return tuple(
            f"{name} ({node.op.name}{reason and f': {reason}'})"
            for name, node, reason in self.region.by_reference()
            if node not in once
        )

    @cached_property
    def plan(self) -> Plan:
        return describe(self.region)


class _Calls:
    """Stands for the native program where there is none: every step is a call of Python."""

    def call(self, name: str, index: int) -> None:
        """Nothing to write down."""

    def commit(self) -> None:
        """Nothing either."""


class _Lent(NamedTuple):
    """An operand of a Python step in a slot of the native program: external memory, position, the value's type."""

    slot: int
    position: int
    kind: TensorType


class _Slot(NamedTuple):
    """A place in a Python step's operand list that is filled at run time; `view` reshapes what the storage holds."""

    operands: list[Any]
    position: int
    view: TensorType | None


class _Instance:
    """One arena, the native instance on it, and the operand lists of the steps that run in Python."""

    def __init__(self, program: Program):
        region = program.region
        self.arena = aligned_bytes(region.layout.arena_bytes)
        self._program = program
        self._slots: dict[Value, list[_Slot]] = {}
        self._position = {index: position for position, index in enumerate(region.order)}
        self._calls: list[Callable[[], None]] = [self._python_step(index) for index in program.emitter.calls]
        self._finals: list[Any] = [None] * len(program.owned)
        self._lent_finals = self._bind_all(
            self._finals, [None if r.owned else r.value for r in program.placement.results]
        )
        self._owners = [(i, region.placement.root[r.value]) for i, r in enumerate(program.placement.results) if r.owned]
        graph = program.graph
        # Arrays that the native part reads; sequences and optionals are for Python steps only.
        self._native_inputs = [i for i, v in enumerate(graph.inputs) if isinstance(v.type, TensorType)]
        fixed = region.fixed
        fed = [(i, v) for i, v in enumerate(graph.inputs) if v not in fixed]
        self._input_slots = [(i, slots) for i, v in fed if (slots := self._slots.get(v))]
        self._fixed_slots = [(fixed[v], slots) for v, slots in self._slots.items() if v in fixed]
        self._forget = [slots for v, slots in self._slots.items() if v not in fixed]
        self._held: list[np.ndarray] = []
        self._lent: dict[int, np.ndarray] = {}  # what slots refer to in this run
        self._stamp = -1
        self.native: Any = None
        if program.native is not None:
            native: Any = native_module()
            self.native = native.Instance(program.native, self.arena)

    def _python_step(self, index: int) -> Callable[[], None]:
        program = self._program
        node, chosen = program.placement.steps[index], program.region.chosen[index]
        kernel = chosen.kernel
        used = program.placement.used
        inputs: list[Any] = [None] * len(node.inputs)
        outputs: list[Any] = [None] * len(node.outputs)
        lent = self._bind_all(inputs, node.inputs)
        run: Any = kernel
        if kernel is None:
            run = self._dynamic(node, chosen.make)
        else:
            self._bind_all(outputs, [v if v in used else None for v in node.outputs])
        done = [self._slots.setdefault(v, []) for v in program.region.releases.get(self._position[index], ())]

        def call() -> None:
            for operand in lent:
                inputs[operand.position] = self._read(operand)
            try:
                run(inputs, outputs)
            except GraphkitError:
                raise
            except Exception as error:
                if lacks_memory(error):
                    raise OutOfMemory(f"{node.describe()}: {str(error) or 'no memory'}") from error
                raise RuntimeFailure(f"{node.describe()}: {type(error).__name__}: {error}") from error
            for operand in lent:
                inputs[operand.position] = None
            for slots in done:
                _release(slots)

        return call

    def _bind_all(self, operands: list[Any], values: Sequence[Value | None]) -> list[_Lent]:
        """Put the arrays of `values` into `operands`, now or (as slots) in every run; return those to be read first."""
        lent: list[_Lent] = []
        for position, value in enumerate(values):
            if value is None:
                continue
            region, native_slots = self._program.region, self._program.emitter.slots
            storage = region.placement.root[value]
            if storage in region.request_of:
                offset = region.layout.offsets[region.request_of[storage]]
                kind = value.tensor
                operands[position] = np.ndarray(kind.static_shape, kind.dtype.numpy, self.arena, offset)
            elif storage in native_slots:
                lent.append(_Lent(native_slots[storage], position, value.tensor))
            else:
                slot = _Slot(operands, position, None if value is storage else value.tensor)
                self._slots.setdefault(storage, []).append(slot)
        return lent

    def _read(self, operand: _Lent) -> np.ndarray:
        """The array in a slot, valid until the slot is written again."""
        data, shape = self.native.read(operand.slot, operand.kind.dtype.itemsize)
        return np.ndarray(shape, operand.kind.dtype.numpy, data)

    def _dynamic(self, node: Node, make: SizedKernel | None) -> Callable[[Any, Any], None]:
        """A step whose results are arrays that it makes: they go to whoever reads them.

        A result of known size goes to its memory.
        """
        used, native_slots = self._program.placement.used, self._program.emitter.slots
        fixed: list[Any] = [None] * len(node.outputs)
        self._bind_all(fixed, [v if v in used and has_fixed_size(v) else None for v in node.outputs])
        targets = [self._slots.setdefault(v, []) for v in node.outputs]
        declared = self._program.region.settings.declared

        def run(inputs: Sequence[Any], _: Any) -> None:
            results = run_node(node, inputs) if make is None else make(inputs)
            if declared:
                declared.found(node.outputs, [r.shape if isinstance(r, np.ndarray) else None for r in results])
            for value, target, slots, result in zip(node.outputs, fixed, targets, results, strict=True):
                if isinstance(result, np.ndarray):
                    result = np.asarray(result, order="C")
                if target is not None:
                    if result.shape != target.shape or result.dtype != target.dtype:
                        raise RuntimeFailure(
                            f"a result is {result.dtype}{list(result.shape)}; {value.type} was inferred"
                        )
                    np.copyto(target, result)
                elif value in native_slots:
                    self._lent[native_slots[value]] = result
                    self.native.lend(native_slots[value], result, result.shape)
                else:
                    _fill(slots, result)

        return run

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        program = self._program
        if (stamp := program.stamp()) != self._stamp:
            self._refresh()
            self._stamp = stamp
        results = program.results(buffers)
        for position, slots in self._input_slots:
            _fill(slots, inputs[position])
        if self._slots:
            for position, storage in self._owners:
                if readers := self._slots.get(storage):
                    _fill(readers, _shaped(results[position], storage.tensor))
        if self.native is None:
            if not any(program.overwrites):
                program.interruptible = _always
            for call in self._calls:
                call()
            program.interruptible = None
        else:
            arrays: list[Any] = [None] * len(inputs)
            for position in self._native_inputs:
                arrays[position] = inputs[position]
            arrays += results
            self._run_native(arrays)
        for operand in self._lent_finals:
            results[operand.position] = self._read(operand).copy()
        for position, final in enumerate(self._finals):
            if final is not None:
                results[position] = _copied(final)
        self._lent.clear()
        for slots in self._forget:
            _release(slots)
        return results

    def _run_native(self, arrays: list[Any]) -> None:
        native: Any = native_module()
        program = self._program
        if program.state_inputs:
            program.interruptible = self._may_interrupt
        try:
            self.native.run(arrays, self._call if self._calls else None)
        except native.NotFinite as error:
            raise NotFinite(str(error)) from error
        except native.NoMemory as error:
            raise OutOfMemory(str(error)) from error
        except native.Error as error:
            raise RuntimeFailure(str(error)) from error
        finally:
            program.interruptible = None

    def _may_interrupt(self) -> bool:
        return not self.native.committed

    def _call(self, index: int) -> None:
        self._calls[index]()

    def _refresh(self) -> None:
        """Read parameters and constants again; pack those that changed."""
        program = self._program
        held = []
        for external, source, kernel, position in program.emitter.sources:
            array = source.array if kernel is None else program.packed.get(source, kernel, position)
            held.append(array)
            if self.native is not None:
                self.native.set(external, array)
        for source, slots in self._fixed_slots:
            _fill(slots, source.array)
        self._held = held


def _always() -> bool:
    return True


def _fill(slots: Sequence[_Slot], array: Any) -> None:
    for operands, position, view in slots:
        operands[position] = array if view is None else _shaped(array, view)


def _release(slots: Sequence[_Slot]) -> None:
    for operands, position, _view in slots:
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
