"""Loop and Scan as a graph of the native program, with numbers of iterations that are known before or only in a run.

What a loop stacks without knowing how much there will be grows in a buffer; so does a state whose shape changes. The
step owns a block of working memory: the states that pass from one iteration to the next, and the arena of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from graphkit.executor.lower.loop_layout import Block, CarriedState, LoopLayout, Scanned, Stacked, layout_of, operand_of
from graphkit.executor.lower.lowering import (
    ABSENT,
    ARENA,
    NO_BUFFER,
    Emission,
    Location,
    Lowering,
    Site,
)
from graphkit.executor.lower.run_time_kernel import Prepared, RunTimeOperand, Shapes, run_time_operand
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops.control.loop_state import output_types
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.sweep import is_control

# As the native builder takes them: a function, where the node's operands lie, and how the program sees them.
_Empty: TypeAlias = tuple[Callable[[Shapes, Shapes], Prepared], list[Location], list[RunTimeOperand]]


class NativeLoop(Lowering):
    """A Loop or a Scan whose iterations run without Python."""

    def __init__(self, node: Node, layout: LoopLayout, scratch_bytes: int):
        self._node = node
        self._layout = layout
        self.scratch_bytes = scratch_bytes
        self.subgraphs = {"body": layout.body}
        if not self._tells_rows:
            captured = range(len(node.inputs))[LoopView.of(node).at_captures]
            self.unread = set(captured) - layout.body.inputs_read

    @property
    def ends(self) -> bool:
        """Whether it is known how often it runs, at most."""
        return self._layout.trips >= 0

    def emit(self, step: Emission) -> None:
        layout, inputs, outputs = self._layout, step.inputs, step.outputs
        memory = _LoopMemory(self._node, layout, step)
        flag = memory.own(layout.flag_after)
        is_loop = layout.iteration is not None
        limit, condition = (*inputs, ABSENT, ABSENT)[:2]
        builder = step.builder.loop(
            step.name,
            trips=layout.trips,
            trip_count=_optional(limit) if is_loop else None,
            condition=_optional(condition) if is_loop else None,
            iteration=memory.own(layout.iteration),
            condition_before=memory.own(layout.flag_before),
            condition_after=flag,
            states=memory.states,
            dynamic_states=memory.dynamic_states,
            slices=memory.slices,
            stacks=memory.stacks,
            empty=self._empty(inputs) if self._tells_rows else None,
        )
        written = [*([] if flag is None else [flag]), *memory.written, *memory.rows]
        arena = step.scratch[1] + layout.arena
        step.writer.graph(builder, layout.body, arena, memory.entry(), written, prefix=f"{step.name}/body/")
        for operand, output in layout.unchanged:
            if outputs[output] != ABSENT:
                value = operand_of(self._node, operand)
                name = f"{step.name}/state {output}"
                step.writer.copy(step.builder, name, value, inputs[operand], outputs[output])

    @property
    def _tells_rows(self) -> bool:
        """Whether the shapes of rows are told from the operands, when there are none."""
        return any(has_run_time_size(s.row) for s in self._layout.stacked)

    def _empty(self, inputs: Sequence[Location]) -> _Empty:
        """What tells the shapes of rows when there are none."""
        node = self._node
        operands = [run_time_operand(v, at) for v, at in zip(node.inputs, inputs, strict=True)]
        outputs = [s.output for s in self._layout.stacked if not has_fixed_size(node.outputs[s.output])]
        return partial(_empty_rows, node, outputs), list(inputs), operands


class _LoopMemory:
    """Where a loop's values lie, and what the native program has to do with them in each iteration.

    `states`, `dynamic_states`, `slices` and `stacks` are what the builder's `loop` takes. The body reads `entry()`,
    writes the states to `written` and what is stacked to `rows`.
    """

    def __init__(self, node: Node, layout: LoopLayout, step: Emission):
        self._node = node
        self._layout = layout
        self._writer = step.writer
        self._inputs = step.inputs
        self._base = step.scratch[1]
        self._of_body: dict[Value, Location] = {}
        self.slices: list[tuple[Any, ...]] = []
        self.stacks: list[tuple[Any, ...]] = []
        self.states: list[tuple[Any, ...]] = []
        self.dynamic_states: list[tuple[Any, ...]] = []
        self.written: list[Location] = []
        self.rows: list[Location] = []
        for scan in layout.scanned:
            self._scan(scan)
        for stack in layout.stacked:
            self._stack(stack, step.outputs[stack.output])
        for state in layout.states:
            self._carry(state, _optional(step.outputs[state.output]))

    def own(self, offset: int | None) -> Location | None:
        """A place in the step's block."""
        return None if offset is None else (ARENA, self._base + offset)

    def entry(self) -> list[Location]:
        """The body's inputs; captures lie where the operands do."""
        layout = self._layout
        head = [at for at in (self.own(layout.iteration), self.own(layout.flag_before)) if at is not None]
        rest = enumerate(layout.body.graph.inputs[len(head) :], start=len(head))
        return [*head, *(self._of_body[v] if v in self._of_body else self._inputs[i] for i, v in rest)]

    def _row(self, value: Value) -> Location:
        return self._writer.new_buffer() if has_run_time_size(value) else (self._writer.new_external(), 0)

    def _buffer_or_shape(self, operand: int) -> tuple[int, tuple[int, ...]]:
        value = operand_of(self._node, operand)
        return (self._inputs[operand][0], ()) if has_run_time_size(value) else (NO_BUFFER, value.tensor.static_shape)

    def _scan(self, scan: Scanned) -> None:
        kind, row = scan.row.tensor, self._row(scan.row)
        buffer, _ = self._buffer_or_shape(scan.operand)
        stride = kind.nbytes if buffer == NO_BUFFER else 0
        self.slices.append((row[0], self._inputs[scan.operand], stride, scan.backwards, buffer, kind.dtype.itemsize))
        self._of_body[scan.row] = row

    def _stack(self, stack: Stacked, whole: Location) -> None:
        kind, row = stack.row.tensor, self._row(stack.row)
        item = kind.dtype.itemsize
        if has_fixed_size(self._node.outputs[stack.output]):
            self.slices.append((row[0], whole, kind.nbytes, stack.backwards, NO_BUFFER, item))
        else:
            shape = kind.static_shape if kind.is_static else None
            self.stacks.append((row[0], whole[0], shape, item, stack.backwards))
        self.rows.append(row)

    def _carry(self, state: CarriedState, final: Location | None) -> None:
        kind, initial = state.before.tensor, self._inputs[state.operand]
        before = self._row(state.before)
        if state.buffers is None:
            after = self._writer.new_buffer()
            buffer, shape = self._buffer_or_shape(state.operand)
            target = NO_BUFFER if final is None else final[0]
            self.dynamic_states.append((initial, buffer, shape, before[0], after[0], target, kind.dtype.itemsize))
        elif isinstance(state.buffers, int):
            after = self.rows[state.buffers]
            backwards = self._layout.stacked[state.buffers].backwards
            self.states.append((initial, before[0], after[0], backwards, final, kind.nbytes))
        else:
            after = (self._writer.new_external(), 0)
            buffers = tuple(self.own(offset) for offset in state.buffers)
            self.states.append((initial, before[0], after[0], buffers, final, kind.nbytes))
        self._of_body[state.before] = before
        self.written.append(after)


