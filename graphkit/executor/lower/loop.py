"""Lower Loop and Scan to a subgraph of a native program, or to kernels on device arrays.

In a native program, outputs with an unknown number of slices and states of run-time size are in buffers that grow.
Other states and the arena of the body are in a block of working memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from graphkit.errors import LimitReached
from graphkit.executor.devices.device import Device
from graphkit.executor.lower.arrays.body import ArrayBody, InstanceContext, SubgraphStep
from graphkit.executor.lower.arrays.loop import (
    PreparedLoop,
    RecordedLoop,
    check_stacks,
    has_fixed_operands,
    may_repeat,
    with_copied_slices,
)
from graphkit.executor.lower.arrays.swapped import SwapQueue
from graphkit.executor.lower.loop_layout import CarriedState, LoopLayout, Scanned, Stacked, layout_of, operand_of
from graphkit.executor.lower.lowering import ABSENT, ARENA, NO_BUFFER, Emission, Location, NotNative, Site
from graphkit.executor.lower.run_time_kernel import Prepared, RunTimeOperand, Shapes, run_time_operand
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.ir import limits
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType, Type
from graphkit.ops.control.loop_state import output_types
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.sweep import is_control

# A function that returns shapes; the location of each operand; the `RunTimeOperand` of each operand.
_ShapesIfEmpty: TypeAlias = tuple[Callable[[Shapes, Shapes], Prepared], list[Location], list[RunTimeOperand]]


class Loop(SubgraphStep):
    """A Loop or a Scan. native: whether a native program runs the iterations."""

    def __init__(self, layout: LoopLayout, *, native: bool):
        self.layout = layout
        self.scratch_bytes = layout.scratch_bytes
        self.subgraphs = {"body": layout.body}
        known = layout.known_trips
        self.trips = math.inf if known is None else known
        # Each iteration counts as a step besides its body: an empty body must not give infinity * 0.
        self.executed_steps = 1 if known == 0 else self.trips * (1 + layout.body.executed_steps)
        if native:
            self.unread = frozenset() if _has_data_dependent_rows(layout) else layout.unread
        elif may_repeat(layout):
            self.failure = _iteration_limit_error

    @property
    def host_reason(self) -> str:
        if self.layout.known_trips is not None:
            return ""
        return super().host_reason if may_repeat(self.layout) else "the size of its stacked outputs is data-dependent"

    def prepared(self, device: Device, context: InstanceContext, copies: SwapQueue | None = None) -> PreparedLoop:
        """See SubgraphStep. copies: needed for slices in host memory."""
        body = ArrayBody(device, self.layout.body, context)
        if not may_repeat(self.layout):
            return PreparedLoop(device, self.layout, body, copies)
        fault = context.word()
        if body.can_be_recorded and context.conditions:
            return RecordedLoop(device, self.layout, body, context, fault)
        return PreparedLoop(device, self.layout, body)

    def emit(self, step: Emission) -> None:
        layout, inputs, outputs = self.layout, step.inputs, step.outputs
        memory = _NativeMemory(layout, step)
        flag = memory.own(layout.flag_after)
        limit, condition = map(_optional, layout.bounds(inputs, ABSENT))
        builder = step.builder.loop(
            step.name,
            trips=layout.trips,
            trip_count=limit,
            condition=condition,
            iteration=memory.own(layout.iteration),
            condition_before=memory.own(layout.flag_before),
            condition_after=flag,
            states=memory.states,
            dynamic_states=memory.dynamic_states,
            slices=memory.slices,
            stacks=memory.stacks,
            empty=self._shapes_if_empty(inputs) if _has_data_dependent_rows(layout) else None,
        )
        written = layout.written(flag, memory.rows, lambda state: memory.after[state.before])
        arena = step.scratch[1] + layout.arena
        step.writer.graph(builder, layout.body, arena, memory.entry(), written, prefix=f"{step.name}/body/")
        for operand, output in layout.unchanged:
            if outputs[output] != ABSENT:
                value = operand_of(layout.node, operand)
                name = f"{step.name}/state {output}"
                step.writer.copy(step.builder, name, value, inputs[operand], outputs[output])

    def _shapes_if_empty(self, inputs: Sequence[Location]) -> _ShapesIfEmpty:
        node = self.layout.node
        operands = [run_time_operand(v, at) for v, at in zip(node.inputs, inputs, strict=True)]
        outputs = [s.output for s in self.layout.dynamic_stacks]
        return partial(_empty_rows, node, outputs), list(inputs), operands


def _iteration_limit_error(node: Node, word: int) -> LimitReached:
    return limits.too_many_iterations(node.describe())


def _has_data_dependent_rows(layout: LoopLayout) -> bool:
    return any(has_run_time_size(s.row) for s in layout.stacked)


class _NativeMemory:
    """The locations of a loop's values in each iteration, as arguments for the native builder.

    `states`, `dynamic_states`, `slices` and `stacks` are arguments of the builder's `loop`. `rows`: where the body
    writes stacked slices. `after`: where the body writes each state, by the input that reads the state.
    """

    def __init__(self, layout: LoopLayout, step: Emission):
        self._node, self._layout = layout.node, layout
        self._writer = step.writer
        self._inputs = step.inputs
        self._base = step.scratch[1]
        self._read: dict[Value, Location] = {}
        self.slices: list[tuple[Any, ...]] = []
        self.stacks: list[tuple[Any, ...]] = []
        self.states: list[tuple[Any, ...]] = []
        self.dynamic_states: list[tuple[Any, ...]] = []
        self.after: dict[Value, Location] = {}
        self.rows: list[Location] = []
        for scan in layout.scanned:
            self._scan(scan)
        for stack in layout.stacked:
            self._stack(stack, step.outputs[stack.output])
        for state in layout.states:
            self._carry(state, _optional(step.outputs[state.output]))

    def own(self, offset: int | None) -> Location | None:
        return None if offset is None else (ARENA, self._base + offset)

    def entry(self) -> list[Location]:
        layout, read = self._layout, self._read
        head = [at for at in (self.own(layout.iteration), self.own(layout.flag_before)) if at is not None]
        return layout.entry(head, self._inputs, lambda state: read[state.before], lambda scan: read[scan.row])

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
        self._read[scan.row] = row

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
        self._read[state.before] = before
        self.after[state.before] = after


def _optional(location: Location) -> Location | None:
    return None if location == ABSENT else location


def _empty_rows(node: Node, outputs: Sequence[int], shapes: Shapes, _: Shapes) -> Prepared:
    """Return the shapes of the slices of these outputs, with 0 for unknown sizes.

    outputs: positions of stacked outputs. shapes: of the node's operands; None for a static shape.
    """
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


def loop(site: Site) -> Loop | None:
    """Return the lowering of a Loop, or of a Scan along the first axis; None for another node.

    Raises NotNative if the iterations must be interpreted. On devices, sizes may be unknown only for captured values,
    and for outputs with an unknown number of slices.
    """
    if not is_control(site.node) or site.node.op.name == "If":
        return None
    if site.settings.native:
        return Loop(layout_of(site), native=True)
    if not has_fixed_operands(site.node):
        raise NotNative("data-dependent shapes")
    layout = layout_of(site)
    check_stacks(site, layout)
    return Loop(with_copied_slices(layout, site.hosted), native=False)
