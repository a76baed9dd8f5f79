"""Programs on devices with memory of their own: planned like all others.

The arena is one piece of the device's memory, laid out by the same planner. A node without a kernel of the device runs
through its operator's `xp` reference on arrays of the device, or on copies on the host where that is of numpy alone.
Maps, which are Python's own dicts, are always on the host. Results come back as numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.device import ArrayKernel, Device
from graphkit.executor.devices.kernel import VersionedArray
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.lower.python_step import LaunchedStep, PythonKernel, kept
from graphkit.executor.memory.pools import IDLE, Pools
from graphkit.executor.run import base_program as programs
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, OptionalType, SequenceType, TensorType, Type
from graphkit.ops.evaluate import run_node
from graphkit.ops.sequence.elements import holds_maps

if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan

# What a step takes with its node and its part of the plan.
_STEP_BYTES = 24 << 10


class ArrayProgram:
    """Runs a lowered graph on a device; see Program, whose public face this has.

    Raises UnsupportedError, naming nodes, for types that the device has no arrays of.
    """

    interruptible: Callable[[], bool] | None = None
    outgrown = False
    is_as_declared = False
    has_fixed_results = False

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools):
        graph = lowered.graph
        _check_types(graph, device)
        self.graph = graph
        self.device = device
        self.pools = pools
        self.lowered = lowered
        self.placement = lowered.placement
        position = {v: i for i, v in enumerate(graph.inputs)}
        self.state_inputs = [position[state] for state, _ in graph.updates]
        # Arrays of a device are its own.
        self.donated = [False] * len(graph.updates)
        self._idle: list[_Instance] = []
        self.kept_bytes = _STEP_BYTES * len(lowered.placement.steps)

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        """Run once; see Program.run. Runs in several threads go on in streams of their own."""
        if programs.recorder is not None:
            raise UnsupportedError(f"profiling needs the native engine: device 'cpu', not {self.device.name!r}")
        try:
            instance = self._idle.pop()
        except IndexError:
            instance = _Instance(self)
        results = instance.run(inputs, buffers)
        if len(self._idle) < IDLE:
            self._idle.append(instance)
        return results

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Nodes without a kernel of the device: those that are interpreted, as "name (Op)"."""
        return self.plan.fallbacks

    @cached_property
    def plan(self) -> Plan:
        from graphkit.executor.report.describe import describe

        return describe(self.lowered)


