"""Writing planned regions into a native program: every operand becomes a place in the arena or in external memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from graphkit.executor.devices.kernels import VersionedArray
from graphkit.executor.memory.placement import has_run_time_size
from graphkit.ir.graph import Node, Value

if TYPE_CHECKING:
    from graphkit.executor.lower.region import Region

# (external memory, offset in bytes); the arena and "no operand" have numbers of their own.
Where: TypeAlias = tuple[int, int]

ARENA = -1
ABSENT: Where = (-2, 0)
NO_SLOT = -1


class Step(Protocol):
    """A node that the native program runs otherwise than by a kernel made for it beforehand.

    `regions` are the subgraphs that it runs, by the part of a step's name that tells which one it is in;
    `scratch_bytes` is the working memory that it needs in the arena.
    """

    @property
    def regions(self) -> Mapping[str, Region]: ...
    @property
    def scratch_bytes(self) -> int: ...

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        """Write the step for operands and results that lie as given; a result that nobody reads is ABSENT.

        The working memory begins at `base`.
        """
        ...


class Emitter:
    """Numbers the external memory of one program, and remembers what it needs from outside.

    `sources` are the parameters and constants that kernels read: (external memory, array, kernel that packs it or
    None). `calls` are the steps of the outermost region that run in Python. A slot is external memory that belongs to
    the run, with the shape that its value has there; `slots` are those of the outermost region.
    """

    def __init__(self, externals: int):
        self.sources: list[tuple[int, VersionedArray, Any, int]] = []
        self.calls: list[int] = []
        self.slots: dict[Value, int] = {}
        self._count = externals
        self._known: dict[tuple[int, str], int] = {}
        self._slots: set[int] = set()

    def new_external(self) -> int:
        self._count += 1
        return self._count - 1

    def new_slot(self) -> Where:
        self._slots.add(self._count)
        return self.new_external(), 0

    def is_slot(self, where: Where) -> bool:
        return where[0] in self._slots

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
        """Write a region's steps. `base` is its arena's offset; inputs and results (updates, outputs) lie as given.

        Values whose size a run tells have slots: inputs and results of such types are given as slots. A result whose
        own type has a size may go to a slot as well.
        """
        places = _Places(self, region, base, inputs, results)
        if not prefix:
            self.slots = places.slots  # filled below
        placed = list(enumerate(zip(region.placement.results, results, strict=True)))
        for position, (result, where) in placed:
            if result.owned and self.is_slot(where):
                kind = result.value.tensor
                builder.resize(f"{prefix}result {position}", where[0], kind.static_shape, kind.dtype.itemsize)
        commit = len(region.order) if prefix else _first_overwriting(region)
        for position, index in enumerate(region.order):
            if position == commit:
                builder.commit()
            self._step(builder, region, index, places, prefix)
        for position, (result, where) in placed:
            if not result.owned and where != ABSENT and prefix and places.of(result.value) != where:
                self.copy(builder, f"{prefix}result {position}", result.value, places.of(result.value), where)

    def _step(self, builder: Any, region: Region, index: int, places: _Places, prefix: str) -> None:
        node, chosen = region.placement.steps[index], region.chosen[index]
        name = prefix + region.graph.node_name(node)
        if chosen.step is not None:
            inputs, outputs = places.inputs(node), places.outputs(node)
            chosen.step.emit(self, builder, name, inputs, outputs, places.scratch(index)[1])
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

    def copy(self, builder: Any, name: str, value: Value, source: Where, target: Where) -> None:
        """Copy a value; a slot gets its shape as well."""
        kind = value.tensor
        if has_run_time_size(value):
            builder.store(name, source[0], target[0], kind.dtype.itemsize)
            return
        if self.is_slot(target):
            builder.resize(name, target[0], kind.static_shape, kind.dtype.itemsize)
        builder.copy(name, source, target, kind.nbytes)


class _Places:
    """Where the values of one region lie."""

    def __init__(self, emitter: Emitter, region: Region, base: int, inputs: Sequence[Where], results: Sequence[Where]):
        self._emitter = emitter
        self._region = region
        self._base = base
        self._bound = dict(zip(region.graph.inputs, inputs, strict=True))
        self.slots: dict[Value, int] = {}
        for result, where in zip(region.placement.results, results, strict=True):
            root = region.placement.root[result.value]
            made_here = region.placement.place[root] == "dynamic" and root not in self._bound
            if result.owned or (made_here and emitter.is_slot(where)):
                self._bound[root] = where

    def of(self, value: Value) -> Where:
        region = self._region
        root = region.placement.root[value]
        if root in region.fixed:
            return self._emitter.fixed(region.fixed[root])
        if root in region.request_of:
            return ARENA, self._base + region.layout.offsets[region.request_of[root]]
        if root not in self._bound:
            self._bound[root] = self._emitter.new_slot()
            self.slots[root] = self._bound[root][0]
        return self._bound[root]

    def inputs(self, node: Node, kernel: Any = None) -> list[Where]:
        packed = () if kernel is None else kernel.packed_inputs
        found: list[Where] = []
        for position, operand in enumerate(node.inputs):
            if operand is None:
                found.append(ABSENT)
            elif position in packed:
                # Only the packed form: naming the plain array as well would keep it in memory.
                array = self._region.fixed[self._region.placement.root[operand]]
                found.append(self._emitter.fixed(array, kernel, position))
            else:
                found.append(self.of(operand))
        return found

    def outputs(self, node: Node) -> list[Where]:
        return [self.of(v) if v in self._region.placement.used else ABSENT for v in node.outputs]

    def scratch(self, index: int) -> Where:
        request = self._region.scratch_of.get(index)
        return ABSENT if request is None else (ARENA, self._base + self._region.layout.offsets[request])


def _first_overwriting(region: Region) -> int:
    """The position of the first step that writes over the old value of a state; the number of steps without one."""
    roots = region.placement.root
    kept = {roots[new] for state, new in region.graph.updates if state in region.overwritten}
    for position, index in enumerate(region.order):
        if any(roots[v] in kept for v in region.placement.steps[index].outputs if v in roots):
            return position
    return len(region.order)


def _padded(places: list[Where], count: int) -> list[Where]:
    return places + [ABSENT] * (count - len(places))
