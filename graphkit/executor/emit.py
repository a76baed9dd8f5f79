"""Writing planned regions into a native program: every operand becomes a place in the arena or in external memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from graphkit.executor.kernels import VersionedArray
from graphkit.executor.region import Region
from graphkit.ir.graph import Node, Value

# (external memory, offset in bytes); the arena and "no operand" have numbers of their own.
Where: TypeAlias = tuple[int, int]

ARENA = -1
ABSENT: Where = (-2, 0)


class Emitter:
    """Numbers the external memory of one program, and remembers what it needs from outside.

    `sources` are the parameters and constants that kernels read: (external memory, array, kernel that packs it or
    None). `calls` are the steps of the outermost region that run in Python.
    """

    def __init__(self, externals: int):
        self.sources: list[tuple[int, VersionedArray, Any, int]] = []
        self.calls: list[int] = []
        self._count = externals
        self._known: dict[tuple[int, str], int] = {}

    def new_external(self) -> int:
        self._count += 1
        return self._count - 1

    def fixed(self, array: VersionedArray, kernel: Any = None, position: int = -1) -> Where:
        """The memory of a parameter or constant, or of its packed form as `kernel` wants it at `position`."""
        key = (id(array), "" if kernel is None else kernel.packed_layout(position))
        if key not in self._known:
            self._known[key] = self.new_external()
            self.sources.append((self._known[key], array, kernel, position))
        return self._known[key], 0

    def region(
        self,
        builder: Any,
        region: Region,
        base: int,
        inputs: Sequence[Where],
        results: Sequence[Where],
        prefix: str = "",
    ) -> None:
        """Write a region's steps. `base` is its arena's offset; inputs and results (updates, outputs) lie as given."""
        places = _Places(self, region, base, inputs, results)
        for index in region.order:
            node, chosen = region.placement.steps[index], region.chosen[index]
            name = prefix + region.graph.node_name(node)
            if chosen.control is not None:
                chosen.control.emit(
                    self, builder, name, places.inputs(node), places.outputs(node), places.scratch(index)[1]
                )
            elif chosen.compiled:
                builder.kernel(
                    name,
                    chosen.kernel,
                    _padded(places.inputs(node, chosen.kernel), chosen.kernel.input_count),
                    _padded(places.outputs(node), chosen.kernel.output_count),
                    places.scratch(index),
                )
            else:
                builder.call(name, len(self.calls))
                self.calls.append(index)
        for result, where in zip(region.placement.results, results, strict=True):
            if not result.owned and where != ABSENT and prefix:
                builder.copy(prefix, places.of(result.value), where, result.value.tensor.nbytes)


class _Places:
    """Where the values of one region lie."""

    def __init__(self, emitter: Emitter, region: Region, base: int, inputs: Sequence[Where], results: Sequence[Where]):
        self._emitter = emitter
        self._region = region
        self._base = base
        self._bound = dict(zip(region.graph.inputs, inputs, strict=True))
        for result, where in zip(region.placement.results, results, strict=True):
            if result.owned:
                self._bound[region.placement.root[result.value]] = where

    def of(self, value: Value) -> Where:
        region = self._region
        root = region.placement.root[value]
        if root in region.fixed:
            return self._emitter.fixed(region.fixed[root])
        if root in region.request_of:
            return ARENA, self._base + region.layout.offsets[region.request_of[root]]
        return self._bound[root]

    def inputs(self, node: Node, kernel: Any = None) -> list[Where]:
        found = [ABSENT if v is None else self.of(v) for v in node.inputs]
        for position in () if kernel is None else kernel.packed_inputs:
            operand = node.inputs[position]
            assert operand is not None
            array = self._region.fixed[self._region.placement.root[operand]]
            found[position] = self._emitter.fixed(array, kernel, position)
        return found

    def outputs(self, node: Node) -> list[Where]:
        return [self.of(v) if v in self._region.placement.used else ABSENT for v in node.outputs]

    def scratch(self, index: int) -> Where:
        request = self._region.scratch_of.get(index)
        return ABSENT if request is None else (ARENA, self._base + self._region.layout.offsets[request])


def _padded(places: list[Where], count: int) -> list[Where]:
    return places + [ABSENT] * (count - len(places))
