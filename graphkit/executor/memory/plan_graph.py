"""The memory plan of a graph: the order of its steps, what they may overwrite, and the layout of the arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphkit.executor.memory.donation import awaited, donated_states, failing_first
from graphkit.executor.memory.placement import Placement
from graphkit.executor.memory.plan_cache import cached_layout, cached_schedule
from graphkit.executor.memory.planner import Layout, Request, aligned
from graphkit.executor.memory.schedule import Task, is_order, measured, updates_last
from graphkit.executor.memory.swapping import awaited_copies
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.internal.swap import SwapOut
from graphkit.passes.core.sweep import elements_read


class StepMemory(NamedTuple):
    """What a step needs: working memory, and the positions (input, output) that it permits to be the same memory.
    may_fail: of values, or of memory.
    """

    scratch_bytes: int
    inplace: Sequence[tuple[int, int]]
    may_fail: bool


@dataclass(frozen=True)
class MemoryPlan:
    """Where and when values live. Steps are positions in `Placement.steps`, values are storages.

    `requests` are the blocks of the arena, which `layout` gives offsets: `request_of` those of values, `within` where a
    value begins in a block that has several, `scratch_of` the working memory of steps. `donated` maps states to the
    storage of the new value that takes their memory; `releases` lists what no step reads after the one at a position
    of `order`, of values whose memory is not planned. `copies` lists, by position, the copies to the host's memory and
    back (see `awaited_copies`) that are done before the step there.
    """

    order: tuple[int, ...]
    requests: Sequence[Request]
    layout: Layout
    request_of: Mapping[Value, int]
    within: Mapping[Value, int]
    scratch_of: Mapping[int, int]
    donated: Mapping[Value, Value]
    releases: Mapping[int, Sequence[Value]]
    copies: Mapping[int, Sequence[Value]]
    plain_lower_bound: int

    def offset(self, storage: Value) -> int | None:
        """Where a storage begins in the arena; None when it does not lie there."""
        request = self.request_of.get(storage)
        return None if request is None else self.layout.offsets[request] + self.within.get(storage, 0)

    def scratch_offset(self, step: int) -> int | None:
        """Where the working memory of a step begins; None when it has none."""
        request = self.scratch_of.get(step)
        return None if request is None else self.layout.offsets[request]


def plan_graph(
    graph: Graph,
    placement: Placement,
    needs: Sequence[StepMemory],
    *,
    inplace: bool,
    share: bool,
    nbytes: Callable[[Value], int] = lambda v: v.tensor.nbytes,
    together: bool = False,
    order: Sequence[int] | None = None,
) -> MemoryPlan:
    """Plan the memory of `graph`, whose steps have these `needs`; `nbytes` of each value. n log n in steps.

    together: updates of states stand at the end as far as they need no memory there. order: that of the steps, where it
    is chosen.
    """
    planning = _Planning(graph, placement, needs, inplace, nbytes)
    sizes = [aligned(size) for size in planning.sizes]
    if order is not None:
        assert is_order(planning.tasks, order), "steps of the order that was chosen wait for later ones"
        schedule = measured(planning.tasks, sizes, order)
    else:
        schedule = cached_schedule(planning.tasks, sizes)
        if together:
            schedule = updates_last(planning.tasks, sizes, schedule)
    copies = awaited_copies(placement, schedule.order)
    lives = _Lives(planning.tasks, schedule.order, len(planning.sizes))
    planning.keep_until_copied(lives, schedule.order, copies)
    requests, request_of, within, scratch_of = planning.requests(schedule.order, lives)
    return MemoryPlan(
        schedule.order,
        requests,
        cached_layout(requests, inplace=inplace, share=share),
        request_of,
        within,
        scratch_of,
        planning.donated,
        planning.releases(lives),
        copies,
        schedule.plain_peak_bytes,
    )


@dataclass(slots=True)
class _JointBlock:
    """Buffers, with their offsets, that share a block of memory while any of them lives."""

    parts: list[tuple[int, int]]
    size: int
    first: int
    last: int

    def add(self, buffer: int, size: int, first: int, last: int, same: int | None) -> None:
        """Another buffer behind those that are there; `same` is one that it takes over."""
        self.parts += [(b, self.size) for b in (buffer, same) if b is not None]
        self.size += aligned(size)
        self.first, self.last = min(self.first, first), max(self.last, last)


class _Planning:
    """A graph's steps as tasks on numbered buffers: what each reads, writes, follows, and may overwrite."""

    def __init__(
        self,
        graph: Graph,
        placement: Placement,
        needs: Sequence[StepMemory],
        inplace: bool,
        nbytes: Callable[[Value], int],
    ):
        self._placement = placement
        self._needs = needs
        place = placement.place
        self._written = [v for node in placement.steps for v in node.outputs if v in placement.used]
        self._buffer_of = {v: i for i, v in enumerate(self._written)}
        self.sizes = [nbytes(v) if place[v] == "arena" else 0 for v in self._written]
        permitted = [_inplace_pairs(n, placement, s.inplace) for n, s in zip(placement.steps, needs, strict=True)]
        after = [_followed(node, placement) for node in placement.steps]
        may_fail = [need.may_fail for need in needs]
        self.donated = donated_states(graph, placement, permitted, after, may_fail) if inplace else {}
        behind = awaited(placement, self.donated)
        for node, others in failing_first(placement, self.donated, may_fail).items():
            behind.setdefault(node, []).extend(others)
        self.tasks = [
            Task(
                self._buffers([placement.root[v] for v in elements_read(node)]),
                self._buffers([v for v in node.outputs if v in placement.used]),
                self._buffers((*before, *behind.get(node, ()))),
                self._in_arena(pairs) if inplace else (),
                aligned(need.scratch_bytes),
            )
            for node, before, pairs, need in zip(placement.steps, after, permitted, needs, strict=True)
        ]

    def keep_until_copied(self, lives: _Lives, order: Sequence[int], copies: Mapping[int, Sequence[Value]]) -> None:
        """What is copied to the host's memory lives until the step before which the copy is done.

        That step is none that reads it last, or the copy is done before it: none writes over it too early.
        """
        steps = self._placement.steps
        done = {value: position for position, values in copies.items() for value in values}
        for index in order:
            if isinstance(steps[index].op, SwapOut):
                until = done.get(steps[index].output, len(order) - 1)
                for source in self.tasks[index].reads:
                    lives.last[source] = max(lives.last[source], until)

    def requests(
        self, order: Sequence[int], lives: _Lives
    ) -> tuple[list[Request], Mapping[Value, int], Mapping[Value, int], Mapping[int, int]]:
        """The blocks of the arena, those of values with their places there, those of working memory."""
        place = self._placement.place
        joint = self._joint_blocks(order, lives)
        parts = {buffer: (number, offset) for number, block in enumerate(joint) for buffer, offset in block.parts}
        in_arena = [i for i, v in enumerate(self._written) if place[v] == "arena" and i not in parts]
        request_of = {buffer: i for i, buffer in enumerate(in_arena)}
        candidates: dict[int, list[int]] = {}
        for step, index in enumerate(order):
            for source, target in self.tasks[index].inplace:
                if source in request_of and lives.last[source] == step and target in request_of:
                    candidates.setdefault(target, []).append(request_of[source])
        requests = [
            Request(self.sizes[b], lives.first[b], lives.last[b], tuple(candidates.get(b, ()))) for b in in_arena
        ]
        request_of |= {buffer: len(requests) + number for buffer, (number, _) in parts.items()}
        requests += [Request(block.size, block.first, block.last) for block in joint]
        scratch_of: dict[int, int] = {}
        for step, index in enumerate(order):
            if size := self._needs[index].scratch_bytes:
                scratch_of[index] = len(requests)
                requests.append(Request(size, step, step))
        written = self._written
        within = {written[buffer]: offset for buffer, (_, offset) in parts.items()}
        return requests, {written[buffer]: i for buffer, i in request_of.items()}, within, scratch_of

    def _joint_blocks(self, order: Sequence[int], lives: _Lives) -> list[_JointBlock]:
        """The results of each step that wants them next to each other, in blocks of their own.

        An operand that dies there and may be overwritten lies where its result will, from the start.
        """
        steps, place = self._placement.steps, self._placement.place
        found: list[_JointBlock] = []
        taken: set[int] = set()
        for step, index in enumerate(order):
            if not getattr(steps[index].op, "contiguous", False):
                continue
            sources: dict[int, int] = {}
            for source, target in self.tasks[index].inplace:
                fits = lives.last[source] == step and self.sizes[source] == self.sizes[target]
                if fits and source not in taken and target not in sources:
                    sources[target] = source
                    taken.add(source)
            block = _JointBlock([], 0, step, step)
            for value in steps[index].outputs:
                buffer = self._buffer_of.get(value)
                if buffer is None or place[value] != "arena":
                    continue
                block.add(buffer, self.sizes[buffer], lives.first[buffer], lives.last[buffer], sources.get(buffer))
                if buffer in sources:
                    block.first = min(block.first, lives.first[sources[buffer]])
            found.append(block)
        return found

    def releases(self, lives: _Lives) -> dict[int, list[Value]]:
        """By position in the order, the values without planned memory that no later step needs."""
        kept = {self._placement.root[r.value] for r in self._placement.results}
        found: dict[int, list[Value]] = {}
        for buffer, value in enumerate(self._written):
            if self._placement.place[value] == "dynamic" and value not in kept:
                found.setdefault(lives.touched[buffer], []).append(value)
        return found

    def _buffers(self, values: Iterable[Value]) -> tuple[int, ...]:
        number = self._buffer_of
        return tuple(dict.fromkeys([number[v] for v in values if v in number]))

    def _in_arena(self, pairs: Sequence[tuple[Value, Value]]) -> tuple[tuple[int, int], ...]:
        place, number = self._placement.place, self._buffer_of
        return tuple((number[s], number[t]) for s, t in pairs if place[s] == "arena" and s in number)


