"""Write the steps of a template into a native program, with positions instead of sizes and offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphkit.executor.lower.loop_layout import operand_of
from graphkit.executor.lower.lowering import ABSENT, ARENA, NO_BUFFER, Location
from graphkit.executor.lower.native_kernel import unread_operands
from graphkit.executor.lower.template_parts import Branching, Part, Planned, RepeatedState, Repeating
from graphkit.executor.memory.packing import PackedOperand
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Node, Value
from graphkit.ops.control.views import LoopView

if TYPE_CHECKING:
    from graphkit.executor.devices.loading import _native


class Writer:
    """Writes a template. `Program.resized` replaces the numbers of requests with offsets, and positions with sizes.

    Args:
        part: The outermost part.
        made: The kernels, by number.
        position: Returns the position of the bytes of a value, or of a size, in the table of sizes.

    Attributes:
        fixed: The parameters and constants that the steps read.
        shape_values: The values that are computed from sizes, by external memory.
    """

    def __init__(self, part: Part, made: Sequence[_native.NodeKernel], position: Callable[[Value | Dim], int]):
        self.made, self.position = made, position
        graph, placement = part.graph, part.placement
        self.outside = {v: (i, 0) for i, v in enumerate(graph.inputs) if v not in part.known}
        for number, result in enumerate(placement.results):
            self.outside[placement.root[result.value]] = (len(graph.inputs) + number, 0)
        self.externals = len(graph.inputs) + len(placement.results)
        self.fixed: list[PackedOperand] = []
        self.shape_values: dict[int, Value] = {}

    def write(self, builder: Any, part: Part, planned: Planned) -> None:
        """Write all steps. builder: the builder of the program."""
        _PartWriter(self, part, planned, self.outside).write(builder)

    def new(self) -> int:
        self.externals += 1
        return self.externals - 1


class _PartWriter:
    def __init__(self, shared: Writer, part: Part, planned: Planned, outside: dict[Value, Location]):
        self._shared, self._part, self._planned, self._outside = shared, part, planned, outside
        self._placement, self._known = part.placement, part.known

    def write(self, builder: Any, prefix: str = "", results: Sequence[Location] = ()) -> None:
        """Write the steps. results: where the results of a subgraph are copied if no step writes them there."""
        for index in self._planned.plan.order:
            node, step = self._placement.steps[index], self._part.steps[index]
            name = prefix + self._part.graph.node_name(node)
            if isinstance(step, int):
                self._kernel(builder, name, index, node, step)
            elif isinstance(step, Branching):
                self._branch(builder, name, index, node, step)
            else:
                self._loop(builder, name, index, node, step)
        for number, (result, target) in enumerate(zip(self._placement.results, results, strict=False)):
            if not result.owned and target != ABSENT and (source := self._location(result.value)) != target:
                builder.copy(f"{prefix}result {number}", source, target, self._shared.position(result.value))

    def _kernel(self, builder: Any, name: str, index: int, node: Node, number: int) -> None:
        made = self._shared.made[number]
        unread = unread_operands(made.kernel, node)
        inputs = [ABSENT if v is None or i in unread else self._operand(made, i, v) for i, v in enumerate(node.inputs)]
        inputs += [ABSENT] * (made.kernel.input_count - len(inputs))
        outputs = [self._result(v) for v in node.outputs]
        outputs += [ABSENT] * (made.kernel.output_count - len(outputs))
        scratch = self._planned.plan.scratch_of.get(index)
        at = ABSENT if scratch is None else (ARENA, self._planned.first + scratch)
        builder.kernel(name, made.kernel, inputs, outputs, at)

    def _inside(
        self, part: Part, planned: Planned, given: Mapping[Value, Location], results: Sequence[Location]
    ) -> _PartWriter:
        outside = dict(given)
        for result, at in zip(part.placement.results, results, strict=True):
            if result.owned:
                outside[part.placement.root[result.value]] = at
        return _PartWriter(self._shared, part, planned, outside)

    def _branch(self, builder: Any, name: str, index: int, node: Node, step: Branching) -> None:
        targets = [self._result(node.outputs[i]) for i in step.returned]
        condition = node.inputs[0]
        assert condition is not None, "an If has a condition"
        builders = builder.branch(name, self._location(condition))
        for what, inner, part, planned in zip(
            ("then", "else"), builders, step.parts, self._planned.inner[index], strict=True
        ):
            pairs = zip(part.graph.inputs, node.inputs[1:], strict=True)
            given = {v: self._location(at) for v, at in pairs if at is not None and v not in part.known}
            self._inside(part, planned, given, targets).write(inner, f"{name}/{what}/", targets)

    def _loop(self, builder: Any, name: str, index: int, node: Node, step: Repeating) -> None:
        view, (part,), (planned,) = LoopView.of(node), step.parts, self._planned.inner[index]
        block = self._planned.blocks[index]
        given: dict[Value, Location] = {}
        slices: list[tuple[Any, ...]] = []
        head: list[Location] = []
        if view.is_loop:
            head = [(ARENA, block), (ARENA, block + 1), (ARENA, block + 2)]
            given.update(zip(part.graph.inputs, head[:2], strict=False))
            block += 3
        for scan in view.scan_inputs:
            given[scan.inner] = self._slice(slices, scan.inner, self._location(scan.outer), bool(scan.backwards))
        rows = [self._slice(slices, row, self._result(node.outputs[i]), back) for i, row, back in step.stacked]
        states: list[tuple[Any, ...]] = []
        written = [head[2]] if step.flags else []
        for state in step.states:
            block += self._state(states, node, state, block, rows, step, given, written)
        written += rows
        for inner_value, operand in zip(part.graph.inputs, view.operands, strict=True):
            if operand is not None and inner_value not in given and inner_value not in part.known:
                given[inner_value] = self._location(operand)
        bounds = [None if v is None else self._location(v) for v in view.operands[: view.lead]] or [None, None]
        inner = builder.loop(
            name,
            trips=-1 if step.trips is None else self._shared.position(step.trips),
            trip_count=bounds[0],
            condition=bounds[1],
            iteration=head[0] if head else None,
            condition_before=head[1] if head else None,
            condition_after=head[2] if step.flags else None,
            states=states,
            dynamic_states=[],
            slices=slices,
            stacks=[],
            empty=None,
        )
        self._inside(part, planned, given, written).write(inner, f"{name}/body/", written)
        for number, output in step.unchanged:
            value = operand_of(node, number)
            if (target := self._result(node.outputs[output])) != ABSENT:
                builder.copy(f"{name}/state {output}", self._location(value), target, self._shared.position(value))

    def _slice(self, slices: list[tuple[Any, ...]], row: Value, whole: Location, backwards: bool) -> Location:
        external = self._shared.new()
        slices.append((external, whole, self._shared.position(row), backwards, NO_BUFFER, row.dtype.itemsize))
        return external, 0

    def _state(
        self,
        states: list[tuple[Any, ...]],
        node: Node,
        state: RepeatedState,
        block: int,
        rows: Sequence[Location],
        step: Repeating,
        given: dict[Value, Location],
        written: list[Location],
    ) -> int:
        """Append a state. Returns the number of blocks that it takes."""
        initial = operand_of(node, state.operand)
        before = (self._shared.new(), 0)
        after, kept = (rows[state.kept], step.stacked[state.kept][2]) if state.kept is not None else (None, None)
        turns: Any = kept
        if after is None:
            after, turns = (self._shared.new(), 0), ((ARENA, block), (ARENA, block + 1))
        final = self._result(node.outputs[state.output])
        size = self._shared.position(state.before)
        states.append((self._location(initial), before[0], after[0], turns, None if final == ABSENT else final, size))
        given[state.before] = before
        written.append(after)
        return 0 if state.kept is not None else 2

    def _result(self, value: Value) -> Location:
        return self._location(value) if value in self._placement.used else ABSENT

    def _operand(self, made: _native.NodeKernel, position: int, value: Value) -> Location:
        root = self._placement.root[value]
        if root not in self._known or position not in made.packed:
            return self._location(value)
        external, layout = self._shared.new(), made.layouts[made.packed.index(position)]
        self._shared.fixed.append(PackedOperand(external, self._known[root], made.kernel, position, layout))
        return external, 0

    def _location(self, value: Value) -> Location:
        root = self._placement.root[value]
        if root in self._known:
            external = self._shared.new()
            self._shared.fixed.append(PackedOperand(external, self._known[root]))
            return external, 0
        if root not in self._outside:
            if self._placement.place[root] != "shape":
                return ARENA, self._planned.first + self._planned.plan.request_of[root]
            self._outside[root] = (self._shared.new(), 0)
            self._shared.shape_values[self._outside[root][0]] = root
        return self._outside[root]
