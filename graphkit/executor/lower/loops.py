"""Loop and Scan as regions of the native program, with numbers of iterations that are known before or only in a run.

What a loop stacks without knowing how much there will be grows in a slot; so does a state whose shape changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphkit.errors import TypeMismatch
from graphkit.executor.devices.kernels import VersionedArray
from graphkit.executor.lower.dynamic_shape import Prepared, Shapes, late_operand
from graphkit.executor.lower.emit import ABSENT, ARENA, NO_SLOT, Emitter, Where
from graphkit.executor.lower.region import Region, Settings
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.executor.memory.planner import aligned
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType, Type
from graphkit.ops.control.loop_state import output_types, stable_types, without_value
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.bind import rebind
from graphkit.passes.core.sweep import run_passes
from graphkit.passes.simplify.cleanup import CLEANUP


class NotNative(Exception):
    """A subgraph does not run without Python; the message says why."""


@dataclass(frozen=True)
class _State:
    """A value that is carried.

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


@dataclass
class LoopStep:
    """A Loop or a Scan. Operands and outputs are positions of the node's; offsets are in the block.

    `states` are those that change; the others, `unchanged`, go to the body like captures. The body's outputs are the
    condition of a Loop that has one to test, `states`, and the stacked values that somebody reads.
    """

    node: Node
    body: Region
    scratch_bytes: int
    arena: int  # offset of the body's arena
    trips: int  # -1: not known
    states: tuple[_State, ...]
    scanned: tuple[_Scanned, ...]
    unchanged: tuple[tuple[int, int], ...]  # (operand, output)
    stacked: tuple[_Stacked, ...]
    iteration: int | None = None
    flag_before: int | None = None
    flag_after: int | None = None  # None as well when it stays true

    @property
    def regions(self) -> Mapping[str, Region]:
        return {"body": self.body}

    def emit(
        self, emitter: Emitter, builder: Any, name: str, inputs: Sequence[Where], outputs: Sequence[Where], base: int
    ) -> None:
        memory = _LoopMemory(self, emitter, inputs, outputs, base)
        flag = memory.own(self.flag_after)
        is_loop = self.iteration is not None
        limit, condition = (*inputs, ABSENT, ABSENT)[:2]
        inner = builder.loop(
            name,
            trips=self.trips,
            trip_count=_optional(limit) if is_loop else None,
            condition=_optional(condition) if is_loop else None,
            iteration=memory.own(self.iteration),
            condition_before=memory.own(self.flag_before),
            condition_after=flag,
            carried=memory.carried,
            varying=memory.varying,
            slices=memory.slices,
            stacks=memory.stacks,
            empty=self._empty(inputs) if any(has_run_time_size(s.row) for s in self.stacked) else None,
        )
        written = [*([] if flag is None else [flag]), *memory.written, *memory.rows]
        emitter.region(inner, self.body, base + self.arena, memory.entry(), written, prefix=f"{name}/body/")
        for operand, output in self.unchanged:
            if outputs[output] != ABSENT:
                value = _operand(self.node, operand)
                emitter.copy(builder, f"{name}/state {output}", value, inputs[operand], outputs[output])

    def _empty(self, inputs: Sequence[Where]) -> Any:
        """What tells the shapes of rows when there are none."""
        operands = [late_operand(v, w) for v, w in zip(self.node.inputs, inputs, strict=True)]
        outputs = [s.output for s in self.stacked if not has_fixed_size(self.node.outputs[s.output])]
        return partial(_empty_rows, self.node, outputs), list(inputs), operands


