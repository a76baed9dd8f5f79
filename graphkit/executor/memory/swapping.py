"""Which values of a program wait in the host's memory between their readers, on a device with memory of its own.

After Yu et al., 2018, "Dynamic control flow in large-scale machine learning", section 5.3. A copy takes its time beside
the steps of the program: it is given as long as these need to read and write COPIES times its bytes. Until then the
memory that it reads is not used again; as long before a value is read, the copy back begins, to memory of its own.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence, Set
from itertools import accumulate, pairwise
from typing import NamedTuple

from graphkit.executor.memory.placement import Placement, has_fixed_size
from graphkit.ir import context
from graphkit.ir.collector import uncollected
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.internal.swap import SwapIn, SwapOut
from graphkit.passes.core.sweep import elements_read
from graphkit.passes.training.swap import is_swapped

# The time of a copy, in the bytes that steps read and write meanwhile. Memory of a card is faster than its way to the
# host by several times this, but steps compute as well.
COPIES = 8

# Less takes no memory to speak of.
LEAST_BYTES = 1 << 16


class _Time:
    """How long steps take, by their positions in an order: the bytes that they read and write."""

    def __init__(self, placement: Placement, order: Sequence[int]):
        self._until = [0, *accumulate(_touched(placement.steps[index], placement) for index in order)]

    def after(self, position: int, nbytes: int) -> int:
        """The first position before which a copy of so many bytes is done that begins behind a step; it may be behind
        the last one.
        """
        begin = position + 1
        return min(bisect.bisect_left(self._until, self._until[begin] + COPIES * nbytes, begin), len(self._until) - 1)

    def between(self, positions: tuple[int, int]) -> int:
        """The time of the steps behind one position and before another."""
        first, last = positions
        return self._until[last] - self._until[first + 1]

    def before(self, position: int, nbytes: int) -> int:
        """The last position behind which a copy has to begin that is done before a step; it may be -1."""
        return bisect.bisect_right(self._until, self._until[position] - COPIES * nbytes, 0, position + 1) - 2


def _touched(node: Node, placement: Placement) -> int:
    """Bytes that a step reads and writes; those of copies are beside the steps."""
    if placement.swapped_by(node) is not None:
        return 0
    values = {*elements_read(node), *(v for v in node.outputs if v in placement.used)}
    return sum(v.tensor.nbytes for v in values if has_fixed_size(v))


def awaited_copies(placement: Placement, order: Sequence[int]) -> dict[int, list[Value]]:
    """By position in an order, the copies that are done before the step there: of SwapOut by what it writes to the
    host's memory, of SwapIn by its result. Linear, but for the look at how long they take.
    """
    copies = {node: index for index, node in enumerate(placement.steps) if placement.swapped_by(node) is not None}
    if not copies:
        return {}
    time, found = _Time(placement, order), dict[int, list[Value]]()
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
        elif (done := time.after(position, node.output.tensor.nbytes)) < len(order):
            found.setdefault(done, []).append(node.output)
    return found


class Swapped(NamedTuple):
    """A graph in which values wait in the host's memory: the order of its steps, what nodes have become, and what
    stacks have.
    """

    graph: Graph
    order: Sequence[Node]
    became: Mapping[Node, Node]
    stacks: Sequence[Value]


class _Swap(NamedTuple):
    """A value that leaves the device behind the step that writes it, and comes back behind the one at `begin`, for
    those from `read` on.
    """

    value: Value
    begin: int
    read: int


def swap_marked(
    graph: Graph, placement: Placement, order: Sequence[int], stacks: Set[Value] = frozenset()
) -> Swapped | None:
    """Put SwapOut and SwapIn around the longest time in which nothing reads a value, of nodes that are marked
    (`is_swapped`): where both copies have their time within, and the value has LEAST_BYTES.

    placement, order: of the steps of `graph` as they would run without; stacks: what loops put into the host's memory
    row by row. None where there is nothing to swap. Inputs, parameters and results stay; so does what is inside of
    branches and loops. n log n.
    """
    marked = [node for node in placement.steps if is_swapped(node)]
    swaps = _chosen(marked, placement, order, stacks) if marked else []
    return _Rewriting(graph, placement, order, swaps).result(stacks) if swaps or stacks else None


def _chosen(marked: Sequence[Node], placement: Placement, order: Sequence[int], stacks: Set[Value]) -> list[_Swap]:
    steps, place = placement.steps, placement.place
    found: dict[Value, list[int]] = {}  # where each is written and read
    for node in marked:
        for value in node.outputs:
            if value in placement.used and place[value] == "arena" and value.tensor.nbytes >= LEAST_BYTES:
                found[value] = []
    for value in stacks:
        del found[value]
    for position, index in enumerate(order):
        for value in (*elements_read(steps[index]), *steps[index].outputs):
            if (touched := found.get(placement.root.get(value, value))) is not None:
                touched.append(position)
    time = _Time(placement, order)
    swaps = []
    for value, touched in found.items():
        last, read = max(pairwise(touched), key=time.between, default=(0, 0))
        left = max(last, time.after(touched[0], value.tensor.nbytes))
        begin = time.before(read, value.tensor.nbytes)
        # Whatever the token is, it lies in the arena, as no result of an update does.
        while begin > left and _token(steps[order[begin]], placement) is None:
            begin -= 1
        if begin > left:
            swaps.append(_Swap(value, begin, read))
    return swaps


def _token(node: Node, placement: Placement) -> Value | None:
    """A result of a step that others may come behind."""
    return next((v for v in node.outputs if v in placement.used and placement.place[v] == "arena"), None)


class _Rewriting:
    """The graph with swaps, made step by step in the order of its program."""

    def __init__(self, graph: Graph, placement: Placement, order: Sequence[int], swaps: Sequence[_Swap]):
        self._graph, self._placement, self._order = graph, placement, order
        self._leaves: dict[Node, list[Value]] = {}
        self._comes: dict[int, list[Value]] = {}
        self._read = {swap.value: swap.read for swap in swaps}
        for swap in swaps:
            assert swap.value.node is not None, "a step has made it"
            self._leaves.setdefault(swap.value.node, []).append(swap.value)
            self._comes.setdefault(swap.begin, []).append(swap.value)
        # What stands for a value; with True, for one that has come back, or a view of one.
        self._now: dict[tuple[Value, bool], Value] = {(value, False): value for value in graph.inputs}
        self._stored: dict[Value, Value] = {}
        self._waiting = {*placement.steps}
        self._became: dict[Node, Node] = {}
        self._made: list[Node] = []

    @uncollected
    def result(self, stacks: Set[Value]) -> Swapped:
        steps = self._placement.steps
        with context.detached():
            for position, index in enumerate(self._order):
                if steps[index] in self._waiting:
                    self._make(steps[index], position)
                token = _token(steps[index], self._placement)
                for value in self._comes.get(position, ()):
                    assert token is not None, "they begin behind a step that has one"
                    operands = [self._stored[value], self._now[token, False]]
                    self._now[value, True] = self._added(SwapIn(), operands, value)
            last = len(self._order)
            graph = Graph(
                self._graph.inputs,
                [self._standing(v, False, last) for v in self._graph.outputs],
                [(state, self._standing(new, False, last)) for state, new in self._graph.updates],
                self._graph.name,
                output_names=self._graph.output_names,
                meta=self._graph.meta,
            )
        return Swapped(graph, self._made, self._became, [self._now[stack, False] for stack in stacks])

    def _make(self, node: Node, position: int) -> None:
        """Make a step, where the program is at a position, and what lets go of its results."""
        self._waiting.discard(node)
        read = {v for v in elements_read(node) if self._is_back(v, position)}
        rebuilt = node.rebuilt([None if v is None else self._standing(v, v in read, position) for v in node.inputs])
        self._became[node] = rebuilt
        self._made.append(rebuilt)
        self._now.update(((old, False), new) for old, new in zip(node.outputs, rebuilt.outputs, strict=True))
        for value in self._leaves.get(node, ()):
            self._stored[value] = self._added(SwapOut(), [self._now[value, False]], value)

    def _added(self, op: SwapOut | SwapIn, operands: Sequence[Value], value: Value) -> Value:
        """The result of another step, for a value of the graph."""
        assert value.node is not None, "a step has made it"
        self._made.append(Node(op, operands, value.node.name and f"{value.node.name}_{op.name.lower()}"))
        return self._made[-1].output

    def _is_back(self, value: Value, position: int) -> bool:
        """Whether the step there reads a value that was away, or a view of one."""
        read = self._read.get(self._placement.root[value])
        return read is not None and position >= read

    def _standing(self, value: Value, back: bool, position: int) -> Value:
        """What stands for a value: views and constants are made when they are met, and so are steps that tell sizes of
        views, which may come later in the order, since nobody has to know.
        """
        stack = [(value, back)]
        while (value, back) not in self._now:
            at, back_there = stack[-1]
            if (at, back_there) in self._now:
                stack.pop()
                continue
            assert at.node is not None, "inputs are there"
            if at.node in self._waiting:
                self._make(at.node, position)
                continue
            before = [None if v is None else (v, back_there and self._is_of(v, at)) for v in at.node.inputs]
            missing = [key for key in before if key is not None and key not in self._now]
            if missing:
                stack += missing
                continue
            rebuilt = at.node.rebuilt([None if key is None else self._now[key] for key in before])
            self._now.update(((v, back_there), new) for v, new in zip(at.node.outputs, rebuilt.outputs, strict=True))
            stack.pop()
        return self._now[value, back]

    def _is_of(self, operand: Value, view: Value) -> bool:
        """Whether a view is one of the memory that an operand lies in."""
        root = self._placement.root
        return root.get(operand) is root[view]
