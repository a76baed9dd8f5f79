"""The parts of a Loop or a Scan and its working memory, for native programs and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from graphkit.executor.lower.lowering import LoweredGraph, NotNative, Site
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.executor.memory.planner import aligned
from graphkit.ir.graph import Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops.control.views import LoopView

T = TypeVar("T")


class CarriedState(NamedTuple):
    """A state that changes, with its inputs and outputs of the body.

    Args:
        operand: Position of the node's operand that is the initial value.
        output: Position of the node's output that is the final value.
        buffers: Where iterations write the state. Two offsets: into two buffers that take turns. One number: into the
            slices of this entry of `LoopLayout.stacked`. None: into a buffer of run-time size outside of the block.
    """

    operand: int
    before: Value
    output: int
    after: Value
    buffers: tuple[int, int] | int | None


class Scanned(NamedTuple):
    """An operand whose slices the body reads. `row` is the input of the body."""

    operand: int
    row: Value
    backwards: bool


class Stacked(NamedTuple):
    """An output of the node that consists of slices. `row` is the output of the body."""

    output: int
    row: Value
    backwards: bool


@dataclass(frozen=True)
class LoopLayout:
    """The parts of a loop, and where they are in its block of working memory.

    Operands and outputs of the node are given by position, places in the block by offset. The body's outputs are the
    condition (if tested), `states`, and the used stacked values.

    Args:
        arena: Offset of the body's arena.
        trips: The largest number of iterations, or -1.
        unchanged: (operand, output) of the other states, which the body reads like captures.
        iteration: Offset of the iteration number; None for a Scan.
        flag_before: Offset of the condition that the body reads; None for a Scan.
        flag_after: Offset of the condition that the body writes; None if it stays true.
        copied: Offsets of two buffers for each slice that is copied before or after an iteration.
        hosted: The slices that lie in host memory between iterations.
    """

    node: Node
    body: LoweredGraph
    arena: int
    trips: int
    states: tuple[CarriedState, ...]
    scanned: tuple[Scanned, ...]
    unchanged: tuple[tuple[int, int], ...]
    stacked: tuple[Stacked, ...]
    scratch_bytes: int
    iteration: int | None = None
    flag_before: int | None = None
    flag_after: int | None = None
    copied: Mapping[Value, tuple[int, int]] = field(default_factory=dict)
    hosted: Set[Value] = frozenset()

    @property
    def is_loop(self) -> bool:
        return self.iteration is not None

    @property
    def dynamic_stacks(self) -> tuple[Stacked, ...]:
        """The outputs whose number or shape of slices is known only in a run."""
        return tuple(s for s in self.stacked if not has_fixed_size(self.node.outputs[s.output]))

    @property
    def known_trips(self) -> int | None:
        given = [v for v in self.node.inputs[:2] if v is not None] if self.is_loop else []
        if any(v.tensor.constants is None for v in given) or self.flag_after is not None or self.trips < 0:
            return None
        starts = len(given) < 2 or bool((given[1].tensor.constants or (1,))[0])
        return self.trips if starts else 0

    @property
    def unread(self) -> Set[int]:
        captured = range(len(self.node.inputs))[LoopView.of(self.node).at_captures]
        return set(captured) - self.body.inputs_read

    def bounds(self, inputs: Sequence[T], absent: T) -> tuple[T, T]:
        """Return the iteration limit and the initial condition of a Loop, or `absent` for missing ones."""
        limit, condition = (*inputs, absent, absent)[:2]
        return (limit, condition) if self.is_loop else (absent, absent)

    def entry(
        self,
        head: Sequence[T],
        inputs: Sequence[T],
        before: Callable[[CarriedState], T],
        row: Callable[[Scanned], T],
        captured: Callable[[Value, T], T] = lambda value, given: given,
    ) -> list[T]:
        """Return the locations of the inputs of the body, in their order.

        Args:
            before: Returns the location of a state.
            row: Returns the location of a slice.
            captured: Takes an input of the body and the captured location; returns the location for the body.
        """
        found = [*head]
        for value in self.body.graph.inputs[len(head) :]:
            part = self._parts.get(value)
            if isinstance(part, CarriedState):
                found.append(before(part))
            elif part is not None:
                found.append(row(part))
            else:
                found.append(captured(value, inputs[len(found)]))
        return found

    @cached_property
    def _parts(self) -> Mapping[Value, CarriedState | Scanned]:
        return {**{s.before: s for s in self.states}, **{s.row: s for s in self.scanned}}

    def written(self, flag: T | None, rows: Sequence[T], after: Callable[[CarriedState], T]) -> list[T]:
        """Return the locations where the body writes its outputs, in their order.

        Args:
            after: Returns the location of a new state that is not a stacked slice.
        """
        states = [rows[s.buffers] if isinstance(s.buffers, int) else after(s) for s in self.states]
        return [*([] if flag is None else [flag]), *states, *rows]


class Block:
    def __init__(self, size: int = 0) -> None:
        self.size = size

    def take(self, nbytes: int) -> int:
        offset = self.size
        self.size += aligned(nbytes)
        return offset


def layout_of(site: Site) -> LoopLayout:
    """Return the layout of a Loop, or of a Scan along the first axis.

    Raises NotNative for other axes, values that are not tensors of numbers, and bodies that cannot be lowered. A
    state's size must be known both in and after the loop, or in neither. If the size of a stacked output is known, the
    size of its slices must be known, too.
    """
    node, block = site.node, Block()
    if not all(has_fixed_size(v) or has_run_time_size(v) for v in (*node.operands, *node.outputs)):
        raise NotNative("an operand or result is not a tensor of numbers")
    view = LoopView.of(node)
    check_axes(view)
    if why := site.unspecialised.get((node, "body")):
        raise NotNative(why)
    lead, count = view.flag, view.state_count
    stacked = [i for i in range(count, len(node.outputs)) if site.context.used_outputs[i]]
    rows = [view.body.outputs[lead + i] for i in stacked]
    for i, row in zip(stacked, rows, strict=True):
        if has_fixed_size(node.outputs[i]) and not has_fixed_size(row):
            raise NotNative(f"{row.type} is stacked to {node.outputs[i].type}")
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
    return LoopLayout(
        node,
        lowered,
        arena,
        _largest_trips(node, count, operands),
        tuple(states),
        tuple(Scanned(p, body.inputs[p], bool(s.backwards)) for p, s in zip(operands, view.scan_inputs, strict=True)),
        tuple(unchanged),
        tuple(Stacked(i, row, bool(written[i - count][1])) for i, row in zip(stacked, rows, strict=True)),
        block.size,
        *offsets,
    )


def _states(view: LoopView, rows: Sequence[Value], block: Block) -> tuple[list[CarriedState], list[tuple[int, int]]]:
    """Return the states that change, with their place in `block`, and (operand, output) of the others."""
    states: list[CarriedState] = []
    unchanged: list[tuple[int, int]] = []
    free = [*rows]  # each slice can hold at most one state
    for i, state in enumerate(view.states):
        before, after = state.before, state.after
        if before is after:
            unchanged.append((view.lead + i, i))
            continue
        if has_fixed_size(before) != has_fixed_size(state.final):
            raise NotNative(f"a state has the type {before.type} in the body, but {state.final.type} after the loop")
        buffers: tuple[int, int] | int | None = None
        if after in free and has_fixed_size(before):
            buffers = rows.index(after)
            free.remove(after)
        elif has_fixed_size(before):
            buffers = block.take(before.tensor.nbytes), block.take(before.tensor.nbytes)
        states.append(CarriedState(view.lead + i, before, i, after, buffers))
    return states, unchanged


def _largest_trips(node: Node, count: int, scanned: Sequence[int]) -> int:
    for position in scanned:
        length = operand_of(node, position).tensor.known_shape[0]
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


def check_axes(view: LoopView) -> None:
    """Raise NotNative unless slices are along the first axis, and thus contiguous."""
    for along in (*view.scan_inputs, *view.scan_outputs):
        shape = along.outer.tensor.shape
        if not shape or along.axis % len(shape):
            raise NotNative(f"it scans along axis {along.axis} of {along.outer.type}")


def operand_of(node: Node, position: int) -> Value:
    value = node.inputs[position]
    assert value is not None, "a state, scanned or captured operand is always present"
    return value
