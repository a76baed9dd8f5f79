"""The iterations of Loop and Scan on the arrays of a device.

If the number of iterations is known, all iterations are recorded, up to MOST_RECORDED steps. If it is unknown, the host
reads the condition after each iteration, and stacked outputs grow. Without scanned operands and stacked outputs, some
devices can instead record the body once, and repeat it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.errors import LimitReached
from graphkit.executor.devices.bound_steps import BoundStep, Conditional, Recorded, Repetition
from graphkit.executor.devices.device import Copied, Device
from graphkit.executor.lower.arrays.body import ArrayBody, ArrayMaker, InstanceContext, SubgraphKernel, array_at
from graphkit.executor.lower.arrays.swapped import SwapQueue
from graphkit.executor.lower.loop_layout import Block, CarriedState, LoopLayout, Scanned, Stacked
from graphkit.executor.lower.lowering import NotNative, Site
from graphkit.executor.memory.placement import has_fixed_size
from graphkit.ir import limits
from graphkit.ir.graph import Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.control.views import LoopView
from graphkit.ops.evaluate import failure_of

# Alignment in bytes that kernels need. Slices at other offsets are copied.
UNIT = 16

# The largest number of steps of one loop in a recording: the driver needs memory for each.
MOST_RECORDED = 1 << 16


def has_fixed_operands(node: Node) -> bool:
    view = LoopView.of(node)
    values = (*view.operands[: view.at_captures.start], *node.outputs[: view.state_count])
    return all(v is None or has_fixed_size(v) for v in values)


def check_stacks(site: Site, layout: LoopLayout) -> None:
    """Raise NotNative for sizes of states or stacked outputs that device arrays do not support."""
    if any(s.buffers is None for s in layout.states):
        raise NotNative("a state's size changes")
    if not all(has_fixed_size(s.row) for s in layout.stacked):
        raise NotNative("slices have data-dependent shapes")
    if any(s.backwards for s in layout.dynamic_stacks):
        raise NotNative("the size of an output that is stacked backwards is data-dependent")
    if site.inner and layout.dynamic_stacks:
        raise NotNative("the size of an output that is stacked inside a loop is data-dependent")
    if layout.flag_after is not None and len(layout.dynamic_stacks) < len(layout.stacked):
        raise NotNative("a stacked output has a known size, but the condition may end the loop earlier")


def with_copied_slices(layout: LoopLayout, hosted: Set[Value]) -> LoopLayout:
    """Return the layout with device memory for copies of slices that are in host memory or not aligned.

    hosted: operands and outputs of the node in host memory.
    """
    node, block = layout.node, Block(layout.scratch_bytes)
    from_host = {s.row for s in layout.scanned if node.inputs[s.operand] in hosted}
    to_host = {s.row for s in layout.stacked if node.outputs[s.output] in hosted}
    copied: dict[Value, tuple[int, int]] = {}
    for row in (*(s.row for s in layout.scanned), *(s.row for s in layout.stacked)):
        if (row in from_host | to_host or row.tensor.nbytes % UNIT) and row not in copied:
            # Two buffers: if the slice is also a state, the body reads one and writes the other.
            copied[row] = block.take(row.tensor.nbytes), block.take(row.tensor.nbytes)
    return replace(layout, copied=copied, hosted=from_host | to_host, scratch_bytes=block.size)


def may_repeat(layout: LoopLayout) -> bool:
    """Return whether a recording may contain the body once, and repeat it.

    True if the number of iterations depends on values, and all iterations use the same memory.
    """
    return layout.is_loop and layout.known_trips is None and not (layout.scanned or layout.stacked)


class PreparedLoop(ArrayMaker, SubgraphKernel):
    """The kernel of a Loop or a Scan. copies: needed for slices in host memory."""

    def __init__(self, device: Device, layout: LoopLayout, body: ArrayBody, copies: SwapQueue | None = None):
        self._device, self._body = device, body
        self._rows = SwappedRows(copies, layout.hosted) if layout.hosted and copies is not None else None
        self._layout, self._trips = layout, layout.known_trips
        self._copied = Copied(device)
        # For each slice in host memory, an iteration has up to two more steps: a copy and a wait.
        self.launches = (self._body.launches + 2 * len(layout.hosted)) * (self._trips or 1)
        known = self._trips is not None and not layout.dynamic_stacks and self.launches <= MOST_RECORDED
        self.can_be_recorded = known and self._body.can_be_recorded
        self.host_reads = self._trips is None or self._body.host_reads
        self.repeats = self.can_be_recorded and self._body.repeats
        head = layout.body.graph.inputs[:2] if layout.is_loop else ()
        self._head = [v.tensor for v in head]
        self._reads_number = bool(head) and self._body.reads(head[0])
        self._true = device.copy_in(np.ones(UNIT, np.bool_)) if head else None
        self._numbers = None
        if self._reads_number and self._trips is not None:
            # Each iteration number is repeated to fill UNIT bytes, so that the next one begins at an aligned offset.
            self._numbers = device.copy_in(np.arange(self._trips).repeat(UNIT // 8))

    def made(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> dict[int, Any]:
        stacks = {s.output: _Stack(self._device, s.row.tensor) for s in self._layout.dynamic_stacks}
        targets = [stacks.get(position, output) for position, output in enumerate(outputs)]
        for step in self.steps(inputs, targets, scratch):
            step.run()
        return {position: stack.whole() for position, stack in stacks.items()}

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[BoundStep]:
        memory = _Memory(self._device, self._layout, inputs, outputs, scratch)
        arena = memory.bytes_at(self._layout.arena, self._layout.body.memory.layout.arena_bytes)
        most = self._limit(inputs)
        trip = 0
        while most is None or trip < most:
            self._check_limits(trip)
            yield from (self._copied.step(*pair) for pair in memory.scanned(trip))
            if self._rows is not None:
                yield from self._rows.before(trip, memory)
            yield from self._body.steps(arena, memory.entry(self._head_of(memory, trip), trip), memory.written(trip))
            yield from (self._copied.step(*pair) for pair in memory.stacked(trip))
            if self._rows is not None:
                yield from self._rows.after(trip, memory)
            trip += 1
            if (flag := memory.flag) is not None and not self._device.copy_out(flag, None).any():
                break
        if self._rows is not None:
            yield self._rows.last_step
        yield from (self._copied.step(*pair) for pair in memory.finals(trip))

    def _check_limits(self, trip: int) -> None:
        try:
            limits.check_iterations(trip)
            limits.check_time()
        except LimitReached as error:
            raise failure_of(self._layout.node, error) from None

    def _limit(self, inputs: Sequence[Any]) -> int | None:
        if self._trips is not None:
            return self._trips
        if not self._layout.is_loop:
            return self._layout.trips
        limit, condition = self._layout.bounds(inputs, None)
        if condition is not None and not self._device.copy_out(condition, None).any():
            return 0
        return None if limit is None else int(self._device.copy_out(limit, None).reshape(()))

    def _head_of(self, memory: _Memory, trip: int) -> list[Any]:
        if not self._head:
            return []
        number, flag = self._head
        if self._numbers is not None:
            iteration = array_at(self._device, self._numbers, UNIT * trip, number)
        else:
            assert self._layout.iteration is not None, "it is a Loop"
            iteration = memory.view(self._layout.iteration, number)
            if self._reads_number:
                self._device.copy_in(np.full(number.static_shape, trip, np.int64), iteration)
        return [iteration, array_at(self._device, self._true, 0, flag)]


class RecordedLoop(PreparedLoop, Conditional):
    """The kernel of a Loop whose recordings contain its body once."""

    def __init__(self, device: Device, layout: LoopLayout, body: ArrayBody, context: InstanceContext, fault: Any):
        super().__init__(device, layout, body)
        self._context, self._fault = context, fault
        self.can_be_recorded = self.repeats = True
        # 3: two launches that set the condition, and the conditional node. Each state is copied before the first
        # iteration, after each iteration, and after the last one.
        self.launches = 3 + body.launches + 3 * len(layout.states)

    def recorded(self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any) -> Iterator[Recorded]:
        # The recording repeats iteration 1, which reads states from the buffer that iteration 0 writes. States are
        # copied to this buffer before the loop (`first`) and after each iteration (`carried`).
        layout, memory = self._layout, _Memory(self._device, self._layout, inputs, outputs, scratch)
        number = layout.iteration
        assert number is not None, "it is a Loop"
        arena = memory.bytes_at(layout.arena, layout.body.memory.layout.arena_bytes)
        head = [memory.view(number, self._head[0]), array_at(self._device, self._true, 0, self._head[1])]
        body = [*self._body.steps(arena, memory.entry(head, 1), memory.written(1))]
        after = [self._copied.step(*pair) for pair in memory.carried()]
        yield from (self._copied.step(*pair) for pair in memory.first())
        limit, condition = layout.bounds(inputs, None)
        context, trips = self._context, memory.view(number, TensorType("int64", ()))
        yield Repetition(
            [*body, *after], trips, condition, limit, memory.flag, context.iteration_limit, self._fault, context.faults
        )
        yield from (self._copied.step(*pair) for pair in memory.finals(1))


class _Stack:
    """Slices of one type in memory that grows."""

    def __init__(self, device: Device, kind: TensorType):
        self._device, self._kind = device, kind
        self._capacity, self._rows = 1, 0
        self._memory = device.alloc(kind.nbytes)

    def row(self, number: int) -> Any:
        """Return the memory of slice `number`, which exists or is added as the next one."""
        if number == self._capacity:
            self._capacity *= 2
            memory = self._device.alloc(self._capacity * self._kind.nbytes)
            self._device.copy_across(self.whole(), memory)
            self._memory = memory
        self._rows = max(self._rows, number + 1)
        return array_at(self._device, self._memory, number * self._kind.nbytes, self._kind)

    def whole(self) -> Any:
        return array_at(
            self._device, self._memory, 0, TensorType(self._kind.dtype, (self._rows, *self._kind.static_shape))
        )


class _Memory:
    def __init__(self, device: Device, layout: LoopLayout, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Any):
        self._device, self._layout = device, layout
        self._inputs, self._outputs, self._scratch = inputs, outputs, scratch
        flag, results = layout.flag_after, layout.body.graph.outputs
        self.flag = None if flag is None else self.view(flag, results[0].tensor)

    def bytes_at(self, offset: int, size: int) -> Any:
        return self._device.view(self._scratch, offset, (size,), np.dtype(np.uint8))

    def view(self, offset: int, kind: TensorType) -> Any:
        return array_at(self._device, self._scratch, offset, kind)

    def entry(self, head: Sequence[Any], trip: int) -> list[Any]:
        return self._layout.entry(
            head,
            self._inputs,
            lambda state: self._before(state, trip),
            lambda scan: self._read_row(scan, trip),
            lambda value, given: array_at(self._device, given, 0, value.tensor) if has_fixed_size(value) else given,
        )

    def written(self, trip: int) -> list[Any]:
        rows = [self._written_row(stack, trip) for stack in self._layout.stacked]
        return self._layout.written(self.flag, rows, lambda state: self._after(state, trip))

    def _row(self, whole: Any, kind: TensorType, trip: int, backwards: bool) -> Any:
        if isinstance(whole, _Stack):
            return whole.row(trip)
        number = whole.shape[0] - 1 - trip if backwards else trip
        if type(whole) is np.ndarray:
            return whole[number]
        return array_at(self._device, whole, number * kind.nbytes, kind)

    def _scanned_row(self, scan: Scanned, trip: int) -> Any:
        return self._row(self._inputs[scan.operand], scan.row.tensor, trip, scan.backwards)

    def _stacked_row(self, stack: Stacked, trip: int) -> Any:
        return self._row(self._outputs[stack.output], stack.row.tensor, trip, stack.backwards)

    def _read_row(self, scan: Scanned, trip: int) -> Any:
        copied = self._layout.copied.get(scan.row)
        if copied is None:
            return self._scanned_row(scan, trip)
        return self.view(copied[trip % 2 if scan.row in self._layout.hosted else 0], scan.row.tensor)

    def _written_row(self, stack: Stacked, trip: int) -> Any:
        copied = self._layout.copied.get(stack.row)
        return self._stacked_row(stack, trip) if copied is None else self.view(copied[trip % 2], stack.row.tensor)

    def _before(self, state: CarriedState, trip: int) -> Any:
        source = self._inputs[state.operand] if trip == 0 else self._after(state, trip - 1)
        return array_at(self._device, source, 0, state.before.tensor)

    def _after(self, state: CarriedState, trip: int) -> Any:
        if isinstance(state.buffers, int):
            return self._written_row(self._layout.stacked[state.buffers], trip)
        assert state.buffers is not None, "its shape is known"
        return self.view(state.buffers[trip % 2], state.after.tensor)

    def scanned(self, trip: int) -> Iterator[tuple[Any, Any]]:
        """Yield (source, target) of slices that are copied before an iteration."""
        for scan in self._layout.scanned:
            if scan.row in self._layout.copied and scan.row not in self._layout.hosted:
                yield self._scanned_row(scan, trip), self._read_row(scan, trip)

    def stacked(self, trip: int) -> Iterator[tuple[Any, Any]]:
        """Yield (source, target) of slices that are copied after an iteration."""
        for stack in self._layout.stacked:
            if stack.row in self._layout.copied and stack.row not in self._layout.hosted:
                yield self._written_row(stack, trip), self._stacked_row(stack, trip)

    def from_host(self, trip: int) -> Iterator[tuple[Value, Any, Any]]:
        """Yield (slice, source, target) for copies from host memory for an iteration."""
        for scan in self._layout.scanned:
            if scan.row in self._layout.hosted and trip < self._inputs[scan.operand].shape[0]:
                yield scan.row, self._scanned_row(scan, trip), self._read_row(scan, trip)

    def to_host(self, trip: int) -> Iterator[tuple[Value, Any, Any]]:
        """Yield (slice, source, target) for copies to host memory after an iteration."""
        for stack in self._layout.stacked:
            if stack.row in self._layout.hosted:
                yield stack.row, self._written_row(stack, trip), self._stacked_row(stack, trip)

    def first(self) -> Iterator[tuple[Any, Any]]:
        """Yield (initial value of a state, memory where iteration 1 reads it)."""
        for state in self._layout.states:
            yield self._inputs[state.operand], self._after(state, 0)

    def carried(self) -> Iterator[tuple[Any, Any]]:
        """Yield (memory where iteration 1 writes a state, memory where iteration 1 reads it)."""
        for state in self._layout.states:
            yield self._after(state, 1), self._after(state, 0)

    def finals(self, trips: int) -> Iterator[tuple[Any, Any]]:
        """Yield (memory of a state after all iterations, memory where the node returns it)."""
        for operand, output in self._layout.unchanged:
            if self._outputs[output] is not None:
                yield self._inputs[operand], self._outputs[output]
        for state in self._layout.states:
            if self._outputs[state.output] is not None:
                yield self._before(state, trips), self._outputs[state.output]


class SwappedRows:
    """Copies of slices from and to host memory during iterations. Two buffers of each slice take turns."""

    def __init__(self, copies: SwapQueue, hosted: Set[Value]):
        self._copies, self._hosted = copies, hosted

    def before(self, trip: int, memory: _Memory) -> Iterator[BoundStep]:
        """Yield the steps before an iteration.

        They wait for the slices that the iteration reads, and for copies to the host from buffers that it overwrites.
        Then they start to copy the slices of the next iteration. Iteration 0 also copies its own slices.
        """
        for row, source, target in memory.from_host(trip) if trip == 0 else ():
            yield self._copies.copy_step((row, 0), source, target, to_host=False)
        yield self._copies.wait_step(
            [(row, trip % 2) for row, _, _ in (*memory.from_host(trip), *memory.to_host(trip))]
        )
        for row, source, target in memory.from_host(trip + 1):
            yield self._copies.copy_step((row, (trip + 1) % 2), source, target, to_host=False)

    def after(self, trip: int, memory: _Memory) -> Iterator[BoundStep]:
        for row, source, target in memory.to_host(trip):
            yield self._copies.copy_step((row, trip % 2), source, target, to_host=True)

    @property
    def last_step(self) -> BoundStep:
        """The step after all iterations: it waits for all copies."""
        return self._copies.wait_step([(row, turn) for row in self._hosted for turn in range(2)])
