"""Loop and Scan as a graph of the native program, with numbers of iterations that are known before or only in a run.

What a loop stacks without knowing how much there will be grows in a buffer; so does a state whose shape changes. The
step owns a block of working memory: the states that pass from one iteration to the next, and the arena of its body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from graphkit.executor.lower.lowering import (
    ABSENT,
    ARENA,
    NO_BUFFER,
    Emission,
    Location,
    LoweredGraph,
    Lowering,
    NotNative,
    Site,
)
from graphkit.executor.lower.run_time_kernel import Prepared, RunTimeOperand, Shapes, run_time_operand
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.executor.memory.planner import aligned
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops.control.loop_state import output_types
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.sweep import is_control

# As the native builder takes them: a function, where the node's operands lie, and how the program sees them.
_Empty: TypeAlias = tuple[Callable[[Shapes, Shapes], Prepared], list[Location], list[RunTimeOperand]]


@dataclass(frozen=True)
class _State:
    """A loop state.

    `buffers` are the offsets of the two that take turns; the position among the stacked values that it is one of; or
    None when its shape changes.
    """

    operand: int
    before: Value
    output: int  # of the node
    after: Value
    buffers: tuple[int, int] | int | None


@dataclass(frozen=True)
class _Scanned:
    operand: int
    row: Value
    backwards: bool


@dataclass(frozen=True)
class _Stacked:
    output: int
    row: Value
    backwards: bool


@dataclass(frozen=True)
class _Layout:
    """A loop's parts. Operands and outputs are positions of the node's; offsets are in the block of working memory.

    `states` are those that change; the others, `unchanged`, go to the body like captures. The body's outputs are the
    condition of a Loop that has one to test, `states`, and the stacked values that somebody reads.
    """

    body: LoweredGraph
    arena: int  # offset of the body's arena
    trips: int  # at most; -1: not known
    states: tuple[_State, ...]
    scanned: tuple[_Scanned, ...]
    unchanged: tuple[tuple[int, int], ...]  # (operand, output)
    stacked: tuple[_Stacked, ...]
    iteration: int | None = None
    flag_before: int | None = None
    flag_after: int | None = None  # None as well when it stays true


class NativeLoop(Lowering):
    """A Loop or a Scan whose iterations run without Python."""

    def __init__(self, node: Node, layout: _Layout, scratch_bytes: int):
        self._node = node
        self._layout = layout
        self.scratch_bytes = scratch_bytes
        self.subgraphs = {"body": layout.body}

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
            empty=self._empty(inputs) if any(has_run_time_size(s.row) for s in layout.stacked) else None,
        )
        written = [*([] if flag is None else [flag]), *memory.written, *memory.rows]
        arena = step.scratch[1] + layout.arena
        step.writer.graph(builder, layout.body, arena, memory.entry(), written, prefix=f"{step.name}/body/")
        for operand, output in layout.unchanged:
            if outputs[output] != ABSENT:
                value = _operand(self._node, operand)
                name = f"{step.name}/state {output}"
                step.writer.copy(step.builder, name, value, inputs[operand], outputs[output])

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

    def __init__(self, node: Node, layout: _Layout, step: Emission):
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
        value = _operand(self._node, operand)
        return (self._inputs[operand][0], ()) if has_run_time_size(value) else (NO_BUFFER, value.tensor.static_shape)

    def _scan(self, scan: _Scanned) -> None:
        kind, row = scan.row.tensor, self._row(scan.row)
        buffer, _ = self._buffer_or_shape(scan.operand)
        stride = kind.nbytes if buffer == NO_BUFFER else 0
        self.slices.append((row[0], self._inputs[scan.operand], stride, scan.backwards, buffer, kind.dtype.itemsize))
        self._of_body[scan.row] = row

    def _stack(self, stack: _Stacked, whole: Location) -> None:
        kind, row = stack.row.tensor, self._row(stack.row)
        item = kind.dtype.itemsize
        if has_fixed_size(self._node.outputs[stack.output]):
            self.slices.append((row[0], whole, kind.nbytes, stack.backwards, NO_BUFFER, item))
        else:
            shape = kind.static_shape if kind.is_static else None
            self.stacks.append((row[0], whole[0], shape, item, stack.backwards))
        self.rows.append(row)

    def _carry(self, state: _State, final: Location | None) -> None:
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


def _operand(node: Node, position: int) -> Value:
    value = node.inputs[position]
    assert value is not None, "what a loop carries, scans and captures is never absent"
    return value


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


# --- making the lowering --------------------------------------------------------------------------


def loop(site: Site) -> NativeLoop | None:
    """A Loop or a Scan whose body runs without Python, over slices along the first axis."""
    node = site.node
    if not is_control(node) or node.op.name == "If":
        return None
    if not all(has_fixed_size(v) or has_run_time_size(v) for v in (*node.operands, *node.outputs)):
        raise NotNative("only tensors of numbers are carried, scanned and captured")
    view = LoopView.of(node)
    _check_axes(view)
    if misfit := site.misfits.get((node, "body")):
        raise NotNative(misfit)
    lead, count = view.flag, view.state_count
    stacked = [i for i in range(count, len(node.outputs)) if site.context.used_outputs[i]]
    rows = [view.body.outputs[lead + i] for i in stacked]
    for i, row in zip(stacked, rows, strict=True):
        if has_fixed_size(node.outputs[i]) and not has_fixed_size(row):
            raise NotNative(f"{row.type} is stacked to {node.outputs[i].type}")
    block = _Block()
    states, unchanged = _states(view, rows, block)
    flags = [v for v in view.body.outputs[:lead] if v is not view.body.inputs[1] and v.tensor.constants != (1,)]
    body = view.body.replace(outputs=[*flags, *(s.after for s in states), *rows])
    positions = range(len(view.operands))
    constants, kept = site.context.constant_inputs, [*(p for p, _ in unchanged), *positions[view.at_captures]]
    lowered = site.lower(body, {p: constants[p] for p in kept if p in constants})
    offsets = (block.take(8), block.take(1), block.take(1) if flags else None) if view.is_loop else (None, None, None)
    arena = block.take(lowered.memory.layout.arena_bytes)
    operands = positions[view.at_scan_inputs]
    written = view.scan_output_places
    layout = _Layout(
        lowered,
        arena,
        _known_trips(node, count, operands),
        tuple(states),
        tuple(_Scanned(p, body.inputs[p], bool(s.backwards)) for p, s in zip(operands, view.scan_inputs, strict=True)),
        tuple(unchanged),
        tuple(_Stacked(i, row, bool(written[i - count][1])) for i, row in zip(stacked, rows, strict=True)),
        *offsets,
    )
    return NativeLoop(node, layout, block.size)


def _states(view: LoopView, rows: Sequence[Value], block: _Block) -> tuple[list[_State], list[tuple[int, int]]]:
    """The states that change, with their place in `block`, and (operand, output) of those that do not."""
    states: list[_State] = []
    unchanged: list[tuple[int, int]] = []
    free = [*rows]  # one state can be in a row
    for i, state in enumerate(view.states):
        before, after = state.before, state.after
        if before is after:
            unchanged.append((view.lead + i, i))
            continue
        if has_fixed_size(before) != has_fixed_size(state.final):
            raise NotNative(f"a state is {before.type} inside and {state.final.type} after")
        buffers: tuple[int, int] | int | None = None
        if after in free and has_fixed_size(before):
            buffers = rows.index(after)
            free.remove(after)
        elif has_fixed_size(before):
            buffers = block.take(before.tensor.nbytes), block.take(before.tensor.nbytes)
        states.append(_State(view.lead + i, before, i, after, buffers))
    return states, unchanged


class _Block:
    """A block of working memory that is being laid out."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, nbytes: int) -> int:
        offset = self.size
        self.size += aligned(nbytes)
        return offset


def _known_trips(node: Node, count: int, scanned: Sequence[int]) -> int:
    """How often the body runs at most, where that is known; else -1."""
    for position in scanned:
        length = _operand(node, position).tensor.known_shape[0]
        if isinstance(length, int):
            return length
    if scanned:
        return -1
    for output in node.outputs[count:]:
        if has_fixed_size(output):
            return output.tensor.static_shape[0]
    limit = next(iter(node.inputs), None)
    known = None if limit is None else limit.tensor.constants
    return -1 if known is None else max(int(known[0]), 0)


def _check_axes(view: LoopView) -> None:
    """Slices lie along the first axis, so that they are contiguous and follow each other."""
    for along in (*view.scan_inputs, *view.scan_outputs):
        shape = along.outer.tensor.shape
        if not shape or along.axis % len(shape):
            raise NotNative(f"it scans along axis {along.axis} of {along.outer.type}")
