"""Divide a graph into views that fit on a page, and lay out the boxes and edges of each view.

A graph and each subgraph of its control-flow nodes get a view of their own. If a graph has more than MOST_NODES nodes,
consecutive nodes with a common name prefix share a box, which opens a view of these nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphkit.ir.drawing import shortened, sizes
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.layered import Box, arranged, vertical
from graphkit.passes.core.captures import captured
from graphkit.passes.core.sweep import is_control
from graphkit.report.network import grouped

# Largest number of nodes that a view draws one by one.
MOST_NODES = 5_000


@dataclass(eq=False)
class Entry:
    """A node of a graph or subgraph.

    prefix: The names of the nodes and subgraphs that contain it, as profiles write them: `outer/then/inner/body/`.
    bodies: The views of its subgraphs, by attribute.
    """

    graph: Graph
    node: Node
    prefix: str
    view: int = -1
    item: int = -1
    bodies: dict[str, int] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The name of the node after its prefix."""
        return self.prefix + self.graph.node_name(self.node)


@dataclass(frozen=True)
class Item:
    """A box of a view. kind: "input", "output", "node" or "group".

    entry: Number of the node; for an input or output, of the node that computes the value, or -1.
    opens: Number of the view that a group opens, or -1.
    value: The value of an input or output.
    """

    kind: str
    name: str
    box: Box
    entry: int = -1
    opens: int = -1
    value: Value | None = None


@dataclass
class View:
    """A drawing. edges: source, target, and the x and y of each point between them. parent: -1 for the main view."""

    title: str
    parent: int
    items: list[Item] = field(default_factory=list)
    edges: list[tuple[int, int, list[float]]] = field(default_factory=list)
    middles: list[float] = field(default_factory=list)
    height: float = 0.0


@dataclass
class Drawing:
    """All views of a graph and its subgraphs, the main one first, and all their nodes except constants."""

    views: list[View] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    # Inputs of subgraphs, and the values outside that they capture.
    outer: dict[Value, Value] = field(default_factory=dict)
    numbers: dict[Node, int] = field(default_factory=dict)

    def origin(self, value: Value) -> Value:
        """Return the value outside of all subgraphs that an input of a subgraph captures; otherwise the value."""
        while value in self.outer:
            value = self.outer[value]
        return value

    def is_stored(self, value: Value) -> bool:
        """Whether a value is a parameter, a state or a constant. No edges are drawn for these."""
        value = self.origin(value)
        return value.role != "data" or (value.node is not None and is_constant(value.node))


def is_constant(node: Node) -> bool:
    """Whether a node is a constant."""
    return node.op.name == "Constant" and not node.op.domain


def drawing_of(graph: Graph) -> Drawing:
    """Return the views of a graph. Takes time linear in the number of nodes and edges, except for sorting."""
    return _Maker().made(graph)


@dataclass(frozen=True)
class _Scope:
    """A graph or subgraph. reads: for each value, how many nodes read it; outputs count as well."""

    graph: Graph
    reads: Mapping[Value, int]
    outputs: Sequence[tuple[str, Value]]


@dataclass(frozen=True)
class _Task:
    """A view that is not drawn yet. inputs: values that have a box even if no node reads them.

    is_whole: Whether it is the view of a whole graph, and not of a group of its nodes.
    """

    number: int
    scope: _Scope
    nodes: Sequence[Node]
    inputs: Sequence[Value] = ()
    is_whole: bool = False


