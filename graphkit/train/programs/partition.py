"""Which process computes which node: groups of `gk.attr_scope(ctx_group=...)`, placed on ranks as a pipeline.

A stage is what one rank computes. Stages are ordered so that each needs only values of earlier ones. A node without a
group is computed where the last of its operands is, or, if it has none, at the first stage that reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from graphkit.errors import UsageError, did_you_mean
from graphkit.ir.context import GROUP
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.passes.core.sweep import all_nodes, is_control


class NotAPipeline(UsageError):
    """Ranks need each other, or control flow has parts on several of them."""


@dataclass(frozen=True)
class Partition:
    """The stages of a graph. ranks: in the order of the pipeline, of which the other fields give positions.

    stage_of: of nodes with operands; what has none is computed wherever it is read. owner_of: of parameters and states;
    copies: the other stages that read one. crossings: of each value that later stages than its own need, these, in the
    order of the graph.
    """

    graph: Graph
    ranks: tuple[int, ...]
    stage_of: Mapping[Node, int]
    owner_of: Mapping[Value, int]
    copies: Mapping[Value, tuple[int, ...]]
    crossings: Mapping[Value, tuple[int, ...]]

    def home(self, value: Value) -> int | None:
        """Where a value is made; None: wherever it is read."""
        if value.node is None:
            return self.owner_of.get(value)
        return self.stage_of.get(value.node)

    def received(self, stage: int) -> list[Value]:
        """What a stage reads of earlier ones."""
        return [value for value, stages in self.crossings.items() if stage in stages]

    def sent(self, stage: int) -> list[Value]:
        """What a stage makes that later ones read."""
        return [value for value in self.crossings if self.home(value) == stage]


def partition(graph: Graph, groups: Mapping[str, int], ranks: int, like: Partition | None = None) -> Partition:
    """The stages of `graph` for groups on ranks.

    like: those of another graph of the same model, of which the stages have the same parameters and states, by name.
    Raises NotAPipeline where two ranks need each other, or a subgraph has nodes of another rank than its node's, naming
    the nodes; UsageError where groups and ranks do not belong together, and for values between stages that cannot be
    sent.
    """
    if like is None:
        check(graph, groups, ranks)
    order = _order(graph, groups) if like is None else list(like.ranks)
    position = {rank: index for index, rank in enumerate(order)}
    placed = {name: position[rank] for name, rank in groups.items()}
    stage_of = _stages(graph, placed)
    _check_inside(stage_of, placed)
    owners = {} if like is None else {like.graph.name_of(v): stage for v, stage in like.owner_of.items()}
    owner_of = _owners(graph, stage_of, owners)
    crossings: dict[Value, set[int]] = {}
    for node in graph.nodes:
        if node not in stage_of:
            continue
        for value in node.operands:
            home = owner_of.get(value) if value.node is None else stage_of.get(value.node)
            if home is not None and home != stage_of[node]:
                crossings.setdefault(value, set()).add(stage_of[node])
    places = {value: index for index, value in enumerate(graph.values)}
    ordered = {v: tuple(sorted(crossings[v])) for v in sorted(crossings, key=places.__getitem__)}
    copies = {v: stages for v, stages in ordered.items() if v.node is None}
    crossing = {v: stages for v, stages in ordered.items() if v.node is not None}
    made = Partition(graph, tuple(order), stage_of, owner_of, copies, crossing)
    for value in crossing:
        _check_crossing(made, value)
    return made


def check(graph: Graph, groups: Mapping[str, int], ranks: int) -> None:
    """Raise UsageError for groups that the graph, or ranks that the job lacks, and for those without a part."""
    known = {group for node in all_nodes(graph) if node.operands and (group := node.meta.get(GROUP)) is not None}
    if not known:
        raise UsageError(f"groups: no node of the graph is in a group; build nodes under gk.attr_scope({GROUP}=...)")
    for group, rank in groups.items():
        if group not in known:
            raise UsageError(f"groups: the graph has no group {group!r}{did_you_mean(group, known)}")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
            raise UsageError(f"groups: {group!r} is placed on rank {rank!r}; the ranks of the job are 0 to {ranks - 1}")
    if lacking := sorted(known - set(groups)):
        raise UsageError(f"groups: no rank is given for {', '.join(map(repr, lacking))}")
    if idle := sorted(set(range(ranks)) - set(groups.values())):
        raise UsageError(
            f"groups: no group is placed on rank{'s' if len(idle) > 1 else ''} {', '.join(map(str, idle))}"
        )


def _order(graph: Graph, groups: Mapping[str, int]) -> list[int]:
    """The ranks, each after those of which it needs values."""
    before: dict[Node, int] = {}
    # By (rank, rank that it needs): a node of the first that does, and one of the second that it needs.
    needs: dict[tuple[int, int], Node] = {}
    for node in graph.nodes:
        mask = 0
        for value in node.operands:
            mask |= before[value.node] if value.node is not None else 0
        # What has no operands is computed wherever it is read.
        if node.operands and (group := _group_of(node, groups)) is not None:
            rank = groups[group]
            for other in _bits(mask & ~(1 << rank)):
                needs.setdefault((rank, other), node)
            mask |= 1 << rank
        before[node] = mask
    left = sorted(set(groups.values()))
    order: list[int] = []
    while left:
        ready = [rank for rank in left if all((rank, other) not in needs for other in left)]
        if not ready:
            raise NotAPipeline(_cycle(left, needs, groups))
        order.append(ready[0])
        left.remove(ready[0])
    return order


def _cycle(left: list[int], needs: Mapping[tuple[int, int], Node], groups: Mapping[str, int]) -> str:
    """Why none of these ranks can be first."""
    path = [left[0]]
    while path.count(path[-1]) == 1:
        path.append(next(other for other in left if (path[-1], other) in needs))
    path = path[path.index(path[-1]) :]
    told = []
    for rank, other in itertools.pairwise(path):
        node = needs[rank, other]
        told.append(f"rank {rank} ({_group_of(node, groups)}: {node.describe()}) reads what depends on rank {other}")
    return f"groups: the ranks depend on each other, so they cannot form a pipeline: {'; '.join(told)}"


def _group_of(node: Node, placed: Mapping[str, int]) -> str | None:
    """The group of a node; of control flow that has none, that of the nodes inside, where all are in one place."""
    if (group := node.meta.get(GROUP)) is not None or not is_control(node):
        return group
    inside = dict.fromkeys(
        found for subgraph in node.op.subgraphs().values() for inner in all_nodes(subgraph)
        if inner.operands and (found := inner.meta.get(GROUP)) is not None
    )  # fmt: skip
    return next(iter(inside)) if len({placed[found] for found in inside}) == 1 else None


def _stages(graph: Graph, placed: Mapping[str, int]) -> dict[Node, int]:
    """The stage of each node with operands."""
    stage_of: dict[Node, int] = {}
    for node in graph.nodes:
        if not node.operands:
            continue
        if (group := _group_of(node, placed)) is not None:
            stage_of[node] = placed[group]
            continue
        known = [stage_of[v.node] for v in node.operands if v.node in stage_of]
        if known:
            stage_of[node] = max(known)
    # What is computed from inputs alone: nodes in reverse order have their readers before them.
    first: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        if node.operands and node not in stage_of:
            stage_of[node] = first.get(node, 0)
        if node in stage_of:
            for value in node.operands:
                if value.node is not None:
                    first[value.node] = min(first.get(value.node, stage_of[node]), stage_of[node])
    return stage_of


def _check_inside(stage_of: Mapping[Node, int], placed: Mapping[str, int]) -> None:
    """Raise NotAPipeline for control flow with nodes of another stage inside."""
    for node, stage in stage_of.items():
        for subgraph in node.op.subgraphs().values() if is_control(node) else ():
            for inner in all_nodes(subgraph):
                group = inner.meta.get(GROUP) if inner.operands else None
                if group is not None and placed[group] != stage:
                    raise NotAPipeline(
                        f"groups: {inner.describe()}, of {group}, is inside of {node.describe()}, which is on another "
                        "rank"
                    )


def _owners(graph: Graph, stage_of: Mapping[Node, int], owners: Mapping[str, int]) -> dict[Value, int]:
    """The stage that has each parameter and state: the first that reads it."""
    stored = {v: owners[graph.name_of(v)] for v in graph.inputs if _is_stored(v) and graph.name_of(v) in owners}
    first: dict[Value, int] = {}
    for node in graph.nodes:
        if node in stage_of:
            for value in node.operands:
                first[value] = min(first.get(value, stage_of[node]), stage_of[node])
    for state, new in graph.updates:
        home = stage_of.get(new.node, 0) if new.node is not None else 0
        if first.setdefault(state, home) != home or stored.get(state, home) != home:
            reader = next(n for n in graph.nodes if state in n.operands and stage_of.get(n) != home)
            raise NotAPipeline(
                f"groups: {state} is updated by another rank than that of {reader.describe()}, which reads it"
            )
    return {v: stored.get(v, first.get(v, 0)) for v in graph.inputs if _is_stored(v)}


def _is_stored(value: Value) -> bool:
    return value.role in ("parameter", "state")


def _check_crossing(made: Partition, value: Value) -> None:
    home = made.home(value)
    first = made.crossings[value][0]
    reader = next(n for n in made.graph.nodes if made.stage_of.get(n) == first and value in n.operands)
    if home is not None and first < home:
        raise NotAPipeline(f"groups: {reader.describe()} reads {value}, which is on a later rank ({made.ranks[home]})")
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype is DType.STRING or kind.rank is None:
        raise UsageError(f"groups: {value} must be sent to another rank, for {reader.describe()}: only tensors of "
                         "numbers with a known rank can be sent; put both nodes into one group")  # fmt: skip


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
