"""Which device of one process computes each node, for groups of nodes that are placed on devices.

A node of a group is computed on the group's device, control flow with all that is inside. A node without a group is
computed on the default device where one is given, unless all that comes of it are new values of parameters and states.
Otherwise it is computed where most bytes of its operands are (at the first of equal ones); what depends on fed inputs
and constants alone, where it is read first. A parameter or state is on the device of the first node that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphkit.ir.context import GROUP
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ops import DOMAIN
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import groups_of, is_control
from graphkit.passes.distribution.homes import is_told, sources_of, tensor_bytes

STORED = ("parameter", "state")


class Places(NamedTuple):
    """Places, by number, of a graph.

    nodes: computed nodes, each after its operands. of: the place of each node, except those without operands, which are
    computed wherever they are read. homes: of parameters and states. told: values whose elements follow from the sizes
    of fed inputs, which need not be computed. sources: for each of these sizes, the fed input and axis that determine
    it.
    """

    graph: Graph
    nodes: Sequence[Node]
    of: Mapping[Node, int]
    homes: Mapping[Value, int]
    told: frozenset[Value]
    sources: Mapping[str, tuple[Value, int]]
    fallback: int

    def home(self, value: Value) -> int | None:
        """Where a value is; None for what is anywhere."""
        if value in self.told:
            return None
        return self.homes.get(value) if value.node is None else self.of.get(value.node)


def find_places(
    graph: Graph, groups: Mapping[str, int], default: int | None, kept: Mapping[str, int] | None = None
) -> Places:
    """The places of a graph's nodes for groups on places; `kept` are homes of parameters and states, by name. Linear.

    What neither a rule nor a reader places is at the default place, or else at that of the first group.
    """
    sources = sources_of(v for v in graph.inputs if v.role not in STORED)
    told = frozenset(
        v for node in graph.nodes if node.operands and not is_control(node) for v in node.outputs if is_told(v, sources)
    )
    nodes = topological([*graph.outputs, *(new for _, new in graph.updates)], stop=told)
    fallback = default if default is not None else next(iter(groups.values()), 0)
    stored = [v for v in graph.inputs if v.role in STORED]
    given = {v: kept[name] for v in stored if kept and (name := graph.name_of(v)) in kept}
    # Where a graph has no group's nodes, as one of updates alone, those say it that parameters were made in.
    made_in = {v: groups[group] for v in stored if (group := str(v.attrs.get(GROUP))) in groups}
    finder = _Finder(graph, nodes, told, groups, default, fallback)
    homes = {**finder.first_readers(finder.places({**made_in, **given})), **given}
    of = finder.places(homes)
    for state, new in graph.updates:
        homes.setdefault(state, of.get(new.node, fallback) if new.node is not None else fallback)
    for value in stored:
        homes.setdefault(value, fallback)
    return Places(graph, nodes, of, homes, told, sources, fallback)


class _Finder:
    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        told: frozenset[Value],
        groups: Mapping[str, int],
        default: int | None,
        fallback: int,
    ):
        self._nodes, self._told, self._groups = nodes, told, groups
        self._default, self._fallback = default, fallback
        # Nodes of which nothing comes but new values of states, which follow their operands.
        read: set[Value] = set(graph.outputs)
        self._writing: set[Node] = set()
        for node in reversed(nodes):
            if read.isdisjoint(node.outputs):
                self._writing.add(node)
            else:
                read.update(node.operands)

    def places(self, homes: Mapping[Value, int]) -> dict[Node, int]:
        of: dict[Node, int] = {}
        for node in self._nodes:
            if node.operands and (place := self._place(node, homes, of)) is not None:
                of[node] = place
        first: dict[Node, int] = {}  # the place of the first reader; reversed, readers come before what they read
        for node in reversed(self._nodes):
            if not node.operands:
                continue
            place = of.setdefault(node, first.get(node, self._fallback))
            for value in node.operands:
                if value.node is not None and value not in self._told:
                    first[value.node] = place
        return of

    def _place(self, node: Node, homes: Mapping[Value, int], of: Mapping[Node, int]) -> int | None:
        if (group := _group(node)) is not None:
            return self._groups.get(group, self._default)
        orders = is_op(node, "ControlDependency", domain=DOMAIN)
        if self._default is not None and not orders and node not in self._writing:
            return self._default
        weights: dict[int, int] = {}
        for value in dict.fromkeys(node.operands[:1] if orders else node.operands):
            place = homes.get(value) if value.node is None else of.get(value.node)
            if place is not None and value not in self._told:
                weights[place] = weights.get(place, 0) + tensor_bytes(value)
        return max(weights, key=weights.__getitem__) if weights else None

    def first_readers(self, of: Mapping[Node, int]) -> dict[Value, int]:
        found: dict[Value, int] = {}
        for node in self._nodes:
            for value in node.operands:
                if value.role in STORED and value.node is None:
                    found.setdefault(value, of[node])
        return found


def _group(node: Node) -> str | None:
    """The group of a node; of control flow that has none, the first one inside."""
    if (group := node.meta.get(GROUP)) is not None or not is_control(node):
        return group
    return next((found for inner in node.op.subgraphs().values() for found in groups_of(inner)), None)