class _LoopMemory:
    """Where a loop's values lie, and what the native program has to do with them in each iteration.

    `carried`, `varying`, `slices` and `stacks` are what Region.loop takes. The body reads `entry()`, writes the states
    to `written` and what is stacked to `rows`.
    """

    def __init__(self, step: LoopStep, emitter: Emitter, inputs: Sequence[Where], outputs: Sequence[Where], base: int):
        self._step = step
        self._emitter = emitter
        self._inputs = inputs
        self._base = base
        self._of_body: dict[Value, Where] = {}
        self.slices: list[tuple[Any, ...]] = []
        self.stacks: list[tuple[Any, ...]] = []
        self.carried: list[tuple[Any, ...]] = []
        self.varying: list[tuple[Any, ...]] = []
        self.written: list[Where] = []
        self.rows: list[Where] = []
        for scan in step.scanned:
            self._scan(scan)
        for stack in step.stacked:
            self._stack(stack, outputs[stack.output])
        for state in step.states:
            self._carry(state, _optional(outputs[state.output]))

    def own(self, offset: int | None) -> Where | None:
        """A place in the step's block."""
        return None if offset is None else (ARENA, self._base + offset)

    def entry(self) -> list[Where]:
        """The body's inputs; captures lie where the operands do."""
        step = self._step
        head = [w for w in (self.own(step.iteration), self.own(step.flag_before)) if w is not None]
        rest = enumerate(step.body.graph.inputs[len(head) :], start=len(head))
        return [*head, *(self._of_body[v] if v in self._of_body else self._inputs[i] for i, v in rest)]

    def _row(self, value: Value) -> Where:
        return self._emitter.new_slot() if has_run_time_size(value) else (self._emitter.new_external(), 0)

    def _slot_or_shape(self, operand: int) -> tuple[int, tuple[int, ...]]:
        value = _operand(self._step.node, operand)
        return (self._inputs[operand][0], ()) if has_run_time_size(value) else (NO_SLOT, value.tensor.static_shape)

    def _scan(self, scan: _Scanned) -> None:
        kind, row = scan.row.tensor, self._row(scan.row)
        slot, _ = self._slot_or_shape(scan.operand)
        stride = kind.nbytes if slot == NO_SLOT else 0
        self.slices.append((row[0], self._inputs[scan.operand], stride, scan.backwards, slot, kind.dtype.itemsize))
        self._of_body[scan.row] = row

    def _stack(self, stack: _Stacked, whole: Where) -> None:
        kind, row = stack.row.tensor, self._row(stack.row)
        item = kind.dtype.itemsize
        if has_fixed_size(self._step.node.outputs[stack.output]):
            self.slices.append((row[0], whole, kind.nbytes, stack.backwards, NO_SLOT, item))
        else:
            shape = kind.static_shape if kind.is_static else None
            self.stacks.append((row[0], whole[0], shape, item, stack.backwards))
        self.rows.append(row)

    def _carry(self, state: _State, final: Where | None) -> None:
        kind, initial = state.before.tensor, self._inputs[state.operand]
        before = self._row(state.before)
        if state.buffers is None:
            after = self._emitter.new_slot()
            slot, shape = self._slot_or_shape(state.operand)
            target = NO_SLOT if final is None else final[0]
            self.varying.append((initial, slot, shape, before[0], after[0], target, kind.dtype.itemsize))
        elif isinstance(state.buffers, int):
            after = self.rows[state.buffers]
            backwards = self._step.stacked[state.buffers].backwards
            self.carried.append((initial, before[0], after[0], backwards, final, kind.nbytes))
        else:
            after = (self._emitter.new_external(), 0)
            buffers = tuple(self.own(offset) for offset in state.buffers)
            self.carried.append((initial, before[0], after[0], buffers, final, kind.nbytes))
        self._of_body[state.before] = before
        self.written.append(after)


def _operand(node: Node, position: int) -> Value:
    value = node.inputs[position]
    assert value is not None, "what a loop carries, scans and captures is never absent"
    return value


def _optional(where: Where) -> Where | None:
    return None if where == ABSENT else where


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
    rows = [found[i] for i in outputs]
    sizes = [tuple(d if isinstance(d, int) else 0 for d in row.shape or ()) for row in rows]  # type: ignore[union-attr]
    return Prepared(None, sizes, [], [], None)


# --- making steps ---------------------------------------------------------------------------------


