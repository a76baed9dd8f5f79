"""Divide a graph into one graph for each rank. The ranks exchange values during a run, also in branches and loops.

The transfers follow TensorFlow (Abadi et al., OSDI 2016, section 4.4; Yu et al., "Dynamic control flow in large-scale
machine learning", EuroSys 2018), adapted to structured control flow:

- A value is sent once from its home to each rank that reads it.
- If the branches of an If have nodes on several ranks, each of these ranks has an If. Each rank gets the condition in
  one message. A branch receives values of other ranks inside the branch, so a branch that is not taken sends nothing.
- If the body of a Loop or Scan has nodes on several ranks, each of these ranks has a loop. Captures, scan inputs and
  initial states are sent once to each rank that reads them, before the loop begins. In each iteration, values and
  states are sent to the ranks that read them, and the condition to all of these ranks. There is no barrier: a rank may
  be ahead of another one, as far as data dependencies and the window of the channels allow.

There is no deadlock. Treat the send and the receive of a transfer as one event. The order in which this module makes
the transfers, and the If, Loop and Scan nodes that contain transfers, defines an order of events. In a run, the events
of a branch or an iteration take the place of the If or the loop. All ranks with a part of it get the same condition, so
they take the same branch, and run the same number of iterations. So all events of a run have one order, and the tokens
make each rank execute its own events in this order. Consider the first event that has not happened. Its two ranks have
executed all of their earlier events, and the computation before it needs no further event, so both ranks reach it. A
sender waits at most until the receiver has read an earlier value, which is an earlier event. So this event happens,
and by induction all of them, with any window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphkit.collector import without_gc
from graphkit.ir import context
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.names import Names
from graphkit.ops.control.views import is_if
from graphkit.passes.distribution.branches import divide_if
from graphkit.passes.distribution.homes import Homes, find_homes, sources_of
from graphkit.passes.distribution.levels import Level, Side, Transfers
from graphkit.passes.distribution.loops import divide_loop

_STORED = ("parameter", "state")


@dataclass(frozen=True)
class Part:
    """The part of a graph that one rank computes.

    Attributes:
        graph: Its inputs are all data inputs of the undivided graph, the parameters and states that are stored on this
            rank, and `start`. Its outputs are those that this rank needs, with their names, and `done`. Its updates are
            those of the states on this rank.
        start: The name of the first token. It may be fed with any number.
        done: The name of the last token, which must be computed.
    """

    graph: Graph
    start: str
    done: str

    @property
    def token(self) -> Value:
        """The last token."""
        return self.graph.outputs[self.graph.output_names.index(self.done)]


class _Outermost(Level):
    """The undivided graph. All ranks have its data inputs. Parameters and states are on their home rank.

    Inputs keep their names.
    """

    def __init__(self, graph: Graph, homes: Homes, transfers: Transfers):
        super().__init__(graph, homes, transfers, "")
        names = zip(graph.inputs, graph.input_names, strict=True)
        self.inputs = {v: v if v.name == name else v.like(name=name) for v, name in names}

    def make_input(self, side: Side, value: Value) -> Value:
        home = self.homes.of[value]
        if home not in (None, side.rank):
            self.transfer(value, home, side.rank)
            return side.table[value]
        return self.inputs[value]

    def outermost_input(self, side: Side, source: Value) -> Value:
        return self.inputs[source]


@dataclass(frozen=True)
class Placement:
    """The ranks of the values of a graph. owners: the rank of each parameter and state. homes: see Homes."""

    graph: Graph
    groups: Mapping[str, int]
    owners: Mapping[Value, int]
    homes: Homes

    def home(self, value: Value) -> int | None:
        """Return the rank that computes a value; None: each rank that reads it."""
        return self.homes.of[value]


def place(
    graph: Graph,
    groups: Mapping[str, int],
    owners: Mapping[str, int] | None = None,
    pinned: Mapping[Value, int] | None = None,
) -> Placement:
    """Choose the ranks that compute the values of a graph.

    Args:
        graph: The graph.
        groups: The rank of each group of nodes.
        owners: The ranks of parameters and states, by name. Others are stored on the first rank that reads them.
        pinned: The ranks of values whose nodes have no group.
    """
    symbols = frozenset(_sources(graph))
    nodes = {v.node: rank for v, rank in (pinned or {}).items() if v.node is not None}
    stored = [v for v in graph.inputs if v.role in _STORED]
    given = {v: owners[graph.name_of(v)] for v in stored if owners and graph.name_of(v) in owners}
    homes = find_homes(graph, groups, given, symbols, nodes)
    if any(v not in given for v in stored):
        readers = _first_readers(graph, homes, [v for v in stored if v not in given])
        given = {v: given.get(v, readers.get(v, 0)) for v in stored}
        homes = find_homes(graph, groups, given, symbols, nodes)
    return Placement(graph, groups, given, homes)


def _first_readers(graph: Graph, homes: Homes, wanted: Sequence[Value]) -> dict[Value, int]:
    """Return the first rank that needs each of these inputs, directly or to compute a value without a home."""
    found: dict[Value, int] = {}
    # For values without a home: the inputs on which they depend.
    behind: dict[Value, tuple[Value, ...]] = {v: (v,) for v in wanted}
    for node in graph.nodes:
        reads = dict.fromkeys(v for operand in node.operands for v in behind.get(operand, ()))
        if not reads:
            continue
        if node in homes.inner:
            for value in reads:
                if (rank := _reader_inside(node, homes, value, behind)) is not None:
                    found.setdefault(value, rank)
        elif (home := homes.nodes[node]) is not None:
            for value in reads:
                found.setdefault(value, home)
        behind.update((v, tuple(reads)) for v in node.outputs if homes.of[v] is None)
    return found


def _reader_inside(node: Node, homes: Homes, value: Value, behind: Mapping[Value, Sequence[Value]]) -> int | None:
    """Return the first rank that reads, in the subgraphs of a node, a value that depends on an input of the enclosing
    graph.
    """
    places = [i for i, v in enumerate(node.inputs) if v is not None and value in behind.get(v, ())]
    for subgraph, inner in zip(node.op.subgraphs().values(), homes.inner[node], strict=True):
        skipped = len(node.inputs) - len(subgraph.inputs)  # the condition of an If
        entering = [subgraph.inputs[i - skipped] for i in places if i >= skipped]
        readers = _first_readers(subgraph, inner, entering)
        if found := [readers[v] for v in entering if v in readers]:
            return found[0]
    return homes.of[node.outputs[0]]


@without_gc
def distribute(placement: Placement, wanted: Sequence[Sequence[int] | None], ranks: int) -> list[Part]:
    """Return the part of each rank.

    wanted: for each output of the graph, the ranks that need it; None: those that compute it. Raises UsageError, with
    the value's name, if a value must be sent but cannot. Linear in nodes and ranks.
    """
    graph, homes = placement.graph, placement.homes
    transfers = Transfers(_sources(graph), _divide)
    level = _Outermost(graph, homes, transfers)
    results: list[dict[str, Value]] = [{} for _ in range(ranks)]
    updates: list[list[tuple[Value, Value]]] = [[] for _ in range(ranks)]
    with context.detached():
        level.build_nodes()
        for name, value, places in zip(graph.output_names, graph.outputs, wanted, strict=True):
            home = homes.of[value]
            for rank in places if places is not None else range(ranks) if home is None else (home,):
                results[rank][name] = level.at(rank, value)
        for state, new in graph.updates:
            owner = placement.owners[state]
            updates[owner].append((level.inputs[state], level.at(owner, new)))
    return [_part(level, placement, rank, results[rank], updates[rank]) for rank in range(ranks)]


def _part(
    level: _Outermost,
    placement: Placement,
    rank: int,
    results: Mapping[str, Value],
    updates: Sequence[tuple[Value, Value]],
) -> Part:
    graph, side = placement.graph, level.side(rank)
    data = [new for v, new in level.inputs.items() if v.role not in _STORED]
    stored = [new for v, new in level.inputs.items() if placement.owners.get(v) == rank]
    done = Names(results).take("transferred")
    made = Graph(
        [*data, *stored, side.start], [*results.values(), side.token], updates, f"{graph.name}_{rank}",
        output_names=[*results, done],
    )  # fmt: skip
    return Part(made, made.name_of(side.start), done)


def _divide(level: Level, node: Node) -> None:
    (divide_if if is_if(node) else divide_loop)(level, node)


def _sources(graph: Graph) -> dict[str, tuple[Value, int]]:
    """Return, for each dimension name, a data input, which all ranks have, and the axis that determines the size."""
    return sources_of(v for v in graph.inputs if v.role not in _STORED)
