"""Divide a graph into the stages of a pipeline, by the ranks of groups (`gk.attr_scope(ctx_group=...)`).

A stage is the part of one rank, and needs only values of earlier stages. A node without a group belongs to the latest
stage of its operands, else to the first stage that reads it.
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
    """The groups do not form a pipeline: ranks need each other's values, or control flow is on several ranks."""


@dataclass(frozen=True)
class Partition:
    """The stages of a graph, as positions in the pipeline.

    Attributes:
        stage_of: The stage of each node with operands. Nodes without operands are computed by each stage that reads
            them.
        copies: For parameters and states that several stages read: the stages that do not own them.
        crossings: For each value that later stages read, in the order of the graph: the stages that read it.
    """

    graph: Graph
    ranks: tuple[int, ...]
    stage_of: Mapping[Node, int]
    owner_of: Mapping[Value, int]
    copies: Mapping[Value, tuple[int, ...]]
    crossings: Mapping[Value, tuple[int, ...]]

    def stage_of_value(self, value: Value) -> int | None:
        if value.node is None:
            return self.owner_of.get(value)
        return self.stage_of.get(value.node)

    def received(self, stage: int) -> list[Value]:
        return [value for value, stages in self.crossings.items() if stage in stages]

    def sent(self, stage: int) -> list[Value]:
        return [value for value in self.crossings if self.stage_of_value(value) == stage]


def partition(graph: Graph, groups: Mapping[str, int], ranks: int, like: Partition | None = None) -> Partition:
    """Divide a graph into stages.

    Args:
        like: If given, the result has the order of ranks and the owners (by name) of this partition.

    Raises:
        NotAPipeline: Two ranks need each other's values, or control flow is on several ranks.
        UsageError: Groups and ranks do not match, or a value between stages cannot be sent.
    """
    if like is None:
        check(graph, groups, ranks)
    order = _order(graph, groups) if like is None else list(like.ranks)
    position = {rank: index for index, rank in enumerate(order)}
    placed = {name: position[rank] for name, rank in groups.items()}
    stage_of = _stages(graph, placed)
    _check_subgraphs(stage_of, placed)
    owners = {} if like is None else {like.graph.name_of(v): stage for v, stage in like.owner_of.items()}
    owner_of = _owners(graph, stage_of, owners)
    crossings: dict[Value, set[int]] = {}
    for node in graph.nodes:
        if node not in stage_of:
            continue
        for value in node.operands:
            source = owner_of.get(value) if value.node is None else stage_of.get(value.node)
            if source is not None and source != stage_of[node]:
                crossings.setdefault(value, set()).add(stage_of[node])
    order_of = {value: index for index, value in enumerate(graph.values)}
    ordered = {v: tuple(sorted(crossings[v])) for v in sorted(crossings, key=order_of.__getitem__)}
    copies = {v: stages for v, stages in ordered.items() if v.node is None}
    crossing = {v: stages for v, stages in ordered.items() if v.node is not None}
    made = Partition(graph, tuple(order), stage_of, owner_of, copies, crossing)
    for value in crossing:
        _check_crossing(made, value)
    return made


def check(graph: Graph, groups: Mapping[str, int], ranks: int) -> None:
    known = {group for node in all_nodes(graph) if node.operands and (group := node.meta.get(GROUP)) is not None}
    if not known:
        raise UsageError(
            f"groups= (--place): no node of the model is in a group; build nodes under gk.attr_scope({GROUP}=...)"
        )
    for group, rank in groups.items():
        if group not in known:
            raise UsageError(f"groups= (--place): the model has no group {group!r}{did_you_mean(group, known)}")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
            raise UsageError(
                f"groups= (--place): group {group!r} is placed on rank {rank!r}; the ranks of the job are 0 to "
                f"{ranks - 1}"
            )
    if lacking := sorted(known - set(groups)):
        raise UsageError(f"groups= (--place): no rank is given for {', '.join(map(repr, lacking))}")
    if idle := sorted(set(range(ranks)) - set(groups.values())):
        raise UsageError(
            f"groups= (--place): no group is placed on rank{'s' if len(idle) > 1 else ''} {', '.join(map(str, idle))}"
        )


