"""Loop and Scan on devices with arrays of their own, by kernels on slices of what lies there.

Where it is known how often the body runs, all iterations are steps of the program, and are recorded with the others.
Else the host looks at the condition after each one, and what is stacked grows; where nothing is, recordings have the
body once, if the device takes it, and repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from graphkit.errors import LimitReached
from graphkit.executor.devices.bound_steps import BoundStep, Conditional, Recorded, Repetition
from graphkit.executor.devices.device import Copied, Device
from graphkit.executor.lower.arrays.body import ArrayBody, ArrayMaker, Common, SubgraphKernel, SubgraphStep, laid
from graphkit.executor.lower.arrays.swapped import SwapQueue
from graphkit.executor.lower.loop_layout import Block, CarriedState, LoopLayout, layout_of
from graphkit.executor.lower.lowering import NotNative, Site
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.ir import limits
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.sweep import is_control

# Kernels access memory in units of so many bytes: slices that do not begin at one are copied.
UNIT = 16

# Steps that a recording may have of one loop: what its nodes take is the driver's memory.
MOST_RECORDED = 1 << 16


class ArrayLoop(SubgraphStep):
    """A Loop or a Scan. slices: offsets of the memory for slices that are copied, by the value in the body. grown: the
    outputs of which a run tells how much is stacked. hosted: the slices that come from the host's memory, or go there,
    beside the iterations.
    """

    def __init__(
        self,
        node: Node,
        layout: LoopLayout,
        scratch_bytes: int,
        slices: Mapping[Value, Sequence[int]],
        hosted: Set[Value],
    ):
        super().__init__()
        self.node, self.layout, self.slices, self.hosted = node, layout, slices, hosted
        self.grown = tuple(s for s in layout.stacked if not has_fixed_size(node.outputs[s.output]))
        self.scratch_bytes = scratch_bytes
        self.subgraphs = {"body": layout.body}
        self.failure = _too_many if self.may_repeat else None

    def prepared(self, device: Device, common: Common, copies: SwapQueue | None = None) -> PreparedLoop:
        """copies: where there are hosted slices."""
        body = ArrayBody(device, self.layout.body, common)
        if not self.may_repeat:
            return PreparedLoop(device, self, body, copies)
        fault = common.word()
        if body.can_be_recorded and common.conditions:
            return RecordedLoop(device, self, body, common, fault)
        return PreparedLoop(device, self, body)

    @property
    def looks_because(self) -> str:
        """See SubgraphStep."""
        if self.trips is not None:
            return ""
        return super().looks_because if self.may_repeat else "the size of its stacked outputs is data-dependent"

    @property
    def may_repeat(self) -> bool:
        """Whether a recording could have the body once: a run tells how often it runs, and each iteration reads and
        writes the same memory.
        """
        layout = self.layout
        return layout.iteration is not None and self.trips is None and not (layout.scanned or layout.stacked)

    @property
    def trips(self) -> int | None:
        """How often the body runs, where nothing but a run could tell otherwise; None where it may be fewer times."""
        layout = self.layout
        told = [v for v in self.node.inputs[:2] if v is not None] if layout.iteration is not None else []
        known = all(v.tensor.constants is not None for v in told) and layout.flag_after is None and layout.trips >= 0
        if not known:
            return None
        going = len(told) < 2 or bool((told[1].tensor.constants or (1,))[0])
        return layout.trips if going else 0


class PreparedLoop(ArrayMaker, SubgraphKernel):
    """An ArrayLoop on a device."""

    def __init__(self, device: Device, loop: ArrayLoop, body: ArrayBody, copies: SwapQueue | None = None):
        self._device, self._loop, self._body = device, loop, body
        self._rows = None if copies is None else SwappedRows(copies, loop.hosted)
        self._layout, self._trips = loop.layout, loop.trips
        self._copied = Copied(device)
        # A hosted slice is waited for and copied.
        self.launches = (self._body.launches + 2 * len(loop.hosted)) * (self._trips or 1)
        known = self._trips is not None and not loop.grown and self.launches <= MOST_RECORDED
        self.can_be_recorded = known and self._body.can_be_recorded
        self.looks = self._trips is None or self._body.looks
        self.repeats = self.can_be_recorded and self._body.repeats
        head = loop.layout.body.graph.inputs[:2] if loop.layout.iteration is not None else ()
        self._head = [v.tensor for v in head]
        self._counts = bool(head) and self._body.reads(head[0])
        self._true = device.copy_in(np.ones(UNIT, np.bool_)) if head else None
        self._numbers = None
        if self._counts and self._trips is not None:
            # Each in a unit of its own.
            self._numbers = device.copy_in(np.arange(self._trips).repeat(UNIT // 8))

    def made(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> dict[int, Any]:
        """See ArrayMaker."""
        stacks = {s.output: _Stack(self._device, s.row.tensor) for s in self._loop.grown}
        targets = [stacks.get(position, output) for position, output in enumerate(outputs)]
        for step in self.steps(inputs, targets, scratch):
            step.run()
        return {position: stack.whole() for position, stack in stacks.items()}

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        """See SubgraphKernel."""
        memory = _Memory(self._device, self._loop, inputs, outputs, scratch)
        arena = memory.bytes_at(self._layout.arena, self._layout.body.memory.layout.arena_bytes)
        most = self._limit(inputs)
        trip = 0
        while most is None or trip < most:
            limits.check_iterations(trip)
            limits.check_time()
            yield from (self._copied.step(*pair) for pair in memory.scanned(trip))
            if self._rows is not None:
                yield from self._rows.before(trip, memory)
            yield from self._body.steps(arena, [*self._entry(memory, trip), *memory.entry(trip)], memory.written(trip))
            yield from (self._copied.step(*pair) for pair in memory.stacked(trip))
            if self._rows is not None:
                yield from self._rows.behind(trip, memory)
            trip += 1
            if (flag := memory.flag) is not None and not self._device.copy_out(flag, None).any():
                break
        if self._rows is not None:
            yield self._rows.joined
        yield from (self._copied.step(*pair) for pair in memory.finals(trip))

    def _limit(self, inputs: Sequence[Any]) -> int | None:
        """How many iterations there are at most; None: any number."""
        if self._trips is not None:
            return self._trips
        if self._layout.iteration is None:
            return self._layout.trips
        limit, going = (*inputs, None, None)[:2]
        if going is not None and not self._device.copy_out(going, None).any():
            return 0
        return None if limit is None else int(self._device.copy_out(limit, None).reshape(()))

    def _entry(self, memory: _Memory, trip: int) -> list[Any]:
        """What a Loop's body is told."""
        if not self._head:
            return []
        number, flag = self._head
        if self._numbers is not None:
            told = laid(self._device, self._numbers, UNIT * trip, number)
        else:
            assert self._layout.iteration is not None, "it is a Loop"
            told = memory.view(self._layout.iteration, number)
            if self._counts:
                self._device.copy_in(np.full(number.static_shape, trip, np.int64), told)
        return [told, laid(self._device, self._true, 0, flag)]


