"""Write lowered graphs into a native program. Each operand becomes a location in the arena or in external memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphkit.executor.devices.kernel import NativeKernel, VersionedArray
from graphkit.executor.lower.lowering import ABSENT, ARENA, Emission, Location, LoweredGraph, Lowering
from graphkit.executor.lower.native_kernel import PreparedKernel
from graphkit.executor.memory.packing import PackedOperand
from graphkit.executor.memory.placement import has_run_time_size
from graphkit.ir.graph import Node, Value

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


class Emitter:
    """Writes a lowered graph and its subgraphs, and numbers the program's external memory.

    Attributes:
        sources: The parameters and constants that kernels read.

    Args:
        externals: Number of blocks of external memory for inputs and results of the program.
    """

    def __init__(self, externals: int):
        self.sources: list[PackedOperand] = []
        self.calls: list[int] = []
        self.buffers: dict[Value, int] = {}
        self._count = externals
        self._known: dict[tuple[int, str], int] = {}
        self._buffer_numbers: set[int] = set()
        self.allocates = False

    def new_external(self) -> int:
        self._count += 1
        return self._count - 1

    def new_buffer(self) -> Location:
        self._buffer_numbers.add(self._count)
        self.allocates = True
        return self.new_external(), 0

    def new_call(self, index: int) -> int:
        self.calls.append(index)
        return len(self.calls) - 1

    def is_buffer(self, location: Location) -> bool:
        return location[0] in self._buffer_numbers

    def fixed(self, array: VersionedArray, kernel: NativeKernel | None = None, position: int = -1) -> Location:
        """Return the location of a parameter or constant.

        With a kernel, return the location of its packed copy of the operand `position`.
        """
        layout = "" if kernel is None else kernel.packed_layout(position)
        key = (id(array), layout)
        if key not in self._known:
            self._known[key] = self.new_external()
            self.sources.append(PackedOperand(self._known[key], array, kernel, position, layout))
        return self._known[key], 0

    def graph(
        self,
        builder: _native.Builder,
        lowered: LoweredGraph,
        base: int,
        inputs: Sequence[Location],
        results: Sequence[Location],
        prefix: str = "",
        copies: bool = False,
    ) -> None:
        """Inputs and results of run-time size must be in buffers. A result of known size may be in a buffer.

        Args:
            results: The locations of its results: updates, then outputs.
            prefix: Prefix of the steps' names; "" for the outermost graph.
            copies: Whether a result is copied to its location if no step writes it there (see `Result.owned`). In
                subgraphs, this always happens.
        """
        locations = _Locations(self, lowered, base, inputs, results)
        if not prefix:
            self.buffers = locations.buffers
        placed = list(enumerate(zip(lowered.placement.results, results, strict=True)))
        for position, (result, location) in placed:
            if result.owned and self.is_buffer(location):
                kind = result.value.tensor
                builder.resize(f"{prefix}result {position}", location[0], kind.static_shape, kind.dtype.itemsize)
        order, steps, lowerings = lowered.memory.order, lowered.placement.steps, lowered.lowerings
        names = lowered.graph.node_names
        commit = len(order) if prefix else _first_donation(lowered)
        used = lowered.placement.used
        for position, index in enumerate(order):
            if position == commit:
                builder.commit()
            node, lowering = steps[index], lowerings[index]
            name = prefix + names[node]
            if type(lowering) is PreparedKernel and lowering.reads_all:
                operands = [locations[v] for v in node.inputs]
                written = [locations[v] if v in used else ABSENT for v in node.outputs]
                lowering.write(builder, name, operands, written, locations.scratch(index))
            else:
                self._step(builder, node, lowering, index, locations, name)
        for position, (result, location) in placed if prefix or copies else ():
            if not result.owned and location != ABSENT and locations[result.value] != location:
                self.copy(builder, f"{prefix}result {position}", result.value, locations[result.value], location)

    def copy(self, builder: _native.Builder, name: str, value: Value, source: Location, target: Location) -> None:
        kind = value.tensor
        if has_run_time_size(value):
            builder.store(name, source[0], target[0], kind.dtype.itemsize)
            return
        if self.is_buffer(target):
            builder.resize(name, target[0], kind.static_shape, kind.dtype.itemsize)
        builder.copy(name, source, target, kind.nbytes)

    def _step(
        self, builder: _native.Builder, node: Node, lowering: Lowering, index: int, locations: _Locations, name: str
    ) -> None:
        self.allocates |= lowering.allocates
        # Steps in Python find their operands themselves. `locations.outputs` would create unused buffers for their
        # dynamic results.
        inputs = [] if lowering.in_python else locations.inputs(node, lowering)
        outputs = [] if lowering.in_python else locations.outputs(node)
        lowering.emit(Emission(self, builder, name, index, inputs, outputs, locations.scratch(index)))


class _Locations(dict[Value | None, Location]):
    def __init__(
        self,
        emitter: Emitter,
        lowered: LoweredGraph,
        base: int,
        inputs: Sequence[Location],
        results: Sequence[Location],
    ):
        super().__init__({None: ABSENT})
        self._emitter = emitter
        self._lowered = lowered
        self._base = base
        self.buffers: dict[Value, int] = {}
        placement, memory, fixed = lowered.placement, lowered.memory, lowered.fixed
        bound = dict(zip(lowered.graph.inputs, inputs, strict=True))
        self._root, self._used = placement.root, placement.used
        for result, location in zip(placement.results, results, strict=True):
            root = placement.root[result.value]
            made_here = placement.place[root] == "dynamic" and root not in bound
            if result.owned or (made_here and emitter.is_buffer(location)):
                bound[root] = location
        self.update((v, location) for v, location in bound.items() if v not in fixed)
        offsets, inside = memory.layout.offsets, memory.offset_in_block
        self.update((v, (ARENA, base + offsets[at] + inside.get(v, 0))) for v, at in memory.request_of.items())

    def __missing__(self, value: Value | None) -> Location:
        assert value is not None
        root = self._root[value]
        found = self[value] = self._find(root) if root is value else self[root]
        return found

    def _find(self, root: Value) -> Location:
        lowered = self._lowered
        if root in lowered.fixed:
            return self._emitter.fixed(lowered.fixed[root])
        found = self._emitter.new_buffer()
        self.buffers[root] = found[0]
        return found

    def operands(self, node: Node) -> list[Location]:
        return [self[v] for v in node.inputs]

    def inputs(self, node: Node, lowering: Lowering) -> list[Location]:
        packing, unread = lowering.packing, lowering.unread
        packed = () if packing is None else packing.packed_inputs
        if not packed and not unread:
            return self.operands(node)
        found: list[Location] = []
        for position, operand in enumerate(node.inputs):
            if operand is None or position in unread:
                found.append(ABSENT)
            elif position in packed:
                # `self[operand]` would keep the unpacked array in memory.
                array = self._lowered.fixed[self._root[operand]]
                found.append(self._emitter.fixed(array, packing, position))
            else:
                found.append(self[operand])
        return found

    def outputs(self, node: Node) -> list[Location]:
        used = self._used
        return [self[v] if v in used else ABSENT for v in node.outputs]

    def scratch(self, index: int) -> Location:
        offset = self._lowered.memory.scratch_offset(index)
        return ABSENT if offset is None else (ARENA, self._base + offset)


def _first_donation(lowered: LoweredGraph) -> int:
    """Return the position of the first step that overwrites a state; the number of steps if none does."""
    roots, order = lowered.placement.root, lowered.memory.order
    overwriting = {roots[new] for state, new in lowered.graph.updates if state in lowered.memory.donated}
    for position, index in enumerate(order):
        if any(roots[v] in overwriting for v in lowered.placement.steps[index].outputs if v in roots):
            return position
    return len(order)
