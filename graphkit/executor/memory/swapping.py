"""Swap values of a program out to host memory and back in, on a device with its own memory.

After Yu et al., 2018, "Dynamic control flow in large-scale machine learning", section 5.3. Copies run at the same time
as the steps. A copy of n bytes is expected to take as long as steps that read and write COPY_COST * n bytes. After a
swap-out begins, the memory of the value is not reused for that time. A swap-in (prefetch) begins that long before the
value is read, and has its own memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence, Set
from itertools import accumulate, pairwise

from graphkit.collector import without_gc
from graphkit.executor.memory.placement import Placement, has_fixed_size
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.named_tuples import NamedTuple
from graphkit.ops.internal.swap import SwapIn, SwapOut
from graphkit.passes.core.sweep import elements_read
from graphkit.passes.training.swap import is_swapped

# Number of bytes that steps read and write in the time in which one byte is copied to the host. A GPU's memory is
# faster than its connection to the host by several times this number, but steps also compute.
COPY_COST = 8

# Smaller values are not swapped, because they save too little memory.
MIN_BYTES = 1 << 16


class _Timeline:
    """Estimated times of the steps of an order, in bytes that the steps read and write."""

    def __init__(self, placement: Placement, order: Sequence[int]):
        # The time at which each step begins, by position. The last number is the time of the whole order.
        self._begin = [0, *accumulate(_bytes_accessed(placement.steps[index], placement) for index in order)]

    def end_of_copy(self, position: int, nbytes: int) -> int:
        """Return the position of the first step that begins after a copy has ended.

        The copy begins after the step at `position`. The result is the length of the order if it ends after the last
        step.
        """
        first = position + 1
        return min(
            bisect.bisect_left(self._begin, self._begin[first] + COPY_COST * nbytes, first), len(self._begin) - 1
        )

    def between(self, positions: tuple[int, int]) -> int:
        """Return the time of the steps between two positions, without the steps at these positions."""
        first, last = positions
        return self._begin[last] - self._begin[first + 1]

    def begin_of_copy(self, position: int, nbytes: int) -> int:
        """Return the position of the last step after which a copy can begin.

        The copy must end before the step at `position`. The result is -1 if it must begin before the first step.
        """
        return bisect.bisect_right(self._begin, self._begin[position] - COPY_COST * nbytes, 0, position + 1) - 2


def _bytes_accessed(node: Node, placement: Placement) -> int:
    """Return the bytes that a step reads and writes; 0 for swaps, which run at the same time as other steps."""
    if placement.host_storage(node) is not None:
        return 0
    values = {*elements_read(node), *(v for v in node.outputs if v in placement.used)}
    return sum(v.tensor.nbytes for v in values if has_fixed_size(v))


def copy_deadlines(placement: Placement, order: Sequence[int]) -> dict[int, list[Value]]:
    """Return, for each position in an order, the copies that must be complete before the step there.

    A copy is identified by its destination: for SwapOut the storage in host memory, for SwapIn its result. Takes linear
    time, plus a binary search per copy.
    """
    copies = {node for node in placement.steps if placement.host_storage(node) is not None}
    if not copies:
        return {}
    timeline, found = _Timeline(placement, order), dict[int, list[Value]]()
    pending: set[Value] = set()
    for position, index in enumerate(order):
        node = placement.steps[index]
        for value in dict.fromkeys(placement.root[v] for v in elements_read(node)):
            if value in pending:
                pending.discard(value)
                found.setdefault(position, []).append(value)
        if node not in copies:
            continue
        if isinstance(node.op, SwapIn):
            pending.add(node.output)
        elif (done := timeline.end_of_copy(position, node.output.tensor.nbytes)) < len(order):
            found.setdefault(done, []).append(node.output)
    return found


class SwappedGraph(NamedTuple):
    """A graph with SwapOut and SwapIn nodes.

    Attributes:
        graph: The rewritten graph.
        order: The order of its steps.
        rebuilt: For each node of the original graph that is a step, its new node.
        stacks: The stacked values of loops that are in host memory, in the rewritten graph.
    """

    graph: Graph
    order: Sequence[Node]
    rebuilt: Mapping[Node, Node]
    stacks: Sequence[Value]


class _Swap(NamedTuple):
    """A value to swap. It is swapped out after the step that writes it.

    Attributes:
        value: The value.
        prefetch: The swap-in begins after the step at this position.
        next_read: The steps from this position on read the value that was swapped in.
    """

    value: Value
    prefetch: int
    next_read: int


def insert_swaps(
    graph: Graph, placement: Placement, order: Sequence[int], stacks: Set[Value] = frozenset()
) -> SwappedGraph | None:
    """Insert SwapOut and SwapIn nodes for results of nodes that are marked for swapping (`is_swapped`). O(n log n).

    A value is in host memory during the longest time in which no step reads it. It is swapped only if both copies fit
    into that time, and if it has at least MIN_BYTES. Inputs, parameters, results, and values inside branches and
    loops are not swapped.

    Args:
        graph: The graph.
        placement: Its storages without swaps.
        order: The order of its steps without swaps.
        stacks: Stacked values that loops write to host memory row by row.

    Returns:
        The rewritten graph, or None if there is nothing to swap.
    """
    marked = [node for node in placement.steps if is_swapped(node)]
    swaps = _choose_swaps(marked, placement, order, stacks) if marked else []
    return _SwapRewriter(graph, placement, order, swaps).rewrite(stacks) if swaps or stacks else None


def _choose_swaps(
    marked: Sequence[Node], placement: Placement, order: Sequence[int], stacks: Set[Value]
) -> list[_Swap]:
    """Return the values to swap, with the positions of their copies."""
    steps, place = placement.steps, placement.place
    found: dict[Value, list[int]] = {}  # the positions at which each value is written and read
    for node in marked:
        for value in node.outputs:
            if value in placement.used and place[value] == "arena" and value.tensor.nbytes >= MIN_BYTES:
                found[value] = []
    for value in stacks:
        del found[value]
    for position, index in enumerate(order):
        for value in (*elements_read(steps[index]), *steps[index].outputs):
            if (accesses := found.get(placement.root.get(value, value))) is not None:
                accesses.append(position)
    timeline = _Timeline(placement, order)
    swaps = []
    for value, accesses in found.items():
        last_read, next_read = max(pairwise(accesses), key=timeline.between, default=(0, 0))
        swapped_out = max(last_read, timeline.end_of_copy(accesses[0], value.tensor.nbytes))
        prefetch = timeline.begin_of_copy(next_read, value.tensor.nbytes)
        # The SwapIn depends on a result of the step after which it begins. Updates have none in the arena.
        while prefetch > swapped_out and _arena_result(steps[order[prefetch]], placement) is None:
            prefetch -= 1
        if prefetch > swapped_out:
            swaps.append(_Swap(value, prefetch, next_read))
    return swaps


def _arena_result(node: Node, placement: Placement) -> Value | None:
    """Return a result of a step that is in the arena, or None. A SwapIn depends on it to run after the step."""
    return next((v for v in node.outputs if v in placement.used and placement.place[v] == "arena"), None)


class _SwapRewriter:
    """Builds the graph with swaps, step by step in the order of the program."""

    def __init__(self, graph: Graph, placement: Placement, order: Sequence[int], swaps: Sequence[_Swap]):
        self._graph, self._placement, self._order = graph, placement, order
        # The values that are swapped out after a node, and those that are swapped in after a position.
        self._swap_outs: dict[Node, list[Value]] = {}
        self._swap_ins: dict[int, list[Value]] = {}
        self._next_read = {swap.value: swap.next_read for swap in swaps}
        for swap in swaps:
            assert swap.value.node is not None, "steps compute the swapped values"
            self._swap_outs.setdefault(swap.value.node, []).append(swap.value)
            self._swap_ins.setdefault(swap.prefetch, []).append(swap.value)
        # The new value of each original value, before (False) and after (True) its storage was swapped in.
        self._new_values: dict[tuple[Value, bool], Value] = {(value, False): value for value in graph.inputs}
        self._host_copies: dict[Value, Value] = {}
        self._unbuilt = {*placement.steps}
        self._rebuilt: dict[Node, Node] = {}
        self._new_steps: list[Node] = []

    @without_gc
    def rewrite(self, stacks: Set[Value]) -> SwappedGraph:
        """Return the rewritten graph. stacks: see `insert_swaps`."""
        steps = self._placement.steps
        with context.detached():
            for position, index in enumerate(self._order):
                if steps[index] in self._unbuilt:
                    self._rebuild_step(steps[index], position)
                previous = _arena_result(steps[index], self._placement)
                for value in self._swap_ins.get(position, ()):
                    assert previous is not None, "swap-ins are placed after a step with a result in the arena"
                    operands = [self._host_copies[value], self._new_values[previous, False]]
                    self._new_values[value, True] = self._add_swap(SwapIn(), operands, value)
            last = len(self._order)
            graph = Graph(
                self._graph.inputs,
                [self._new_value(v, False, last) for v in self._graph.outputs],
                [(state, self._new_value(new, False, last)) for state, new in self._graph.updates],
                self._graph.name,
                output_names=self._graph.output_names,
                meta=self._graph.meta,
            )
        new_stacks = [self._new_values[stack, False] for stack in stacks]
        return SwappedGraph(graph, self._new_steps, self._rebuilt, new_stacks)

    def _rebuild_step(self, node: Node, position: int) -> None:
        """Rebuild a step at a position in the order, and add the SwapOut nodes of its results."""
        self._unbuilt.discard(node)
        swapped_in = {v for v in elements_read(node) if self._is_swapped_in(v, position)}
        operands = [None if v is None else self._new_value(v, v in swapped_in, position) for v in node.inputs]
        rebuilt = node.rebuilt(operands)
        self._rebuilt[node] = rebuilt
        self._new_steps.append(rebuilt)
        self._new_values.update(((old, False), new) for old, new in zip(node.outputs, rebuilt.outputs, strict=True))
        for value in self._swap_outs.get(node, ()):
            self._host_copies[value] = self._add_swap(SwapOut(), [self._new_values[value, False]], value)

    def _add_swap(self, op: SwapOut | SwapIn, operands: Sequence[Value], value: Value) -> Value:
        """Add a SwapOut or SwapIn node for `value`, and return its result."""
        assert value.node is not None, "steps compute the swapped values"
        self._new_steps.append(Node(op, operands, value.node.name and f"{value.node.name}_{op.name.lower()}"))
        return self._new_steps[-1].output

    def _is_swapped_in(self, value: Value, position: int) -> bool:
        """Whether the storage of `value` was swapped in before the step at `position`."""
        next_read = self._next_read.get(self._placement.root[value])
        return next_read is not None and position >= next_read

    def _new_value(self, value: Value, swapped_in: bool, position: int) -> Value:
        """Return the new value for `value`. Its views and constants are rebuilt if necessary.

        A view may also depend on a step that only computes its shape. Such a step may come later in the order; then it
        is rebuilt now.
        """
        stack = [(value, swapped_in)]
        while (value, swapped_in) not in self._new_values:
            top, top_swapped_in = stack[-1]
            if (top, top_swapped_in) in self._new_values:
                stack.pop()
                continue
            assert top.node is not None, "the inputs of the graph are in _new_values"
            if top.node in self._unbuilt:
                self._rebuild_step(top.node, position)
                continue
            keys = [None if v is None else (v, top_swapped_in and self._is_view_of(top, v)) for v in top.node.inputs]
            missing = [key for key in keys if key is not None and key not in self._new_values]
            if missing:
                stack += missing
                continue
            rebuilt = top.node.rebuilt([None if key is None else self._new_values[key] for key in keys])
            outputs = zip(top.node.outputs, rebuilt.outputs, strict=True)
            self._new_values.update(((old, top_swapped_in), new) for old, new in outputs)
            stack.pop()
        return self._new_values[value, swapped_in]

    def _is_view_of(self, view: Value, operand: Value) -> bool:
        """Whether a view is in the storage of an operand."""
        root = self._placement.root
        return root.get(operand) is root[view]