def _order(graph: Graph, groups: Mapping[str, int]) -> list[int]:
    # The ranks that each node depends on, as bits.
    dependencies: dict[Node, int] = {}
    # By (rank, other rank): a node of `rank` that depends on a value of `other rank`.
    needs: dict[tuple[int, int], Node] = {}
    for node in graph.nodes:
        mask = 0
        for value in node.operands:
            mask |= dependencies[value.node] if value.node is not None else 0
        # Each rank that reads a node without operands computes it.
        if node.operands and (group := _group_of(node, groups)) is not None:
            rank = groups[group]
            for other in _bits(mask & ~(1 << rank)):
                needs.setdefault((rank, other), node)
            mask |= 1 << rank
        dependencies[node] = mask
    remaining = sorted(set(groups.values()))
    order: list[int] = []
    while remaining:
        ready = [rank for rank in remaining if all((rank, other) not in needs for other in remaining)]
        if not ready:
            raise NotAPipeline(_describe_cycle(remaining, needs, groups))
        order.append(ready[0])
        remaining.remove(ready[0])
    return order


def _describe_cycle(ranks: list[int], needs: Mapping[tuple[int, int], Node], groups: Mapping[str, int]) -> str:
    path = [ranks[0]]
    while path.count(path[-1]) == 1:
        path.append(next(other for other in ranks if (path[-1], other) in needs))
    path = path[path.index(path[-1]) :]
    steps = []
    for rank, other in itertools.pairwise(path):
        node = needs[rank, other]
        steps.append(
            f"rank {rank} ({_group_of(node, groups)}: {node.describe()}) reads a value that depends on rank {other}"
        )
    return f"groups= (--place): ranks depend on each other, so they cannot form a pipeline: {'; '.join(steps)}"


def _group_of(node: Node, placed: Mapping[str, int]) -> str | None:
    """Control flow without a group has the group of its inner nodes, if one rank has all of them."""
    if (group := node.meta.get(GROUP)) is not None or not is_control(node):
        return group
    inside = dict.fromkeys(
        found for subgraph in node.op.subgraphs().values() for inner in all_nodes(subgraph)
        if inner.operands and (found := inner.meta.get(GROUP)) is not None
    )  # fmt: skip
    return next(iter(inside)) if len({placed[found] for found in inside}) == 1 else None


def _stages(graph: Graph, placed: Mapping[str, int]) -> dict[Node, int]:
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
    # The other nodes depend only on graph inputs and nodes without operands. Visit the nodes in reverse
    # order: the readers of a node then have stages before the node.
    first: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        if node.operands and node not in stage_of:
            stage_of[node] = first.get(node, 0)
        if node in stage_of:
            for value in node.operands:
                if value.node is not None:
                    first[value.node] = min(first.get(value.node, stage_of[node]), stage_of[node])
    return stage_of


def _check_subgraphs(stage_of: Mapping[Node, int], placed: Mapping[str, int]) -> None:
    for node, stage in stage_of.items():
        for subgraph in node.op.subgraphs().values() if is_control(node) else ():
            for inner in all_nodes(subgraph):
                group = inner.meta.get(GROUP) if inner.operands else None
                if group is not None and placed[group] != stage:
                    raise NotAPipeline(
                        f"groups= (--place): {inner.describe()} of group {group!r} is inside of {node.describe()}, "
                        "which is on another rank"
                    )


def _owners(graph: Graph, stage_of: Mapping[Node, int], owners: Mapping[str, int]) -> dict[Value, int]:
    stored = {v: owners[graph.name_of(v)] for v in graph.inputs if _is_stored(v) and graph.name_of(v) in owners}
    first: dict[Value, int] = {}
    for node in graph.nodes:
        if node in stage_of:
            for value in node.operands:
                first[value] = min(first.get(value, stage_of[node]), stage_of[node])
    for state, new in graph.updates:
        source = stage_of.get(new.node, 0) if new.node is not None else 0
        if first.setdefault(state, source) != source or stored.get(state, source) != source:
            reader = next(n for n in graph.nodes if state in n.operands and stage_of.get(n) != source)
            raise NotAPipeline(f"groups= (--place): {reader.describe()} reads {state}, which another rank updates")
    return {v: stored.get(v, first.get(v, 0)) for v in graph.inputs if _is_stored(v)}


def _is_stored(value: Value) -> bool:
    return value.role in ("parameter", "state")


def _check_crossing(divided: Partition, value: Value) -> None:
    """Raise an error if a value comes from a later stage than its reader, or cannot be sent."""
    source = divided.stage_of_value(value)
    first = divided.crossings[value][0]
    reader = next(n for n in divided.graph.nodes if divided.stage_of.get(n) == first and value in n.operands)
    if source is not None and first < source:
        rank = divided.ranks[source]
        raise NotAPipeline(f"groups= (--place): {reader.describe()} reads {value}, which is on a later rank ({rank})")
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype is DType.STRING or kind.rank is None:
        raise UsageError(f"groups= (--place): {reader.describe()} reads {value} of another rank: only tensors of "
                         "numbers with a known number of axes can be sent; put both nodes into one group")  # fmt: skip


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
