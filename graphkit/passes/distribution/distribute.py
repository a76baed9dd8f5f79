"""One graph as a graph for each rank, which exchange values in the middle of their runs, inside branches and loops too.

What crosses, and when, follows TensorFlow (Abadi et al., OSDI 2016, section 4.4; Yu et al., "Dynamic control flow in
large-scale machine learning", EuroSys 2018), in a form for structured control flow:

- A value goes once from its home to each rank that reads it.
- An If whose branches have nodes on several ranks is an If on each of them. Its condition goes to each, as one message;
  what a branch needs of another rank goes inside the branch, so that a branch that is not taken sends nothing: it
  costs no more than that word, as a dead token does.
- A Loop or Scan is a loop on each rank that has a part of its body. What it captures and scans goes to whoever reads
  it, once, before it begins, and so does what a state begins with. In each iteration, values and states go to where
  they are read, and the condition from where it is computed to the others. There is no barrier: a rank is ahead of
  another one as far as data and the window of the channels allow.

No rank waits for ever. The transfers of a graph, and the nodes of control flow that have transfers inside, are made in
one order, in which the two ends of a transfer are one event. In a run, the events of a branch or of an iteration stand
at the place of the If or the loop; all ranks that have a part of it enter the same branch, and as many iterations, as
they have the same condition. So the events of a run have one order, and tokens make each rank take its own in that
order. Of those that have not taken place, look at the first one. Both of its ranks have all of their earlier ones
behind them, and what they compute before this one ends by itself, so that both come to it. A sender waits at most until
its receiver has taken an earlier value, which is an earlier event. So it takes place, and thus all do, whatever the
window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphkit.ir import context
from graphkit.ir.collector import without_gc
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

    graph: Its inputs are all data inputs of the whole graph, what is stored on this rank, and `start`, the begin of the
    chain of tokens, which is fed any number. Its outputs are those that this rank wants, by their names, and `done`,
    the end of the chain, which must be computed. Its updates are those of states that are stored on this rank.
    """

    graph: Graph
    start: str
    done: str

    @property
    def token(self) -> Value:
        """The end of the chain."""
        return self.graph.outputs[self.graph.output_names.index(self.done)]


class _Outermost(Level):
    """The whole graph. Its inputs are on every rank, but for what is stored, which is at home. They keep the names that
    they have in the whole graph.
    """

    def __init__(self, graph: Graph, homes: Homes, transfers: Transfers):
        super().__init__(graph, homes, transfers, "")
        names = zip(graph.inputs, graph.input_names, strict=True)
        self.inputs = {v: v if v.name == name else v.like(name=name) for v, name in names}

    def enter(self, side: Side, value: Value) -> Value:
        home = self.homes.of[value]
        if home not in (None, side.rank):
            self.carry(value, home, side.rank)
            return side.table[value]
        return self.inputs[value]

    def like(self, side: Side, source: Value) -> Value:
        return self.inputs[source]


@dataclass(frozen=True)
class Placement:
    """Where everything of a graph is. owners: the rank of each parameter and state. homes: see Homes."""

    graph: Graph
    groups: Mapping[str, int]
    owners: Mapping[Value, int]
    homes: Homes

    def home(self, value: Value) -> int | None:
        """The rank that makes a value; None: every one that reads it."""
        return self.homes.of[value]


def place(
    graph: Graph,
    groups: Mapping[str, int],
    owners: Mapping[str, int] | None = None,
    pinned: Mapping[Value, int] | None = None,
) -> Placement:
    """Where the values of a graph are made, for the ranks of its groups.

    owners: of parameters and states, by name; that of any other one is the first rank that reads it. pinned: where
    values are made whose nodes have no group.
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
    """The first rank that reads each of these inputs, or what is computed of them wherever it is read."""
    found: dict[Value, int] = {}
    # The inputs that values without a home depend on.
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
    """The first rank that reads, in the subgraphs of a node, what depends on an input of the graph around it."""
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
        level.walk()
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
    """Which input that every rank has tells what a name of a size stands for, and along which axis."""
    return sources_of(v for v in graph.inputs if v.role not in _STORED)
