"""Recompute forward values in the backward pass: backward nodes read copies of forward nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from graphkit.collector import without_gc
from graphkit.errors import UsageError
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ops import F
from graphkit.ops.internal.guard import FiniteGuard
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.sweep import elements_read, read_positions


def mirrored(graph: Graph, segments: Sequence[frozenset[Node]], kept: frozenset[Value] = frozenset()) -> Graph:
    """Return the graph with copies of the segments, which the backward part reads instead of the original values.

    The forward part consists of the nodes that the outputs depend on. The backward part consists of the other nodes,
    which compute the updates.

    A segment is recomputed when the gradient reaches it. To enforce this order, its inputs pass through
    ControlDependency. The token is a gradient that depends only on later parts of the graph. A segment that no gradient
    reaches is not copied. Takes linear time.

    Args:
        graph: A training step.
        segments: Disjoint sets of forward nodes, in their order.
        kept: Values that are not recomputed.
    """
    return _Mirror(graph, segments, kept).result()


@dataclass
class _Part:
    """A segment.

    Attributes:
        nodes: The nodes.
        end: The position of its last node in the graph.
        wanted: Its values that the backward part reads.
        token: The gradient that its copies wait for.
    """

    nodes: frozenset[Node]
    end: int
    wanted: dict[Value, None] = field(default_factory=dict)
    token: Value | None = None
    # The copies of its values, once they exist.
    copies: dict[Value, Value] | None = None


class _Mirror:
    def __init__(self, graph: Graph, segments: Sequence[frozenset[Node]], kept: frozenset[Value]):
        self._graph = graph
        self._forward = set(topological(graph.outputs))
        self._kept = kept
        self._place = {node: i for i, node in enumerate(graph.nodes)}
        self._parts = [_Part(nodes, max(map(self._place.__getitem__, nodes))) for nodes in segments]
        self._part_of = {node: i for i, part in enumerate(self._parts) for node in part.nodes}
        self._backward = [node for node in graph.nodes if node not in self._forward]
        self._table: dict[Value, Value] = {}
        self._find_tokens()

    def _segment(self, value: Value) -> int | None:
        """Return the index of the segment that recomputes a forward value; None if the value is kept."""
        if value.node is None or value in self._kept or getattr(value.node.op, "collective", False):
            return None
        return self._part_of.get(value.node)

    def _find_tokens(self) -> None:
        """Set `wanted` and `token` of the segments.

        For a backward node, `earliest` is the first segment whose copies it depends on. `latest` is the position of the
        last forward node, in or after a segment, whose value the backward part reads to compute it. The gradient
        reaches the segments from the last to the first. So a node whose `earliest` is a later segment does not depend
        on the copies of this one. A node whose `latest` is after the end of this segment has a gradient that has
        reached it.
        """
        earliest: dict[Node, float] = {}
        latest: dict[Node, int] = {}
        reached = self._behind_segments()
        for node in self._backward:
            # A FiniteGuard waits for the loss, but its results are not gradients.
            guards = isinstance(node.op, FiniteGuard)
            before = [v.node for v in node.operands[: 1 if guards else None] if v.node in earliest]
            first = min((earliest[n] for n in before), default=math.inf)
            last = max((latest[n] for n in before), default=-1)
            for value in elements_read(node):
                if value.node in reached and not guards:
                    last = max(last, self._place[value.node])
                if (segment := self._segment(value)) is not None:
                    self._parts[segment].wanted[value] = None
                    first = first if guards else min(first, segment)
            earliest[node], latest[node] = first, last
        best = [(-1, -1)] * len(self._parts)
        for node in self._backward:
            if earliest[node] == math.inf:
                continue
            segment = int(earliest[node])
            part = self._parts[segment]
            for value in node.operands:
                if value.node not in latest or earliest[value.node] <= segment or latest[value.node] <= part.end:
                    continue
                rank = (latest[value.node], self._place[value.node])
                if rank > best[segment]:
                    best[segment], part.token = rank, value

    def _behind_segments(self) -> set[Node]:
        """Return the forward nodes that are in a segment or depend on one."""
        found = set(self._part_of)
        for node in self._graph.nodes:
            if node in self._forward and any(v.node in found for v in node.operands):
                found.add(node)
        return found

    @without_gc
    def result(self) -> Graph:
        with context.detached():
            for node in self._ordered():
                read = set(read_positions(node))
                operands = [
                    None if v is None else self._copy(v) if i in read else self._table.get(v, v)
                    for i, v in enumerate(node.inputs)
                ]
                self._table.update(zip(node.outputs, node.rebuilt(operands).outputs, strict=True))
        updates = [(state, self._table.get(new, new)) for state, new in self._graph.updates]
        return self._graph.replace(updates=updates, output_names=self._graph.output_names)

    def _ordered(self) -> list[Node]:
        """Return the backward nodes in an order where each is after its operands and the tokens of its copies."""
        order: list[Node] = []
        done: dict[Node, bool] = {}
        backward = set(self._backward)
        for root in self._backward:
            stack = [root]
            while stack:
                node = stack[-1]
                if node not in done:
                    done[node] = False
                    stack += [n for n in self._before(node) if n in backward and n not in done]
                    if stack[-1] is not node:
                        continue
                stack.pop()
                if not done[node]:
                    done[node] = True
                    order.append(node)
        return order

    def _before(self, node: Node) -> list[Node]:
        found = [v.node for v in node.operands if v.node is not None]
        for value in elements_read(node):
            segment = self._segment(value)
            token = None if segment is None else self._parts[segment].token
            if token is not None and token.node is not None:
                found.append(token.node)
        return found

    def _copy(self, value: Value) -> Value:
        """Return the value that a backward node reads instead of `value`."""
        segment = self._segment(value)
        if segment is None or self._parts[segment].token is None:
            return self._table.get(value, value)
        part = self._parts[segment]
        if part.copies is None:
            part.copies = self._copies(part, segment)
        return part.copies[value]

    def _copies(self, part: _Part, segment: int) -> dict[Value, Value]:
        assert part.token is not None
        token = self._table.get(part.token, part.token)
        copies: dict[Value, Value] = {}
        delayed: dict[Value, Value] = {}
        for node in self._closure(part, segment):
            if is_undetermined(node):
                raise UsageError(
                    f"{node.describe()} would generate other random numbers when it is recomputed; call bind_rng first"
                )
            operands = [None if v is None else copies.get(v, v) for v in node.inputs]
            if not any(v in copies for v in node.operands):
                # To delay a node, it is enough to delay one of its operands.
                at = next(i for i, v in enumerate(operands) if v is not None)
                waiting = operands[at]
                assert waiting is not None
                if waiting not in delayed:
                    delayed[waiting] = F.control_dependency(waiting, token)
                operands[at] = delayed[waiting]
            copies.update(zip(node.outputs, node.rebuilt(operands).outputs, strict=True))
        return copies

    def _closure(self, part: _Part, segment: int) -> list[Node]:
        """Return the nodes of a segment that are needed to compute its wanted values, in forward order."""
        found: set[Node] = set()
        pending = [v.node for v in part.wanted if v.node is not None]
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += [v.node for v in node.operands if v.node is not None and self._segment(v) == segment]
        return sorted(found, key=self._place.__getitem__)