class _Maker:
    def __init__(self) -> None:
        self.drawing = Drawing()
        self._tasks: deque[_Task] = deque()

    def made(self, graph: Graph) -> Drawing:
        self._add_graph(graph, graph.name or "unnamed", -1, "")
        while self._tasks:
            self._draw(self._tasks.popleft())
        return self.drawing

    def _add_view(self, title: str, parent: int) -> int:
        self.drawing.views.append(View(title, parent))
        return len(self.drawing.views) - 1

    def _add_graph(self, graph: Graph, title: str, parent: int, prefix: str) -> int:
        """Add the view of a graph or subgraph, and entries of its nodes."""
        number = self._add_view(title, parent)
        shown = [node for node in graph.nodes if not is_constant(node)]
        reads: dict[Value, int] = {}
        for node in shown:
            for value in dict.fromkeys(node.operands):
                reads[value] = reads.get(value, 0) + 1
            self.drawing.numbers[node] = len(self.drawing.entries)
            self.drawing.entries.append(Entry(graph, node, prefix))
        outputs = list(zip(graph.output_names, graph.outputs, strict=True))
        for _, value in outputs:
            reads[value] = reads.get(value, 0) + 1
        inputs = [value for value in graph.inputs if not self.drawing.is_stored(value)]
        self._tasks.append(_Task(number, _Scope(graph, reads, outputs), shown, inputs, True))
        return number

    def _draw(self, task: _Task) -> None:
        """Add the boxes and edges of a view, and tasks for the views that it opens."""
        drawing, graph = self.drawing, task.scope.graph
        view = drawing.views[task.number]
        made: dict[Value, Item] = {}
        inside = {value for node in task.nodes for value in node.outputs}
        read: dict[Value, int] = {}
        for node in task.nodes:
            for value in dict.fromkeys(node.operands):
                read[value] = read.get(value, 0) + 1
        for value in dict.fromkeys((*task.inputs, *read)):
            if value not in inside and not drawing.is_stored(value):
                made[value] = self._of_value("input", graph.name_of(value), value)
                view.items.append(made[value])
        edges: list[tuple[Box, Box]] = []
        for name, members in _parts(graph, task.nodes):
            item = self._group(task, name, members) if name else self._node(task, members[0])
            own = {value for node in members for value in node.outputs}
            operands = dict.fromkeys(v for node in members for v in node.operands if v in made and v not in own)
            edges += [(source, item.box) for source in dict.fromkeys(made[v].box for v in operands)]
            made |= dict.fromkeys(own, item)
            view.items.append(item)
        for name, value in self._results(task, inside, read):
            item = self._of_value("output", name, value)
            view.items.append(item)
            if value in made:
                edges.append((made[value].box, item.box))
        _arrange(view, edges)

    def _results(self, task: _Task, inside: set[Value], read: Mapping[Value, int]) -> Iterator[tuple[str, Value]]:
        """Yield the outputs of a view: outputs of the graph, and values that other views of the graph read."""
        listed: dict[Value, int] = {}
        for name, value in task.scope.outputs:
            if task.is_whole or value in inside:
                yield name, value
                listed[value] = listed.get(value, 0) + 1
        for node in task.nodes:
            for value in node.outputs:
                if task.scope.reads.get(value, 0) > read.get(value, 0) + listed.get(value, 0):
                    yield task.scope.graph.name_of(value), value

    def _of_value(self, kind: str, name: str, value: Value) -> Item:
        entry = -1 if value.node is None else self.drawing.numbers.get(value.node, -1)
        return Item(kind, name, Box((shortened(name), sizes(value)), kind), entry, value=value)

    def _node(self, task: _Task, node: Node) -> Item:
        drawing, graph = self.drawing, task.scope.graph
        number = drawing.numbers[node]
        entry, name = drawing.entries[number], graph.node_name(node)
        entry.view, entry.item = task.number, len(drawing.views[task.number].items)
        for part, body in node.op.subgraphs().items() if is_control(node) else ():
            drawing.outer |= {inner: outer for outer, inner in captured(node, body)}
            entry.bodies[part] = self._add_graph(
                body, f"{name}: {part}", task.number, f"{entry.path}/{part.removesuffix('_branch')}/"
            )
        lines = [shortened(node.op.name), *([shortened(name)] if name.lower() != node.op.name.lower() else [])]
        lines += [sizes(node.outputs[0])] if node.outputs else []
        return Item("node", name, Box(tuple(lines), "node"), number)

    def _group(self, task: _Task, name: str, members: Sequence[Node]) -> Item:
        number = self._add_view(name, task.number)
        self._tasks.append(_Task(number, task.scope, members))
        box = Box((shortened(name), f"{len(members):,} nodes"), "group")
        return Item("group", name, box, opens=number)


def _parts(graph: Graph, nodes: Sequence[Node]) -> Iterable[tuple[str, Sequence[Node]]]:
    """Return the boxes of a view: (name, nodes) of each group, and ("", [node]) of each single node."""
    if len(nodes) <= MOST_NODES:
        return [("", [node]) for node in nodes]
    parts = grouped(graph, nodes)
    if 1 < len(parts) <= MOST_NODES:
        return parts
    size = max(MOST_NODES, -(-len(nodes) // MOST_NODES))
    return [
        (f"nodes {i + 1:,} to {min(i + size, len(nodes)):,}", nodes[i : i + size]) for i in range(0, len(nodes), size)
    ]


def _arrange(view: View, edges: Sequence[tuple[Box, Box]]) -> None:
    """Set the places of boxes and the points of edges."""
    numbers = {item.box: i for i, item in enumerate(view.items)}
    layers, paths = arranged([item.box for item in view.items], edges)
    view.middles, view.height = vertical(layers)
    for path in paths:
        points = [coordinate for box in path[1:-1] for coordinate in (box.x, view.middles[box.layer])]
        view.edges.append((numbers[path[0]], numbers[path[-1]], points))
