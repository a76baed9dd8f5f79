"""Programs on devices with their own memory.

The planner is the same as for the CPU: the arena is one block of the device's memory. A node without a kernel is
interpreted by the device. Maps, which are Python dicts, are always on the host. Outputs are copied to numpy arrays;
states stay on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.executor.devices.device import Device, interprets
from graphkit.executor.lower.arrays.body import SubgraphStep
from graphkit.executor.lower.arrays.launched_sum import LaunchedSum
from graphkit.executor.lower.arrays.staged import StagedStep
from graphkit.executor.lower.arrays.swapped import SwapStep
from graphkit.executor.lower.failures import longest_loop
from graphkit.executor.lower.lowering import LoweredGraph
from graphkit.executor.lower.python_step import LaunchedStep
from graphkit.executor.memory.errors import out_of_memory
from graphkit.executor.memory.placement import Result
from graphkit.executor.memory.pools import IDLE, Pools
from graphkit.executor.memory.resident import DeviceValue, Resident
from graphkit.executor.run import base_program as programs
from graphkit.executor.run.arrays.instance import ArrayInstance
from graphkit.executor.run.base_program import Key
from graphkit.executor.run.program_run import Run
from graphkit.ir import limits
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.origin import signature
from graphkit.ir.types import DType, OptionalType, SequenceType, TensorType, Type
from graphkit.ops.sequence.elements import holds_maps
from graphkit.text import human, quantity, short_repr

if TYPE_CHECKING:
    from graphkit.executor.report.plan import Plan

# An estimate of the host memory that a step takes, with its node and its part of the plan.
_STEP_BYTES = 24 << 10


class ArrayProgram:
    """An Executable that runs a lowered graph on a device with its own memory.

    Args:
        lowered: The graph.
        device: The device.
        pools: The memory that programs share.
        borrowed: Inputs that a run reads in the memory of other programs of the device.

    Raises:
        UnsupportedError: The device has no arrays of some types. The message names the nodes.
    """

    needs_recompiling = False
    is_as_declared = False
    has_fixed_results = False
    part_keys: tuple[Key, ...] = ()

    def __init__(self, lowered: LoweredGraph, device: Device, pools: Pools, borrowed: Collection[Value] = ()):
        graph = lowered.graph
        _check_lowered(lowered, device)
        self.graph = graph
        self.device = device
        self.pools = pools
        self._borrowed = tuple(borrowed)
        self._longest_loop = longest_loop(lowered)
        self.lowered = lowered
        self.placement = lowered.placement
        position = {v: i for i, v in enumerate(graph.inputs)}
        self.state_inputs = [position[state] for state, _ in graph.updates]
        self._on_devices = {device: range(len(graph.updates))}
        # Only host memory is donated; an instance overwrites the arrays of the device itself.
        self.donated = [False] * len(graph.updates)
        self.interruptible: Callable[[], bool] | None = None
        self._idle: list[ArrayInstance] = []
        self.kept_bytes = _STEP_BYTES * len(lowered.placement.steps)

    def prepare(self) -> None:
        """Do nothing: the first run copies the parameters to the device."""

    def run(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray], discard: Collection[int] = ()) -> list[Any]:
        """Run once; see `Executable.run`. New values of states are Resident. Several threads use several streams."""
        if programs.recorder is not None:
            raise UnsupportedError(f"profiling needs the native engine: device 'cpu', not {self.device.name!r}")
        instance = self.take()
        if self.graph.updates:
            self.interruptible = lambda: not instance.is_writing
        try:
            with out_of_memory(self.graph, f"a run on device {self.device.name!r}"):
                results = instance.run(inputs, buffers, discard)
        finally:
            self.interruptible = None
        self.give(instance)
        return results

    def start(self) -> Run:
        """Return a run that has not begun."""
        return DeviceRun(self)

    def clear_needs_recompiling(self) -> None:
        """Do nothing: such a program never needs recompiling."""

    def as_part(self) -> None:
        """Return None: only programs of the CPU run batches in parts."""
        return None

    def take(self) -> ArrayInstance:
        """Return an instance for one run. Raises as `InstancedProgram.take`."""
        if (loop := self._longest_loop) is not None:
            limits.check_iterations(loop.trips - 1, loop.node.describe())
        try:
            return self._idle.pop()
        except IndexError:
            arena = self.lowered.memory.layout.arena_bytes
            with out_of_memory(self.graph, f"the arena on device {self.device.name!r}, {arena} bytes"):
                return ArrayInstance(self.lowered, self.device, self.pools, self._borrowed)

    def give(self, instance: ArrayInstance) -> None:
        """Take an instance back after a successful run."""
        if len(self._idle) < IDLE:
            self._idle.append(instance)

    @property
    def finals(self) -> tuple[Result, ...]:
        """The updates' new values, then the outputs."""
        return self.placement.results

    @property
    def on_devices(self) -> Mapping[Device, Sequence[int]]:
        """The states that stay on a device between runs, as positions among the updates."""
        return self._on_devices

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The interpreted nodes, as "name (Op)"."""
        return self.plan.fallbacks

    def interpreted(self) -> Iterable[tuple[str, Node, str]]:
        """Return name, node and reason of the steps that are interpreted."""
        return self.lowered.interpreted()

    def contents(self) -> str:
        """Return a summary, such as `20 steps (18 native, 2 interpreted), arena 1.2 MiB`."""
        return self.lowered.contents()

    @cached_property
    def plan(self) -> Plan:
        from graphkit.executor.report.describe import describe

        return describe(self.lowered)

    def __repr__(self) -> str:
        return short_repr(self, self._facts)

    def _facts(self) -> Iterator[str]:
        yield repr(self.graph.name)
        yield f"device {self.device.name}"
        yield quantity(len(self.placement.steps), "step")
        yield f"arena {human(self.lowered.memory.layout.arena_bytes)}"
        yield signature(self.graph)


class DeviceRun:
    """A run of a program on a device. The device executes its steps while the host continues."""

    def __init__(self, program: ArrayProgram):
        self._program = program
        self._instance: ArrayInstance | None = None
        self._launched = False

    @property
    def _taken(self) -> ArrayInstance:
        assert self._instance is not None, "it has begun"
        return self._instance

    def begin(self, inputs: Sequence[Any], buffers: Mapping[int, np.ndarray]) -> None:
        self._instance = self._program.take()
        with out_of_memory(self._program.graph, f"a run on device {self._program.device.name!r}"):
            self._instance.begin(inputs)

    def launch(self) -> None:
        self._launched = True
        with out_of_memory(self._program.graph, f"a run on device {self._program.device.name!r}"):
            self._taken.launch()

    def device_result(self, position: int) -> DeviceValue:
        return self._taken.device_result(position)

    def device_input(self, position: int) -> DeviceValue:
        return self._taken.device_input(position)

    def fetch(self, position: int, out: np.ndarray | None = None) -> Any:
        return self._taken.fetch(position, out)

    def wait(self) -> None:
        self._taken.check()

    def raise_fault(self) -> None:
        if self._launched:
            self._taken.raise_fault()

    def new_states(self) -> list[Resident | None]:
        return self._taken.new_states()

    def end(self, succeeded: bool) -> None:
        if self._instance is not None:
            self._instance.end()
            if succeeded:
                self._program.give(self._instance)


def _check_lowered(lowered: LoweredGraph, device: Device) -> None:
    """Raise UnsupportedError if the device has no arrays for an element type of the graph or of its subgraphs."""
    own = (LaunchedStep, LaunchedSum, StagedStep, SubgraphStep, SwapStep)
    launched = {node for node, lowering in lowered.steps if isinstance(lowering, own)}
    _check_types(lowered.graph, device, launched, lowered.placement.steps)
    for _, lowering in lowered.steps:
        for inner in lowering.subgraphs.values():
            _check_lowered(inner, device)


def _check_types(
    graph: Graph, device: Device, launched: Container[Node] = (), steps: Iterable[Node] | None = None
) -> None:
    """Raise UnsupportedError if the device has no arrays for an element type of the graph.

    Args:
        graph: The graph.
        device: The device.
        launched: The nodes with kernels, which may read and write elements that arrays hold as bits.
        steps: The nodes that are computed. None: all nodes are interpreted.
    """
    interpreted = [node for node in (graph.nodes if steps is None else steps) if node not in launched]
    read = {value for node in interpreted for value in (*node.operands, *node.outputs)}
    found: dict[str, list[str]] = {}
    for value in graph.values:
        if holds_maps(value.type):
            continue
        dtype = _element(value.type)
        held = isinstance(value.type, TensorType) and steps is not None and value not in read
        if not interprets(device, dtype) and not (held and device.stored(dtype) is not None):
            found.setdefault(dtype.value, []).append(graph.name_of(value))
    for body in (body for node in interpreted for body in _subgraphs(node)):
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
