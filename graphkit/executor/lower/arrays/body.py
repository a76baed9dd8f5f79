"""Subgraphs on devices with their own memory. Kernels are prepared once, and get the memory of each run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure
from graphkit.executor.devices.bound_steps import ArrayKernel, BoundStep, Conditional
from graphkit.executor.devices.capabilities import Recorder
from graphkit.executor.devices.device import Copied, Device
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.lower.python_step import LaunchedStep, PythonKernel
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops._op import value_check


class InstanceContext:
    """State that the kernels of one instance of a program share.

    Args:
        faults: Words of uint32 on the device: one for each `Faulty` kernel, in the order of `faulty`, and a last one,
            which the host sets to end all loops.
        iteration_limit: The largest number of iterations of any loop in a recording, an int64 on the device.
    """

    def __init__(self, device: Device, faults: Any, iteration_limit: Any, *, without_collectives: bool):
        self._device, self.faults, self.iteration_limit = device, faults, iteration_limit
        self._without_collectives = without_collectives
        self._words = (faults[number : number + 1] for number in range(len(faults)))

    @property
    def conditions(self) -> bool:
        # A recording with NCCL waits for events outside of it, which a recording with conditions cannot do.
        return self._without_collectives and isinstance(self._device, Recorder) and self._device.supports_conditions()

    def word(self) -> Any:
        return next(self._words)


class SubgraphStep(Lowering):
    """A node that runs subgraphs: in a native program, or as steps on device arrays.

    failure: None if the step itself cannot fail, else a function from the node and its fault word to the error (see
    `Faulty`). In the order of `faulty`, the kernels of the subgraphs come before the step itself.
    """

    runs_in_subgraph = True

    failure: Callable[[Node, int], RuntimeFailure] | None = None

    @abstractmethod
    def prepared(self, device: Device, context: InstanceContext) -> SubgraphKernel: ...

    @property
    def host_reason(self) -> str:
        """Why the host must read values in each run to choose the steps of this node; "" if it need not.

        If it must, the node cannot be recorded.
        """
        return next(filter(None, map(_why_not_recorded, self.subgraphs.values())), "")


def _why_not_recorded(graph: LoweredGraph) -> str:
    """Return why the steps of a subgraph cannot be recorded; "" if they can."""
    for node, lowering in graph.steps:
        name = f"{graph.graph.node_name(node)} ({node.op.name})"
        if lowering.kind == "interpreted":
            return f"{name} inside is interpreted"
        if isinstance(lowering, SubgraphStep):
            reasons = (lowering.host_reason, *map(_why_not_recorded, lowering.subgraphs.values()))
            if why := next(filter(None, reasons), ""):
                return f"{name} inside: {why}"
    return ""


class SubgraphKernel(ABC):
    """The kernel of a node with subgraphs.

    Attributes:
        launches: Approximate number of steps in a call or a recording.
        host_reads: Whether the host reads values during a call.
        repeats: Whether a recording contains loops whose length depends on values.
    """

    can_be_recorded: bool
    launches: int
    host_reads: bool
    repeats: bool

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        for step in self.steps(inputs, outputs, scratch):
            step.run()

    @abstractmethod
    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        """Yield the steps of a call. If it cannot be recorded, each step must run before the next is requested."""


class ArrayMaker(ABC):
    can_be_recorded: bool

    @abstractmethod
    def made(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> dict[int, Any]: ...

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self.made(inputs, outputs, scratch)


def launches_of(kernel: ArrayKernel | None) -> int:
    return kernel.launches if isinstance(kernel, SubgraphKernel) else 1


class Faulty(NamedTuple):
    """A node whose kernel can fail on the device: it then sets its fault word to a number other than 0.

    `failure` returns the error for node and word. `rejects_operands`: whether operand values can make the kernel fail.
    """

    node: Node
    failure: Callable[[Node, int], RuntimeFailure]
    rejects_operands: bool


def faulty(node: Node, lowering: Lowering) -> Iterator[Faulty]:
    """Yield the kernels of a step that can fail on the device, in the order in which `prepare` takes their words."""
    if isinstance(lowering, LaunchedStep) and lowering.kernel.fault:
        yield Faulty(node, lowering.kernel.failure, value_check(node) is not None)
    elif isinstance(lowering, SubgraphStep):
        for graph in lowering.subgraphs.values():
            for inner in graph.steps:
                yield from faulty(*inner)
        if lowering.failure is not None:
            yield Faulty(node, lowering.failure, rejects_operands=True)


def prepare(device: Device, node: Node, lowering: Lowering, context: InstanceContext) -> ArrayKernel | None:
    if isinstance(lowering, LaunchedStep):
        return device.prepare(node, lowering.kernel, context.word() if lowering.kernel.fault else None)
    if isinstance(lowering, SubgraphStep):
        return lowering.prepared(device, context)
    return device.prepare(node, None, None) if isinstance(lowering, PythonKernel) else None


def array_at(device: Device, memory: Any, offset: int, kind: TensorType) -> Any:
    return device.view(memory, offset, kind.static_shape, stored(device, kind))


def stored(device: Device, kind: TensorType) -> np.dtype:
    found = device.stored(kind.dtype)
    assert found is not None, "the program has checked all types"
    return found


def as_stored(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype == dtype else np.ascontiguousarray(array).view(dtype)


class ArrayBody:
    """A subgraph with known sizes, prepared on a device. Each call of `steps` gets the memory of its arena."""

    def __init__(self, device: Device, lowered: LoweredGraph, context: InstanceContext):
        self._device, self._lowered = device, lowered
        self._copied = Copied(device)
        kernels = [prepare(device, node, lowering, context) for node, lowering in lowered.steps]
        self._kernels = [kernel for kernel in kernels if kernel is not None]
        assert len(self._kernels) == len(kernels), "the results of every step have planned memory"
        self.can_be_recorded = all(kernel.can_be_recorded for kernel in self._kernels)
        self.launches = sum(map(launches_of, self._kernels))
        self.host_reads, self.repeats = any(map(host_reads_values, self._kernels)), any(map(repeats, self._kernels))
        inputs = {*lowered.graph.inputs}
        self._constants = {
            value: device.copy_in(as_stored(source.array, stored(device, value.tensor)))
            for value, source in lowered.fixed.items()
            if value not in inputs
        }

    def reads(self, value: Value) -> bool:
        return value in self._lowered.placement.used

    def steps(self, arena: Any, inputs: Sequence[Any], results: Sequence[Any]) -> Iterator[BoundStep]:
        lowered, placement = self._lowered, self._lowered.placement
        places = {**self._constants, **dict(zip(lowered.graph.inputs, inputs, strict=True))}
        for result, target in zip(placement.results, results, strict=True):
            if result.owned:
                places[placement.root[result.value]] = target

        def at(value: Value) -> Any:
            root = placement.root[value]
            if root not in places:
                offset = lowered.memory.offset(root)
                assert offset is not None, "all values but results, inputs and constants are in the arena"
                places[root] = array_at(self._device, arena, offset, root.tensor)
            return places[root] if value is root else array_at(self._device, places[root], 0, value.tensor)

        for index in lowered.memory.order:
            node, offset = placement.steps[index], lowered.memory.scratch_offset(index)
            size = lowered.lowerings[index].scratch_bytes
            scratch = None if offset is None else self._device.view(arena, offset, (size,), np.dtype(np.uint8))
            read = [None if v is None else at(v) for v in node.inputs]
            written = [at(v) if v in placement.used else None for v in node.outputs]
            yield from flattened(BoundStep(self._kernels[index], read, written, scratch))
        for result, target in zip(placement.results, results, strict=True):
            if not result.owned and (source := at(result.value)) is not target:
                yield self._copied.step(source, target)


def host_reads_values(kernel: ArrayKernel | None) -> bool:
    return isinstance(kernel, SubgraphKernel) and kernel.host_reads


def repeats(kernel: ArrayKernel | None) -> bool:
    return isinstance(kernel, SubgraphKernel) and kernel.repeats


def flattened(step: BoundStep) -> Iterator[BoundStep]:
    """Yield a step, or the steps of its subgraphs if they do not depend on values."""
    kernel = step.kernel
    if isinstance(kernel, SubgraphKernel) and kernel.can_be_recorded and not isinstance(kernel, Conditional):
        yield from kernel.steps(step.inputs, step.outputs, step.scratch)
    else:
        yield step