def loop_step(
    node: Node, constants: Mapping[int, VersionedArray], settings: Settings, used: Sequence[bool]
) -> LoopStep:
    """The step of a Loop or a Scan. Raises NotNative."""
    view = LoopView.of(node)
    is_loop, first, lead, count = view.is_loop, view.lead, view.flag, view.state_count
    if not all(has_fixed_size(v) or has_run_time_size(v) for v in (*node.operands, *node.outputs)):
        raise NotNative("only tensors of numbers are carried, scanned and captured")
    if not is_loop:
        _check_axes(view)
    body = _typed_body(view)
    stacked = [i for i in range(count, len(node.outputs)) if used[i]]
    body = body.replace(outputs=[*body.outputs[: lead + count], *(body.outputs[lead + i] for i in stacked)])
    if settings.optimize:
        body = run_passes(body, CLEANUP)

    block = _Block()
    states: list[_State] = []
    unchanged: list[tuple[int, int]] = []
    rows = body.outputs[lead + count :]
    free = [*rows]  # one state can be in a row
    pairs = zip(body.inputs[first : first + count], body.outputs[lead : lead + count], strict=True)
    for i, (before, after) in enumerate(pairs):
        if before is after:
            unchanged.append((first + i, i))
            continue
        if has_fixed_size(before) != has_fixed_size(node.outputs[i]):
            raise NotNative(f"a state is {before.type} inside and {node.outputs[i].type} after")
        buffers: tuple[int, int] | int | None = None
        if after in free and has_fixed_size(before):
            buffers = rows.index(after)
            free.remove(after)
        elif has_fixed_size(before):
            buffers = block.take(before.tensor.nbytes), block.take(before.tensor.nbytes)
        states.append(_State(first + i, before, i, after, buffers))
    for i, row in zip(stacked, rows, strict=True):
        if has_fixed_size(node.outputs[i]) and not has_fixed_size(row):
            raise NotNative(f"{row.type} is stacked to {node.outputs[i].type}")
    flags = [v for v in body.outputs[:lead] if v is not body.inputs[1] and v.tensor.constants != (1,)]
    body = body.replace(outputs=[*flags, *(s.after for s in states), *rows])
    positions = range(len(view.operands))
    kept = [*(p for p, _ in unchanged), *positions[view.at_captures]]
    region = inner_region(body, {p: constants[p] for p in kept if p in constants}, settings)
    offsets = (block.take(8), block.take(1), block.take(1) if flags else None) if is_loop else (None, None, None)
    arena = block.take(region.layout.arena_bytes)
    operands = positions[view.at_scan_inputs]
    written = view.scan_output_places
    return LoopStep(
        node,
        region,
        block.size,
        arena,
        _known_trips(node, count, operands),
        tuple(states),
        tuple(_Scanned(p, body.inputs[p], bool(s.backwards)) for p, s in zip(operands, view.scan_inputs, strict=True)),
        tuple(unchanged),
        tuple(_Stacked(i, row, bool(written[i - count][1])) for i, row in zip(stacked, rows, strict=True)),
        *offsets,
    )


class _Block:
    """A block of working memory that is being laid out."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, nbytes: int) -> int:
        offset = self.size
        self.size += aligned(nbytes)
        return offset


def _typed_body(view: LoopView) -> Graph:
    """The body on the types that hold in every iteration."""
    dtypes = (DType.INT64, DType.BOOL)
    entry: list[Type] = [TensorType(dtype, v.shape) for dtype, v in zip(dtypes, view.entry, strict=False)]
    initial = [without_value(s.initial.type) for s in view.states]
    rest: list[Type] = [TensorType(s.outer.dtype, s.outer.tensor.known_shape[1:]) for s in view.scan_inputs]
    rest += [without_value(c.outer.type) for c in view.captures]

    def typed(states: Sequence[Type]) -> Graph:
        return rebind(view.body, dict(zip(view.body.inputs, [*entry, *states, *rest], strict=True)))

    try:
        body = typed(initial)
        if any(without_value(v.type) != t for v, t in zip(body.outputs[view.at_after], initial, strict=True)):
            body = typed(stable_types(initial, lambda s: output_types(view.body, [*entry, *s, *rest])[view.at_after]))
    except TypeMismatch as error:  # the reference says what does not fit
        raise NotNative(str(error)) from error
    return body


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


def inner_region(graph: Graph, fixed: Mapping[int, VersionedArray], settings: Settings) -> Region:
    """The region of a subgraph. `fixed` are arrays by the position of the input. Raises NotNative."""
    if graph.updates or not all(has_fixed_size(v) or has_run_time_size(v) for v in (*graph.inputs, *graph.outputs)):
        raise NotNative("only tensors of numbers pass into and out of a subgraph")
    region = Region(graph, {graph.inputs[i]: array for i, array in fixed.items()}, settings, inner=True)
    for node, chosen in zip(region.placement.steps, region.chosen, strict=True):
        if chosen.in_python:
            why = f": {chosen.reason}" if chosen.reason else ""
            raise NotNative(f"no native kernel for {graph.node_name(node)} ({node.op.name}{why})")
    return region


def _check_axes(view: LoopView) -> None:
    """Slices have to be contiguous and follow each other."""
    for along in (*view.scan_inputs, *view.scan_outputs):
        shape = along.outer.tensor.shape
        if not shape or any(size != 1 for size in shape[: along.axis % len(shape)]):
            raise NotNative(f"it scans along axis {along.axis} of {along.outer.type}")
