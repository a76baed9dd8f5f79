"""Choose the device of one process that computes each node, given devices for groups of nodes.

A node with a group is computed on the group's device. An If, Loop or Scan is on one device, including its subgraphs.

A node without a group is computed on the default device, if one is given. Nodes that compute only new values of
parameters and states are an exception. These, and all nodes if there is no default, are on the device that holds most
bytes of their operands (the first one of equal devices). If a node depends only on data inputs and constants, it is on
the device of its first reader.

A parameter or state is on the device of the first node that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphkit.ir.context import GROUP
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN
from graphkit.passes.core.match import is_op
from graphkit.passes.core.sweep import groups_of, is_control
from graphkit.passes.distribution.homes import is_shape_value, sources_of, tensor_bytes

STORED = ("parameter", "state")


class Places(NamedTuple):
    """The places (numbers of devices) of a graph.

    Attributes:
        graph: The graph.
        nodes: The nodes to compute, in topological order.
        of: The place of each node. Nodes without operands have none: they are computed wherever they are read.
        homes: The places of parameters and states.
        shape_values: The values whose elements follow from the sizes of data inputs. They need not be computed.
        sources: For each of these sizes, the data input and the axis that determine it.
        fallback: The place of nodes and states that no rule places.
    """

    graph: Graph
    nodes: Sequence[Node]
    of: Mapping[Node, int]
    homes: Mapping[Value, int]
    shape_values: frozenset[Value]
    sources: Mapping[str, tuple[Value, int]]
    fallback: int

    def home(self, value: Value) -> int | None:
        """Return the place of a value; None if it is available at each place."""
        if value in self.shape_values:
            return None
        return self.homes.get(value) if value.node is None else self.of.get(value.node)


def find_places(
    graph: Graph, groups: Mapping[str, int], default: int | None, kept: Mapping[str, int] | None = None
) -> Places:
    """Choose the places of a graph's nodes. Takes linear time.

    Nodes and states that no rule places are at the default place, or else at that of the first group.

    Args:
        graph: The graph.
        groups: The place of each group.
        default: The default place, or None.
        kept: The places of parameters and states that must not change, by name.
    """
    sources = sources_of(v for v in graph.inputs if v.role not in STORED)
    shape_values = frozenset(
        v
        for node in graph.nodes
        if node.operands and not is_control(node)
        for v in node.outputs
        if is_shape_value(v, sources)
    )
    nodes = topological([*graph.outputs, *(new for _, new in graph.updates)], stop=shape_values)
    fallback = default if default is not None else next(iter(groups.values()), 0)
    stored = [v for v in graph.inputs if v.role in STORED]
    given = {v: kept[name] for v in stored if kept and (name := graph.name_of(v)) in kept}
    # A graph of only updates may have no nodes with a group. Then use the group in which a parameter was created.
    made_in = {v: groups[group] for v in stored if (group := str(v.attrs.get(GROUP))) in groups}
    finder = _Finder(graph, nodes, shape_values, groups, default, fallback)
    homes = {**finder.first_readers(finder.places({**made_in, **given})), **given}
    of = finder.places(homes)
    for state, new in graph.updates:
        homes.setdefault(state, of.get(new.node, fallback) if new.node is not None else fallback)
    for value in stored:
        homes.setdefault(value, fallback)
    return Places(graph, nodes, of, homes, shape_values, sources, fallback)


class _Finder:
    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        shape_values: frozenset[Value],
        groups: Mapping[str, int],
        default: int | None,
        fallback: int,
    ):
        self._nodes, self._shape_values, self._groups = nodes, shape_values, groups
        self._default, self._fallback = default, fallback
        # Nodes that compute only new values of states. They are placed with their operands.
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
        first: dict[Node, int] = {}  # the place of the first reader. Reversed: readers come first
        for node in reversed(self._nodes):
            if not node.operands:
                continue
            place = of.setdefault(node, first.get(node, self._fallback))
            for value in node.operands:
                if value.node is not None and value not in self._shape_values:
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
            if place is not None and value not in self._shape_values:
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
    """Return the group of a node. If an If, Loop or Scan has none, it is the first group in its subgraphs."""
    if (group := node.meta.get(GROUP)) is not None or not is_control(node):
        return group
    return next((found for inner in node.op.subgraphs().values() for found in groups_of(inner)), None)
