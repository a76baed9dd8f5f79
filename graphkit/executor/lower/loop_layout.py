"""What a Loop or a Scan consists of, and the working memory that it owns, for whoever runs its iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.executor.lower.lowering import LoweredGraph, NotNative, Site
from graphkit.executor.memory.placement import has_fixed_size, has_run_time_size
from graphkit.executor.memory.planner import aligned
from graphkit.ir.graph import Node, Value
from graphkit.ops.control.views import LoopView


@dataclass(frozen=True)
class CarriedState:
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
class Scanned:
    operand: int
    row: Value
    backwards: bool


@dataclass(frozen=True)
class Stacked:
    output: int
    row: Value
    backwards: bool


@dataclass(frozen=True)
class LoopLayout:
    """A loop's parts. Operands and outputs are positions of the node's; offsets are in the block of working memory.

    `states` are those that change; the others, `unchanged`, go to the body like captures. The body's outputs are the
    condition of a Loop that has one to test, `states`, and the stacked values that somebody reads.
    """

    body: LoweredGraph
    arena: int  # offset of the body's arena
    trips: int  # at most; -1: not known
    states: tuple[CarriedState, ...]
    scanned: tuple[Scanned, ...]
    unchanged: tuple[tuple[int, int], ...]  # (operand, output)
    stacked: tuple[Stacked, ...]
    iteration: int | None = None
    flag_before: int | None = None
    flag_after: int | None = None  # None as well when it stays true


class Block:
    """A block of working memory that is being laid out."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, nbytes: int) -> int:
        offset = self.size
        self.size += aligned(nbytes)
        return offset


def layout_of(site: Site, block: Block) -> LoopLayout:
    """The parts of a Loop or a Scan over slices along the first axis. Raises NotNative."""
    node = site.node
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
        lowered,
        arena,
        _known_trips(node, count, operands),
        tuple(states),
        tuple(Scanned(p, body.inputs[p], bool(s.backwards)) for p, s in zip(operands, view.scan_inputs, strict=True)),
        tuple(unchanged),
        tuple(Stacked(i, row, bool(written[i - count][1])) for i, row in zip(stacked, rows, strict=True)),
        *offsets,
    )


def _states(view: LoopView, rows: Sequence[Value], block: Block) -> tuple[list[CarriedState], list[tuple[int, int]]]:
    """The states that change, with their place in `block`, and (operand, output) of those that do not."""
    states: list[CarriedState] = []
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
        states.append(CarriedState(view.lead + i, before, i, after, buffers))
    return states, unchanged


def _known_trips(node: Node, count: int, scanned: Sequence[int]) -> int:
    """How often the body runs at most, where that is known; else -1."""
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


def _check_axes(view: LoopView) -> None:
    """Slices lie along the first axis, so that they are contiguous and follow each other."""
    for along in (*view.scan_inputs, *view.scan_outputs):
        shape = along.outer.tensor.shape
        if not shape or along.axis % len(shape):
            raise NotNative(f"it scans along axis {along.axis} of {along.outer.type}")


def operand_of(node: Node, position: int) -> Value:
    value = node.inputs[position]
    assert value is not None, "what a loop carries, scans and captures is never absent"
    return value