class _Instance:
    """One arena and one stream. `_arrays` maps storages to what they hold at present."""

    def __init__(self, program: ArrayProgram):
        self._program = program
        device, memory, placement = program.device, program.lowered.memory, program.placement
        self._stream = device.stream()
        self._arrays: dict[Value, Any] = {}
        self._stamp = -1
        with device.on(self._stream):
            self._kernels = [_prepared(device, node, lowering) for node, lowering in program.lowered.steps]
            arena = device.alloc(memory.layout.arena_bytes)
            self._scratch = {
                index: device.view(arena, offset, (lowering.scratch_bytes,), np.dtype(np.uint8))
                for index, (_, lowering) in enumerate(program.lowered.steps)
                if (offset := memory.scratch_offset(index)) is not None
            }
            for storage in memory.request_of:
                self._arrays[storage] = self._view(arena, memory.offset(storage) or 0, storage)
            for result in placement.results:
                if result.owned:
                    storage = placement.root[result.value]
                    self._arrays[storage] = self._view(device.alloc(storage.tensor.nbytes), 0, storage)
        self._kept = frozenset(self._arrays)  # what lies in memory that stays

    def _view(self, memory: Any, offset: int, storage: Value) -> Any:
        kind = storage.tensor
        return self._program.device.view(memory, offset, kind.static_shape, kind.dtype.numpy)

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> list[Any]:
        program = self._program
        device, lowered, placement = program.device, program.lowered, program.placement
        with device.on(self._stream):
            self._refresh()
            for value, given in zip(program.graph.inputs, inputs, strict=True):
                if given is not None and value not in lowered.fixed:
                    self._arrays[value] = _copied_in(device, given)
            for position, index in enumerate(lowered.memory.order):
                self._step(placement.steps[index], index)
                for storage in lowered.memory.releases.get(position, ()):
                    self._arrays.pop(storage, None)
            results = [
                _copied_out(device, self._read(r.value), buffers.get(i)) for i, r in enumerate(placement.results)
            ]
            for kernel in self._kernels:
                if kernel is not None and kernel.may_fail:
                    kernel.check()
        for storage in [s for s in self._arrays if s not in self._kept and s not in lowered.fixed]:
            del self._arrays[storage]
        return results

    def _step(self, node: Node, index: int) -> None:
        used, kernel = self._program.placement.used, self._kernels[index]
        operands = [None if v is None else self._read(v) for v in node.inputs]
        if kernel is not None:
            kernel(operands, [self._read(v) if v in used else None for v in node.outputs], self._scratch.get(index))
            return
        results = kept(node, operands, run_node(node, operands, self._program.device.xp))
        for value, result in zip(node.outputs, results, strict=True):
            if value in used:
                self._arrays[value] = result

    def _read(self, value: Value) -> Any:
        storage = self._program.placement.root[value]
        array = self._arrays.get(storage)
        if value is storage or array is None:
            return array
        kind = value.tensor
        wanted = kind.dtype.numpy
        if array.dtype != wanted:
            array = array.reshape(-1).view(wanted)
        return array.reshape(kind.static_shape)

    def _refresh(self) -> None:
        """Copy parameters and constants that have changed to the device."""
        program = self._program
        if (stamp := program.pools.stamp()) == self._stamp:
            return
        for storage, source in program.lowered.fixed.items():
            self._arrays[storage] = program.pools.packed.made(source, f"on {program.device.name}", self._uploaded)
        self._stamp = stamp

    def _uploaded(self, source: VersionedArray) -> Any:
        device = self._program.device
        array = device.copy_in(source.array)
        device.synchronize(self._stream)  # other streams read it as well
        return array


def _prepared(device: Device, node: Node, lowering: Lowering) -> ArrayKernel | None:
    """None for a node whose results are arrays that it makes."""
    if isinstance(lowering, LaunchedStep):
        return device.prepare(node, lowering.kernel)
    return device.prepare(node, None) if isinstance(lowering, PythonKernel) else None


def _copied_in(device: Device, given: Any) -> Any:
    """A fed array, or a sequence of them, on the device; maps stay on the host."""
    if isinstance(given, (list, tuple)):
        return [_copied_in(device, item) for item in given]
    return given if isinstance(given, dict) else device.copy_in(given)


def _copied_out(device: Device, result: Any, out: np.ndarray | None) -> Any:
    if isinstance(result, (list, tuple)):
        return [_copied_out(device, item, None) for item in result]
    return result if result is None or isinstance(result, dict) else device.copy_out(result, out)


def _check_types(graph: Graph, device: Device) -> None:
    """Raises UnsupportedError for element types that the device's arrays cannot have."""
    found: dict[str, list[str]] = {}
    for value in graph.values:
        if holds_maps(value.type):
            continue
        dtype = _element(value.type)
        if not device.supports(dtype):
            found.setdefault(dtype.value, []).append(graph.name_of(value))
    for body in (body for node in graph.nodes for body in _subgraphs(node)):
        _check_types(body, device)
    if found:
        listed = "; ".join(f"{dtype}: {', '.join(names[:5])}" for dtype, names in found.items())
        raise UnsupportedError(f"device {device.name!r} has no arrays of these types ({listed}); use device='cpu'")


def _subgraphs(node: Node) -> Iterator[Graph]:
    subgraphs = getattr(node.op, "subgraphs", None)
    if subgraphs is not None:
        yield from subgraphs().values()


def _element(kind: Type) -> DType:
    while isinstance(kind, (SequenceType, OptionalType)):
        kind = kind.element
    assert isinstance(kind, TensorType)
    return kind.dtype
