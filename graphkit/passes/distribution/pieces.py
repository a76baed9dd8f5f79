"""Cut a graph with nodes at several places (devices) into pieces: graphs that each belong to one place.

A piece needs only values of earlier pieces. The order is greedy: all nodes that can run at one place are run before
those at another place.

States are written by separate `late` pieces, one for each place, after all other pieces. They contain optimizer updates
and pointwise nodes that compute only new values of states. Nothing in them can fail because of the data, so a new value
may overwrite the old one. Late pieces do not depend on each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from graphkit.collector import without_gc
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN
from graphkit.passes.core.match import is_op
from graphkit.passes.distribution.homes import sources_of
from graphkit.passes.distribution.places import Places


class Piece(NamedTuple):
    """A part of the graph that one place computes without interruption.

    Attributes:
        place: The place.
        graph: The graph. Its updates are those of states of the whole graph.
        inputs: The values of the whole graph that its inputs receive.
        outputs: The values of the whole graph that its outputs return.
        late: Whether it writes states. Then it has no outputs.
    """

    place: int
    graph: Graph
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    late: bool


@without_gc
def cut(places: Places, asynchronous: Sequence[bool]) -> list[Piece]:
    """Return the pieces of a graph in the order in which they run. Takes time linear in nodes times places.

    asynchronous: By place, whether it works in parallel to the other places. Such places get their turn first.
    """
    late = _late_nodes(places)
    turns = _turns([node for node in places.nodes if node not in late and node in places.of], places, asynchronous)
    builders = [_Builder(places, place, nodes) for place, nodes in turns]
    writers = {
        place: _Builder(places, place, [node for node in places.nodes if node in late and places.of[node] == place])
        for place in sorted(
            {places.homes[state] for state, _ in places.graph.updates}, key=lambda p: not asynchronous[p]
        )
    }
    makers = {value: builder for builder in builders for node in builder.nodes for value in node.outputs}
    for value in dict.fromkeys(places.graph.outputs):
        if value not in makers:  # an input, a constant, or a value that sizes determine
            home = places.home(value)
            makers[value] = _last_piece_of(builders, places, home if home is not None else places.fallback)
        makers[value].outputs[value] = None
    with context.detached():
        for builder in (*builders, *writers.values()):
            builder.build()
        for state, new in places.graph.updates:
            builder = writers[places.homes[state]]
            builder.updates.append((builder.at(state), builder.at(new)))
        for builder in (*builders, *writers.values()):
            for value in builder.inputs:
                if value.node is not None:
                    makers[value].outputs[value] = None
        return [*(b.piece(late=False) for b in builders), *(b.piece(late=True) for b in writers.values())]


def _last_piece_of(builders: list[_Builder], places: Places, place: int) -> _Builder:
    """Return the last piece of a place, to return a value that it does not compute. Makes one if there is none."""
    found = next((b for b in reversed(builders) if b.place == place), None)
    if found is None:
        found = _Builder(places, place, [])
        builders.append(found)
    return found


def _late_nodes(places: Places) -> set[Node]:
    """Return the nodes that cannot fail, and from which only new values of states at the same place are computed."""
    outputs, written = set(places.graph.outputs), {state for state, _ in places.graph.updates}
    states: dict[Value, list[Value]] = {}
    for state, new in places.graph.updates:
        states.setdefault(new, []).append(state)
    readers = _readers(places.nodes)
    late: set[Node] = set()
    for node in reversed(places.nodes):
        place = places.of.get(node)
        if (
            place is not None
            and _cannot_fail(node)
            and outputs.isdisjoint(node.outputs)
            and all(r in late and places.of[r] == place for v in node.outputs for r in readers.get(v, ()))
            and all(places.homes[state] == place for v in node.outputs for state in states.get(v, ()))
            and all(places.homes[v] == place for v in node.operands if v in written)
        ):
            late.add(node)
    return late


def _cannot_fail(node: Node) -> bool:
    """Return whether a node is an optimizer update or pointwise floating-point arithmetic, which is defined for all
    operands.
    """
    if getattr(node.op, "is_update", False):
        return True
    kinds = [v.type for v in (*node.operands, *node.outputs)]
    return getattr(node.op, "pointwise", False) and all(isinstance(t, TensorType) and t.dtype.is_float for t in kinds)


def _readers(nodes: Iterable[Node]) -> dict[Value, list[Node]]:
    readers: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.operands):
            readers.setdefault(value, []).append(node)
    return readers


def _turns(nodes: Sequence[Node], places: Places, asynchronous: Sequence[bool]) -> list[tuple[int, list[Node]]]:
    """Return (place, nodes) for each turn. Tries each place as the first one, and returns the fewest turns."""
    readers, here = _readers(nodes), set(nodes)
    needs = {
        node: len({v.node for v in node.operands if v.node in here and v not in places.shape_values}) for node in nodes
    }
    orders = [_greedy(places, needs, readers, asynchronous, first) for first in dict.fromkeys(places.of.values())]
    return min(orders, key=len, default=[])


def _greedy(
    places: Places,
    needs: Mapping[Node, int],
    readers: Mapping[Value, Sequence[Node]],
    asynchronous: Sequence[bool],
    first: int,
) -> list[tuple[int, list[Node]]]:
    waiting = dict(needs)
    ready: dict[int, deque[Node]] = {place: deque() for place in dict.fromkeys(places.of.values())}
    for node, count in needs.items():
        if not count:
            ready[places.of[node]].append(node)
    turns: list[tuple[int, list[Node]]] = []
    place = first
    while any(ready.values()):
        if not ready[place]:
            place = max((p for p in ready if ready[p]), key=lambda p: (asynchronous[p], len(ready[p])))
        turn: list[Node] = []
        while ready[place]:
            node = ready[place].popleft()
            turn.append(node)
            for reader in dict.fromkeys(
                r for v in node.outputs if v not in places.shape_values for r in readers.get(v, ())
            ):
                waiting[reader] -= 1
                if not waiting[reader]:
                    ready[places.of[reader]].append(reader)
        turns.append((place, turn))
    return turns


class _Builder:
    """Builds one piece.

    Attributes:
        table: The values of the piece, by those of the whole graph.
        inputs: The inputs of the piece, by values of other pieces or inputs of the whole graph.
        outputs: The values of the whole graph that it returns.
    """

    def __init__(self, places: Places, place: int, nodes: list[Node]):
        self.places, self.place, self.nodes = places, place, nodes
        self.table: dict[Value, Value] = {}
        self.inputs: dict[Value, Value] = {}
        self.outputs: dict[Value, None] = {}
        self.updates: list[tuple[Value, Value]] = []

    def build(self) -> None:
        for node in self.nodes:
            if is_op(node, "ControlDependency", domain=DOMAIN) and node.operands[1] not in self.table:
                self.table[node.output] = self.at(node.operands[0])  # the order of the pieces is enough
                continue
            made = node.rebuilt([None if v is None else self.at(v) for v in node.inputs])
            self.table.update(zip(node.outputs, made.outputs, strict=True))

    def at(self, value: Value) -> Value:
        """Return the value of the piece for a value of the whole graph."""
        if value not in self.table:
            if value in self.places.shape_values:
                self.table[value] = self._elements(value)
            elif value.node is not None and not value.node.operands:
                self.table[value] = value  # computed wherever it is read
            else:
                self.table[value] = self.inputs[value] = self._input(value)
        return self.table[value]

    def _input(self, value: Value) -> Value:
        return value if value.node is None else Value(value.type, self.places.graph.name_of(value))

    def _elements(self, value: Value) -> Value:
        from graphkit.ops.internal.transfer import Elements

        kind = value.tensor
        assert kind.value is not None, "its elements follow from its type"
        symbols = tuple(sorted({s for d in kind.value if not isinstance(d, int) for s in d.symbols}))
        local_sources = sources_of(self.inputs.values())
        found = [local_sources[s] if s in local_sources else self._fed(s) for s in symbols]
        op = Elements(
            dtype=kind.dtype, shape=kind.static_shape, elements=tuple(map(str, kind.value)), symbols=symbols,
            axes=tuple(axis for _, axis in found),
        )  # fmt: skip
        return Node(op, [like for like, _ in found], output_names=[value.name]).output

    def _fed(self, symbol: str) -> tuple[Value, int]:
        value, axis = self.places.sources[symbol]
        return self.at(value), axis

    def piece(self, *, late: bool) -> Piece:
        whole = self.places.graph
        graph = Graph(
            self.inputs.values(), [self.at(v) for v in self.outputs], self.updates, f"{whole.name}_{self.place}",
            output_names=[whole.name_of(v) for v in self.outputs],
        )  # fmt: skip
        return Piece(self.place, graph, tuple(self.inputs), tuple(self.outputs), late)