class _Lives:
    """The steps of an order that write each buffer first, read it last, and need it at all, if only for its shape."""

    def __init__(self, tasks: Sequence[Task], order: Sequence[int], buffers: int):
        self.first = [0] * buffers
        self.last = [0] * buffers
        self.touched = [0] * buffers
        for step, index in enumerate(order):
            for buffer in tasks[index].writes:
                self.first[buffer] = self.last[buffer] = self.touched[buffer] = step
            for buffer in tasks[index].reads:
                self.last[buffer] = step
            for buffer in tasks[index].after:
                self.touched[buffer] = step


def _followed(node: Node, placement: Placement) -> list[Value]:
    """The storages that are written before the node may run."""
    root, waits = placement.root, placement.waits
    return [storage for v in node.operands for storage in (root[v], *waits.get(v, ()))]


def _inplace_pairs(node: Node, placement: Placement, permitted: Sequence[tuple[int, int]]) -> list[tuple[Value, Value]]:
    """(storage read, output) pairs that may be the same memory.

    Another operand in the same storage forbids it, unless that one may be overwritten as well and has the output's
    shape: then every element is read where, and before, it is written.
    """
    root, allowed = placement.root, set(permitted)
    readers: dict[Value, list[tuple[int, Value]]] = {}  # operands with their positions, by storage
    for i, v in enumerate(node.inputs):
        if v is not None:
            readers.setdefault(root[v], []).append((i, v))
    fits: dict[tuple[Value, Value], bool] = {}
    for position, index in permitted:
        if position >= len(node.inputs) or index >= len(node.outputs):
            continue
        operand, output = node.inputs[position], node.outputs[index]
        if operand is None or output not in placement.used or not placement.is_sized(operand):
            continue
        pair = root[operand], output
        if pair not in fits and placement.place[pair[0]] in ("arena", "parameter"):
            fits[pair] = all(
                (i, index) in allowed
                and v.tensor.shape == output.tensor.shape
                and v.dtype.itemsize == output.dtype.itemsize
                for i, v in readers[pair[0]]
            )
    return [pair for pair, is_fitting in fits.items() if is_fitting]
