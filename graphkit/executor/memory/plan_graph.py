"""The memory plan of a graph: the order of its steps, donated states, and the layout of the arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from graphkit.executor.memory.placement import Placement
from graphkit.executor.memory.plan_cache import cached_layout, cached_schedule
from graphkit.executor.memory.planner import Layout, Request, aligned, all_aligned
from graphkit.executor.memory.tasks import Task
from graphkit.ir.graph import Graph, Node, Value, native_sweeps
from graphkit.named_tuples import NamedTuple
from graphkit.ops._base import DOMAIN
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import elements_read


class StepMemory(NamedTuple):
    """The memory that a step needs.

    Attributes:
        scratch_bytes: Size of its working memory.
        inplace: Pairs (position of an input, position of an output) that may share memory.
        may_fail: Whether the step may raise an error during a run, for some elements or for lack of memory.
    """

    scratch_bytes: int
    inplace: Sequence[tuple[int, int]]
    may_fail: bool


class MemoryPlan(NamedTuple):
    """The order of steps, the blocks of the arena and their offsets. Steps are positions in `Placement.steps`.

    Attributes:
        order: The steps, in the order of a run.
        requests: The blocks of the arena.
        layout: The offset of each block.
        request_of: The block of each storage in the arena.
        offset_in_block: The offset of a storage inside its block, if the block contains several.
        scratch_of: The block with the working memory of a step.
        donated: For each donated state, the storage of its new value.
        releases: For each position in `order`, the dynamic storages that no later step needs.
        copies: For each position in `order`, the copies to or from host memory that must be complete before that step
            (see `copy_deadlines`).
        plain_lower_bound: Peak of live bytes in the order of the graph.
    """

    order: tuple[int, ...]
    requests: Sequence[Request]
    layout: Layout
    request_of: Mapping[Value, int]
    offset_in_block: Mapping[Value, int]
    scratch_of: Mapping[int, int]
    donated: Mapping[Value, Value]
    releases: Mapping[int, Sequence[Value]]
    copies: Mapping[int, Sequence[Value]]
    plain_lower_bound: int

    def offset(self, storage: Value) -> int | None:
        """Return the offset of a storage in the arena, or None if it is elsewhere."""
        request = self.request_of.get(storage)
        return None if request is None else self.layout.offsets[request] + self.offset_in_block.get(storage, 0)

    def scratch_offset(self, step: int) -> int | None:
        """Return the offset of the working memory of a step, or None if it has none."""
        request = self.scratch_of.get(step)
        return None if request is None else self.layout.offsets[request]


def plan_graph(
    graph: Graph,
    placement: Placement,
    needs: Sequence[StepMemory],
    *,
    inplace: bool,
    share: bool,
    nbytes: Callable[[Value], int] | None = None,
    group_updates: bool = False,
    order: Sequence[int] | None = None,
) -> MemoryPlan:
    """Order the steps of `graph`, and plan its memory. Takes O(n log n) time for n steps.

    Args:
        graph: The graph.
        placement: Its storages.
        needs: The memory that each step needs.
        inplace: Whether results may overwrite operands, and new values of states the old ones.
        share: Whether values that are not live at the same time may share addresses.
        nbytes: Returns the size of a value. None: the types of values determine it.
        group_updates: Move updates of states to the end, if that does not increase the peak much (see `updates_last`).
        order: The order of the steps, if it was chosen before.
    """
    planning = _Planning(graph, placement, needs, inplace, _by_type() if nbytes is None else nbytes)
    sizes = all_aligned(planning.sizes)
    if order is not None:
        from graphkit.executor.memory.schedule import is_topological_order, with_peaks

        assert is_topological_order(planning.tasks, order), "a step of the chosen order needs the result of a later one"
        schedule = with_peaks(planning.tasks, sizes, order)
    else:
        schedule = cached_schedule(planning.tasks, sizes)
        if group_updates:
            from graphkit.executor.memory.schedule import updates_last

            schedule = updates_last(planning.tasks, sizes, schedule)
    ranges = _LiveRanges(planning.tasks, schedule.order, len(planning.sizes))
    copies: Mapping[int, Sequence[Value]] = {}
    if not graph.operators.isdisjoint(("SwapOut", "SwapIn")):
        copies = _copy_deadlines(placement, schedule.order)
        planning.extend_until_copied(ranges, schedule.order, copies)
    requests, request_of, offset_in_block, scratch_of = planning.requests(schedule.order, ranges)
    return MemoryPlan(
        schedule.order,
        requests,
        cached_layout(requests, inplace=inplace, share=share),
        request_of,
        offset_in_block,
        scratch_of,
        planning.donated,
        planning.releases(ranges),
        copies,
        schedule.plain_peak_bytes,
    )


def _by_type() -> Callable[[Value], int]:
    """Return a function that returns the size of a value, and computes it once for each type."""
    known: dict[int, int] = {}

    def nbytes(value: Value) -> int:
        kind = value.type
        found = known.get(id(kind))
        if found is None:
            found = known[id(kind)] = value.tensor.nbytes
        return found

    return nbytes


def _copy_deadlines(placement: Placement, order: Sequence[int]) -> dict[int, list[Value]]:
    """Call `copy_deadlines`, which is imported only if a step copies to host memory or back."""
    if all(placement.host_storage(node) is None for node in placement.steps):
        return {}
    from graphkit.executor.memory.swapping import copy_deadlines

    return copy_deadlines(placement, order)


class _ContiguousBlock:
    """Buffers that lie next to each other in one block. The block is live as long as any of them is.

    members: Pairs of a buffer and its offset in the block.
    """

    def __init__(self, step: int):
        self.members: list[tuple[int, int]] = []
        self.size, self.first, self.last = 0, step, step

    def append(self, buffer: int, size: int, first: int, last: int, overwritten: int | None) -> None:
        """Append a buffer that is live from step `first` to `last`.

        overwritten: An operand that the buffer overwrites. It gets the same offset.
        """
        self.members += [(b, self.size) for b in (buffer, overwritten) if b is not None]
        self.size += aligned(size)
        self.first, self.last = min(self.first, first), max(self.last, last)


class _Planning:
    """The steps of a graph as tasks for the scheduler, and the values that they write as numbered buffers."""

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
        self._elements = _partly_read(placement)
        permitted = [need.inplace for need in needs]
        # Native functions know no storages that a view does not read.
        self._native = None if placement.view_dependencies else native_sweeps()
        if self._native is None:
            storages = [_dependencies(node, placement) for node in placement.steps]
            pairs = [_inplace_pairs(n, placement, p) for n, p in zip(placement.steps, permitted, strict=True)]
        else:
            storages = self._native.storages_read(placement.steps, placement.root)
            pairs = self._native.inplace_pairs(
                placement.steps, placement.root, place, placement.used, permitted, placement.is_sized, _has_equal_size
            )
        self.donated: Mapping[Value, Value] = {}
        extra: dict[Node, list[Value]] = {}
        if inplace and graph.updates:
            self.donated, extra = self._donation(graph, pairs, storages)
        self.tasks = self._tasks(storages, extra, pairs if inplace else None)

    def _donation(
        self, graph: Graph, pairs: Sequence[Sequence[tuple[Value, Value]]], storages: list[list[Value]]
    ) -> tuple[Mapping[Value, Value], dict[Node, list[Value]]]:
        """Return the donated states, and the dependencies that they add, by step."""
        from graphkit.executor.memory import donation

        placement = self._placement
        may_fail = [need.may_fail for need in self._needs]
        donated = donation.donated_states(graph, placement, pairs, storages, may_fail)
        if self._native is None:
            extra = donation.reader_dependencies(placement, donated)
        else:
            extra = self._native.reader_dependencies(
                placement.steps, storages, self._elements, placement.used, dict(donated)
            )
        for node, more in donation.failure_dependencies(placement, donated, may_fail).items():
            extra.setdefault(node, []).extend(more)
        return donated, extra

    def _tasks(
        self,
        storages: list[list[Value]],
        extra: dict[Node, list[Value]],
        pairs: list[list[tuple[Value, Value]]] | None,
    ) -> list[Task]:
        """Return the task of each step.

        Args:
            storages: For each step, what must be written before it, of its operands.
            extra: What else must be written before a step.
            pairs: For each step, the result of `_inplace_pairs`; None if nothing is overwritten.
        """
        steps, scratch = self._placement.steps, all_aligned([need.scratch_bytes for need in self._needs])
        if self._native is not None:
            place = self._placement.place
            return self._native.tasks(
                Task, steps, storages, self._elements, extra, pairs, scratch, self._buffer_of, place
            )
        return [
            self._task(node, storages[i], extra.get(node, ()), () if pairs is None else pairs[i], scratch[i])
            for i, node in enumerate(steps)
        ]

    def _task(
        self,
        node: Node,
        storages: Sequence[Value],
        extra: Sequence[Value],
        pairs: Sequence[tuple[Value, Value]],
        scratch: int,
    ) -> Task:
        """Return the task of a step.

        Args:
            node: The step.
            storages: What must be written before it, of its operands.
            extra: What else must be written before it.
            pairs: The result of `_inplace_pairs`.
            scratch: Bytes of its working memory.
        """
        reads = after = self._buffers(storages)
        if self._placement.view_dependencies:
            reads = self._buffers([self._placement.root[v] for v in elements_read(node)])
        elif node in self._elements:
            reads = self._buffers(self._elements[node])
        if extra:
            after = self._buffers((*storages, *extra))
        number = self._buffer_of
        writes = tuple([number[v] for v in node.outputs if v in number])
        return Task(reads, writes, after, self._in_arena(pairs) if pairs else (), scratch)

    def extend_until_copied(
        self, ranges: _LiveRanges, order: Sequence[int], copies: Mapping[int, Sequence[Value]]
    ) -> None:
        """Extend the live range of each value that is swapped out to the step before which the copy must be complete.

        So no step overwrites the value while the copy still reads it.

        copies: The result of `copy_deadlines`.
        """
        steps = self._placement.steps
        done = {value: position for position, values in copies.items() for value in values}
        for index in order:
            if is_op(steps[index], "SwapOut", domain=DOMAIN):
                until = done.get(steps[index].output, len(order) - 1)
                for source in self.tasks[index].reads:
                    ranges.last[source] = max(ranges.last[source], until)

    def requests(
        self, order: Sequence[int], ranges: _LiveRanges
    ) -> tuple[list[Request], Mapping[Value, int], Mapping[Value, int], Mapping[int, int]]:
        """Return `requests`, `request_of`, `offset_in_block` and `scratch_of` of MemoryPlan."""
        place = self._placement.place
        contiguous = self._contiguous_blocks(order, ranges)
        members = {buffer: (i, offset) for i, block in enumerate(contiguous) for buffer, offset in block.members}
        in_arena = [i for i, v in enumerate(self._written) if place[v] == "arena" and i not in members]
        request_of = {buffer: i for i, buffer in enumerate(in_arena)}
        candidates: dict[int, list[int]] = {}
        for step, index in enumerate(order):
            for source, target in self.tasks[index].inplace:
                if source in request_of and ranges.last[source] == step and target in request_of:
                    candidates.setdefault(target, []).append(request_of[source])
        requests = [
            Request(self.sizes[b], ranges.first[b], ranges.last[b], tuple(candidates.get(b, ()))) for b in in_arena
        ]
        request_of |= {buffer: len(requests) + number for buffer, (number, _) in members.items()}
        requests += [Request(block.size, block.first, block.last) for block in contiguous]
        scratch_of: dict[int, int] = {}
        for step, index in enumerate(order):
            if size := self._needs[index].scratch_bytes:
                scratch_of[index] = len(requests)
                requests.append(Request(size, step, step))
        written = self._written
        offset_in_block = {written[buffer]: offset for buffer, (_, offset) in members.items()}
        return requests, {written[buffer]: i for buffer, i in request_of.items()}, offset_in_block, scratch_of

    def _contiguous_blocks(self, order: Sequence[int], ranges: _LiveRanges) -> list[_ContiguousBlock]:
        """Return one block for each step whose operator needs its results next to each other in memory.

        If such a result may overwrite an operand that is not read again, the operand is in the block from the start.
        """
        steps, place = self._placement.steps, self._placement.place
        found: list[_ContiguousBlock] = []
        taken: set[int] = set()
        for step, index in enumerate(order):
            if not getattr(steps[index].op, "contiguous", False):
                continue
            sources: dict[int, int] = {}
            for source, target in self.tasks[index].inplace:
                fits = ranges.last[source] == step and self.sizes[source] == self.sizes[target]
                if fits and source not in taken and target not in sources:
                    sources[target] = source
                    taken.add(source)
            block = _ContiguousBlock(step)
            for value in steps[index].outputs:
                buffer = self._buffer_of.get(value)
                if buffer is None or place[value] != "arena":
                    continue
                first, last = ranges.first[buffer], ranges.last[buffer]
                block.append(buffer, self.sizes[buffer], first, last, sources.get(buffer))
                if buffer in sources:
                    block.first = min(block.first, ranges.first[sources[buffer]])
            found.append(block)
        return found

    def releases(self, ranges: _LiveRanges) -> dict[int, list[Value]]:
        """Return, for each position in the order, the dynamic storages that no later step needs."""
        kept = {self._placement.root[r.value] for r in self._placement.results}
        found: dict[int, list[Value]] = {}
        for buffer, value in enumerate(self._written):
            if self._placement.place[value] == "dynamic" and value not in kept:
                found.setdefault(ranges.needed[buffer], []).append(value)
        return found

    def _buffers(self, values: Iterable[Value]) -> tuple[int, ...]:
        """Return the buffers of values, without duplicates and values that no step writes."""
        number = self._buffer_of
        return tuple(dict.fromkeys([number[v] for v in values if v in number]))

    def _in_arena(self, pairs: Sequence[tuple[Value, Value]]) -> tuple[tuple[int, int], ...]:
        """Return the in-place pairs whose operand is in the arena, as buffers."""
        place, number = self._placement.place, self._buffer_of
        return tuple((number[s], number[t]) for s, t in pairs if place[s] == "arena" and s in number)


class _LiveRanges:
    """The live range of each buffer in an order of steps.

    Attributes:
        first: The step that writes the buffer.
        last: The last step that reads its elements.
        needed: The last step that needs the buffer, possibly only for its shape.
    """

    def __init__(self, tasks: Sequence[Task], order: Sequence[int], buffers: int):
        self.first = [0] * buffers
        self.last = [0] * buffers
        self.needed = [0] * buffers
        for step, index in enumerate(order):
            for buffer in tasks[index].writes:
                self.first[buffer] = self.last[buffer] = self.needed[buffer] = step
            for buffer in tasks[index].reads:
                self.last[buffer] = step
            for buffer in tasks[index].after:
                self.needed[buffer] = step


def _partly_read(placement: Placement) -> dict[Node, list[Value]]:
    """Return the steps that read only the shape of an operand, with the storages whose elements they read."""
    found = [node for node in placement.steps if getattr(node.op, "shape_only", ())]
    return {node: [placement.root[v] for v in elements_read(node)] for node in found}


def _dependencies(node: Node, placement: Placement) -> list[Value]:
    """Return the storages that must be written before the node may run."""
    root, view_dependencies = placement.root, placement.view_dependencies
    if not view_dependencies:
        return [root[v] for v in node.operands]
    return [storage for v in node.operands for storage in (root[v], *view_dependencies.get(v, ()))]


def _inplace_pairs(node: Node, placement: Placement, permitted: Sequence[tuple[int, int]]) -> list[tuple[Value, Value]]:
    """Return the pairs (storage read, output) that may share memory.

    If several operands are views of the storage, each of them must permit it and have the shape of the output. Then
    every element is read before it is overwritten.

    permitted: Pairs of positions (input, output) that the kernel permits.
    """
    if not permitted:
        return []
    root, allowed = placement.root, set(permitted)
    readers: dict[Value, list[tuple[int, Value]]] = {}  # for each storage, its operands and their positions
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
            fits[pair] = True
            for i, v in readers[pair[0]]:
                if (i, index) not in allowed or not _has_equal_size(v, output):
                    fits[pair] = False
                    break
    return [pair for pair, is_fitting in fits.items() if is_fitting]


def _has_equal_size(a: Value, b: Value) -> bool:
    """Return whether two tensors have the same shape, and elements of the same number of bytes."""
    if a.type is b.type:
        return True
    x, y = a.tensor, b.tensor
    return x.shape == y.shape and (x.dtype is y.dtype or x.dtype.itemsize == y.dtype.itemsize)
