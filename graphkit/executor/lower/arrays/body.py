"""Subgraphs on devices with arrays of their own: how their steps are prepared, once, and run on the memory of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from graphkit.executor.devices.device import ArrayKernel, BoundStep, Device
from graphkit.executor.devices.kernel import LaunchedKernel
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.lower.python_step import LaunchedStep, PythonKernel, PythonStep
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType


class SubgraphStep(PythonStep):
    """A node whose subgraphs are run by steps of the device's."""

    def __init__(self) -> None:
        super().__init__("native")

    @abstractmethod
    def prepared(self, device: Device, faults: Iterator[Any]) -> SubgraphKernel:
        """faults: words for the kernels inside, as `prepare` takes them."""


class SubgraphKernel(ABC):
    """What runs a node's subgraphs. launches: about how many steps a call runs."""

    can_be_recorded: bool
    launches: int

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        for step in self.steps(inputs, outputs, scratch):
            step.run()

    @abstractmethod
    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        """What a call runs, one by one. Where it can be recorded, steps may run later; else each runs before the next
        is asked for."""


class ArrayMaker(ABC):
    """A kernel some of whose results may be arrays that it makes: a run tells how large they are."""

    can_be_recorded: bool

    @abstractmethod
    def made(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> dict[int, Any]:
        """Run; the results without planned memory, by their position."""

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        """Run, where all results have planned memory."""
        self.made(inputs, outputs, scratch)


def launches_of(kernel: ArrayKernel | None) -> int:
    """About how many steps a call of a kernel runs."""
    return kernel.launches if isinstance(kernel, SubgraphKernel) else 1


class Faulty(NamedTuple):
    """A kernel that may set a fault."""

    node: Node
    kernel: LaunchedKernel


def faulty(node: Node, lowering: Lowering) -> Iterator[Faulty]:
    """The kernels of a step that may set a fault, in the order in which `prepare` takes words for them."""
    if isinstance(lowering, LaunchedStep) and lowering.kernel.fault:
        yield Faulty(node, lowering.kernel)
    elif isinstance(lowering, SubgraphStep):
        for graph in lowering.subgraphs.values():
            for inner in graph.steps:
                yield from faulty(*inner)


def prepare(device: Device, node: Node, lowering: Lowering, faults: Iterator[Any]) -> ArrayKernel | None:
    """What computes a node; None for a step whose results are arrays that it makes. faults: words, for `faulty`."""
    if isinstance(lowering, LaunchedStep):
        return device.prepare(node, lowering.kernel, next(faults) if lowering.kernel.fault else None)
    if isinstance(lowering, SubgraphStep):
        return lowering.prepared(device, faults)
    return device.prepare(node, None, None) if isinstance(lowering, PythonKernel) else None


def laid(device: Device, memory: Any, offset: int, kind: TensorType) -> Any:
    """The array of a type at an offset in memory, or in that of an array."""
    return device.view(memory, offset, kind.static_shape, stored(device, kind))


def stored(device: Device, kind: TensorType) -> np.dtype:
    """By which element type a device's arrays hold such elements."""
    found = device.stored(kind.dtype)
    assert found is not None, "the program has looked at all types"
    return found


def as_stored(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The same bytes as elements of another type of the same size."""
    return array if array.dtype == dtype else np.ascontiguousarray(array).view(dtype)


class Copied:
    """Copies an array to another of as many bytes."""

    can_be_recorded = True

    def __init__(self, device: Device):
        self._device = device

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> None:
        self._device.copy_across(inputs[0], outputs[0])

    def step(self, source: Any, target: Any) -> BoundStep:
        return BoundStep(self, [source], [target], None)


class ArrayBody:
    """A subgraph all of whose values have known sizes, prepared on a device; any memory may be its arena."""

    def __init__(self, device: Device, lowered: LoweredGraph, faults: Iterator[Any]):
        self._device, self._lowered = device, lowered
        self._copied = Copied(device)
        kernels = [prepare(device, node, lowering, faults) for node, lowering in lowered.steps]
        self._kernels = [kernel for kernel in kernels if kernel is not None]
        assert len(self._kernels) == len(kernels), "the results of every step have planned memory"
        self.can_be_recorded = all(kernel.can_be_recorded for kernel in self._kernels)
        self.launches = sum(map(launches_of, self._kernels))
        inputs = {*lowered.graph.inputs}
        self._constants = {
            value: device.copy_in(as_stored(source.array, stored(device, value.tensor)))
            for value, source in lowered.fixed.items()
            if value not in inputs
        }

    def reads(self, value: Value) -> bool:
        """Whether anything depends on one of the graph's inputs."""
        return value in self._lowered.placement.used

    def steps(self, arena: Any, inputs: Sequence[Any], results: Sequence[Any]) -> Iterator[BoundStep]:
        """The steps on memory: `arena` is what the plan's offsets count from, inputs and results lie as given."""
        lowered, placement = self._lowered, self._lowered.placement
        places = {**self._constants, **dict(zip(lowered.graph.inputs, inputs, strict=True))}
        for result, target in zip(placement.results, results, strict=True):
            if result.owned:
                places[placement.root[result.value]] = target

        def at(value: Value) -> Any:
            root = placement.root[value]
            if root not in places:
                offset = lowered.memory.offset(root)
                assert offset is not None, "what is no result, input or constant lies in the arena"
                places[root] = laid(self._device, arena, offset, root.tensor)
            return places[root] if value is root else laid(self._device, places[root], 0, value.tensor)

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


def looks_at_values(kernel: ArrayKernel) -> bool:
    """Whether the host asks for values to know what a kernel has to run."""
    return isinstance(kernel, SubgraphKernel) and not kernel.can_be_recorded


def flattened(step: BoundStep) -> Iterator[BoundStep]:
    """A step, or where it runs subgraphs and can be recorded, the steps inside."""
    if isinstance(step.kernel, SubgraphKernel) and step.kernel.can_be_recorded:
        yield from step.kernel.steps(step.inputs, step.outputs, step.scratch)
    else:
        yield step