def _optional(location: Location) -> Location | None:
    return None if location == ABSENT else location


def _empty_rows(node: Node, outputs: Sequence[int], shapes: Shapes, _: Shapes) -> Prepared:
    """The shapes that the rows of outputs would have, unknown sizes as 0."""
    view = LoopView.of(node)
    scanned = range(len(node.inputs))[view.at_scan_inputs]
    types: list[Type] = [v.type for v in view.entry]
    for position, (value, shape) in enumerate(zip(node.inputs, shapes, strict=True)):
        if position >= view.lead and value is not None:
            whole = value.tensor.static_shape if shape is None else tuple(shape)
            types.append(TensorType(value.dtype, whole[1:] if position in scanned else whole))
    found = output_types(view.body, types)[view.flag :]
    rows = [row for row in (found[i] for i in outputs) if isinstance(row, TensorType)]
    sizes = [tuple(d if isinstance(d, int) else 0 for d in row.shape or ()) for row in rows]
    return Prepared(None, sizes, [], [], None)


def loop(site: Site) -> NativeLoop | None:
    """A Loop or a Scan whose body runs without Python, over slices along the first axis."""
    if not is_control(site.node) or site.node.op.name == "If":
        return None
    block = Block()
    layout = layout_of(site, block)
    return NativeLoop(site.node, layout, block.size)