class RecordedLoop(PreparedLoop, Conditional):
    """A loop whose iterations a run tells, with its body in recordings, once."""

    def __init__(self, device: Device, loop: ArrayLoop, body: ArrayBody, common: Common, fault: Any):
        super().__init__(device, loop, body)
        self._common, self._fault = common, fault
        self.can_be_recorded = self.repeats = True
        # Two launches that set the condition, and a node; states go in, back to the beginning, and out.
        self.launches = 3 + body.launches + 3 * len(loop.layout.states)

    def recorded(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[Recorded]:
        """See Conditional. Every iteration is the second one: it reads states where the first one writes them."""
        layout, memory = self._layout, _Memory(self._device, self._loop, inputs, outputs, scratch)
        number = layout.iteration
        assert number is not None, "it is a Loop"
        arena = memory.bytes_at(layout.arena, layout.body.memory.layout.arena_bytes)
        told = [memory.view(number, self._head[0]), laid(self._device, self._true, 0, self._head[1])]
        body = [*self._body.steps(arena, [*told, *memory.entry(1)], memory.written(1))]
        behind = [self._copied.step(*pair) for pair in memory.carried()]
        yield from (self._copied.step(*pair) for pair in memory.first())
        limit, going = (*inputs, None, None)[:2]
        common, trips = self._common, memory.view(number, TensorType("int64", ()))
        yield Repetition([*body, *behind], trips, going, limit, memory.flag, common.most, self._fault, common.faults)
        yield from (self._copied.step(*pair) for pair in memory.finals(1))


def _too_many(node: Node, word: int) -> LimitReached:
    """Of a loop that has set its fault."""
    return limits.too_many_iterations()


class _Stack:
    """Rows of one type, as many as there come."""

    def __init__(self, device: Device, kind: TensorType):
        self._device, self._kind = device, kind
        self._room, self._rows = 1, 0
        self._memory = device.alloc(kind.nbytes)

    def row(self, number: int) -> Any:
        """The memory of a row: one that is there, or the next one."""
        if number == self._room:
            self._room *= 2
            memory = self._device.alloc(self._room * self._kind.nbytes)
            self._device.copy_across(self.whole(), memory)
            self._memory = memory
        self._rows = max(self._rows, number + 1)
        return laid(self._device, self._memory, number * self._kind.nbytes, self._kind)

    def whole(self) -> Any:
        return laid(self._device, self._memory, 0, TensorType(self._kind.dtype, (self._rows, *self._kind.static_shape)))


class _Memory:
    """Where a loop's values lie in each iteration."""

    def __init__(self, device: Device, loop: ArrayLoop, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any):
        self._device, self._loop, self._layout = device, loop, loop.layout
        self._inputs, self._outputs, self._scratch = inputs, outputs, scratch
        self._states = {s.before: s for s in loop.layout.states}
        self._scans = {s.row: s for s in loop.layout.scanned}
        flag, results = loop.layout.flag_after, loop.layout.body.graph.outputs
        self.flag = None if flag is None else self.view(flag, results[0].tensor)

    def bytes_at(self, offset: int, size: int) -> Any:
        return self._device.view(self._scratch, offset, (size,), np.dtype(np.uint8))

    def view(self, offset: int, kind: TensorType) -> Any:
        return laid(self._device, self._scratch, offset, kind)

    def entry(self, trip: int) -> list[Any]:
        """The inputs of the body behind what a Loop's is told: states, slices, captures."""
        graph, lead = self._layout.body.graph, 0 if self._layout.iteration is None else 2
        return [self._given(v, position, trip) for position, v in enumerate(graph.inputs[lead:], lead)]

    def _given(self, value: Value, position: int, trip: int) -> Any:
        if value in self._states:
            return self._before(self._states[value], trip)
        if value in self._scans:
            copied = self._loop.slices.get(value)
            if copied is None:
                return self._slice(value, trip)
            return self.view(copied[trip % 2 if value in self._loop.hosted else 0], value.tensor)
        given = self._inputs[position]
        return laid(self._device, given, 0, value.tensor) if has_fixed_size(value) else given

    def _slice(self, row: Value, trip: int) -> Any:
        """Of what is scanned."""
        scan = self._scans[row]
        return self._row(self._inputs[scan.operand], row.tensor, trip, scan.backwards)

    def _row(self, whole: Any, kind: TensorType, trip: int, backwards: bool) -> Any:
        if isinstance(whole, _Stack):
            return whole.row(trip)
        number = whole.shape[0] - 1 - trip if backwards else trip
        if type(whole) is np.ndarray:
            return whole[number]
        return laid(self._device, whole, number * kind.nbytes, kind)

    def _before(self, state: CarriedState, trip: int) -> Any:
        source = self._inputs[state.operand] if trip == 0 else self._after(state, trip - 1)
        return laid(self._device, source, 0, state.before.tensor)

    def _after(self, state: CarriedState, trip: int) -> Any:
        if isinstance(state.buffers, int):
            return self._written_row(state.buffers, trip)
        assert state.buffers is not None, "its shape is known"
        return self.view(state.buffers[trip % 2], state.after.tensor)

    def _written_row(self, number: int, trip: int) -> Any:
        stack = self._layout.stacked[number]
        copied = self._loop.slices.get(stack.row)
        if copied is not None:
            return self.view(copied[trip % 2], stack.row.tensor)
        return self._row(self._outputs[stack.output], stack.row.tensor, trip, stack.backwards)

    def written(self, trip: int) -> list[Any]:
        """Where the body writes the condition, the states, and the slices that are stacked."""
        rows = [self._written_row(number, trip) for number in range(len(self._layout.stacked))]
        states = [rows[s.buffers] if isinstance(s.buffers, int) else self._after(s, trip) for s in self._layout.states]
        return [*([] if self.flag is None else [self.flag]), *states, *rows]

    def scanned(self, trip: int) -> Iterator[tuple[Any, Any]]:
        """Slices that are copied before an iteration, and where to."""
        for row in self._scans:
            if row not in self._loop.hosted and (copied := self._loop.slices.get(row)) is not None:
                yield self._slice(row, trip), self.view(copied[0], row.tensor)

    def stacked(self, trip: int) -> Iterator[tuple[Any, Any]]:
        """Slices that are copied after an iteration, and where to."""
        for number, stack in enumerate(self._layout.stacked):
            if stack.row in self._loop.slices and stack.row not in self._loop.hosted:
                target = self._row(self._outputs[stack.output], stack.row.tensor, trip, stack.backwards)
                yield self._written_row(number, trip), target

    def from_host(self, trip: int) -> Iterator[tuple[Value, Any, Any]]:
        """Of an iteration, the slices that come from the host's memory: which, where from, and where to."""
        for scan in self._layout.scanned:
            if scan.row in self._loop.hosted and trip < self._inputs[scan.operand].shape[0]:
                yield scan.row, self._slice(scan.row, trip), self._given(scan.row, scan.operand, trip)

    def to_host(self, trip: int) -> Iterator[tuple[Value, Any, Any]]:
        """The same of those that go there."""
        for number, stack in enumerate(self._layout.stacked):
            if stack.row in self._loop.hosted:
                target = self._row(self._outputs[stack.output], stack.row.tensor, trip, stack.backwards)
                yield stack.row, self._written_row(number, trip), target

    def first(self) -> Iterator[tuple[Any, Any]]:
        """The states that a loop begins with, and where the second iteration reads them."""
        for state in self._layout.states:
            yield self._inputs[state.operand], self._after(state, 0)

    def carried(self) -> Iterator[tuple[Any, Any]]:
        """The states behind the second iteration, and where it reads them."""
        for state in self._layout.states:
            yield self._after(state, 1), self._after(state, 0)

    def finals(self, trips: int) -> Iterator[tuple[Any, Any]]:
        """The states after all iterations, and where the node returns them."""
        for operand, output in self._layout.unchanged:
            if self._outputs[output] is not None:
                yield self._inputs[operand], self._outputs[output]
        for state in self._layout.states:
            if self._outputs[state.output] is not None:
                yield self._before(state, trips), self._outputs[state.output]


def array_loop(site: Site) -> ArrayLoop | None:
    """A Loop or a Scan over slices along the first axis, all of whose sizes are known but how much is stacked, and
    those of what it captures.
    """
    node = site.node
    if not is_control(node) or node.op.name == "If":
        return None
    view = LoopView.of(node)
    before = view.operands[: view.at_captures.start]
    if not all(v is None or has_fixed_size(v) for v in (*before, *node.outputs[: view.state_count])):
        raise NotNative("data-dependent shapes")
    block = Block()
    layout = layout_of(site, block)
    if any(s.buffers is None for s in layout.states):
        raise NotNative("a state's size changes")
    if not all(has_fixed_size(s.row) for s in layout.stacked):
        raise NotNative("slices have data-dependent shapes")
    if any(s.backwards and not has_fixed_size(node.outputs[s.output]) for s in layout.stacked):
        raise NotNative("the size of an output that is stacked backwards is data-dependent")
    if site.inner and not all(has_fixed_size(node.outputs[s.output]) for s in layout.stacked):
        raise NotNative("the size of an output that is stacked inside a loop is data-dependent")
    if layout.flag_after is not None and any(has_fixed_size(node.outputs[s.output]) for s in layout.stacked):
        raise NotNative("a stacked output has a known size, but the condition may end the loop earlier")
    slices: dict[Value, Sequence[int]] = {}
    hosted = {s.row for s in layout.scanned if node.inputs[s.operand] in site.hosted}
    hosted |= {s.row for s in layout.stacked if node.outputs[s.output] in site.hosted}
    for row in (*(s.row for s in layout.scanned), *(s.row for s in layout.stacked)):
        if (row in hosted or row.tensor.nbytes % UNIT) and row not in slices:
            # Two, of which a state may be in the one while the next is written to the other.
            slices[row] = block.take(row.tensor.nbytes), block.take(row.tensor.nbytes)
    return ArrayLoop(node, layout, block.size, slices, hosted)


class SwappedRows:
    """Slices that come from the host's memory, or go there, beside the iterations of a loop: each has memory for two,
    which take turns.
    """

    def __init__(self, copies: SwapQueue, hosted: Set[Value]):
        self._copies, self._hosted = copies, hosted

    def before(self, trip: int, memory: _Memory) -> Iterator[BoundStep]:
        """What comes before an iteration: its slices are there, the next ones are on their way, and the memory that it
        writes has been copied.
        """
        for row, source, target in memory.from_host(trip) if trip == 0 else ():
            yield self._copies.begins((row, 0), source, target, to_host=False)
        yield self._copies.awaits([(row, trip % 2) for row, _, _ in (*memory.from_host(trip), *memory.to_host(trip))])
        for row, source, target in memory.from_host(trip + 1):
            yield self._copies.begins((row, (trip + 1) % 2), source, target, to_host=False)

    def behind(self, trip: int, memory: _Memory) -> Iterator[BoundStep]:
        """What comes behind it."""
        for row, source, target in memory.to_host(trip):
            yield self._copies.begins((row, trip % 2), source, target, to_host=True)

    @property
    def joined(self) -> BoundStep:
        """What comes behind all iterations: others may have their memory."""
        return self._copies.awaits([(row, turn) for row in self._hosted for turn in range(2)])
