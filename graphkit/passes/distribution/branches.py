"""Divide an If among ranks: each rank has an If with the same condition, and with its part of both branches."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops.control.views import IfView
from graphkit.passes.distribution.homes import Homes
from graphkit.passes.distribution.levels import Level, Side


class BranchLevel(Level):
    """A branch that is divided among ranks. Captured values are sent inside, so that only a taken branch sends."""

    def __init__(self, parent: Level, graph: Graph, homes: Homes, captures: Sequence[Value], path: str):
        super().__init__(graph, homes, parent.transfers, path)
        self._parent = parent
        self._outer = dict(zip(graph.inputs, captures, strict=True))

    def is_local(self, rank: int, value: Value) -> bool:
        if super().is_local(rank, value):
            return True
        return value in self._outer and self._parent.is_local(rank, self._outer[value])

    def make_input(self, side: Side, value: Value) -> Value:
        home = self.homes.of[value]
        if home is None or self.is_local(side.rank, value):
            return side.capture(self._parent.at(side.rank, self._outer[value]))
        self.transfer(value, home, side.rank)
        return side.table[value]

    def outermost_input(self, side: Side, source: Value) -> Value:
        return side.capture(self._parent.outermost_input(self._parent.side(side.rank), source))


def divide_if(level: Level, node: Node) -> None:
    """Make the If of each rank."""
    view, path = IfView.of(node), f"{level.path}{level.graph.node_name(node)}"
    pairs = zip(view.branches, level.homes.inner[node], ("then", "else"), strict=True)
    branches = [BranchLevel(level, graph, homes, view.captures, f"{path}/{part}/") for graph, homes, part in pairs]
    for branch in branches:
        branch.build_nodes()
    # By rank: (position, values in both branches) of the results whose home is this rank.
    results: dict[int, list[tuple[int, list[Value]]]] = {}
    for i, value in enumerate(node.outputs):
        if (home := level.homes.of[value]) is not None:
            results.setdefault(home, []).append((i, [b.at(home, b.graph.outputs[i]) for b in branches]))
    ranks = sorted({*results, *(r for b in branches for r, side in b.sides.items() if side.exchanges)})
    conditions = {rank: level.at(rank, view.condition) for rank in ranks}
    for rank in ranks:
        _build(level, node, branches, rank, conditions[rank], results.get(rank, []))


def _build(
    level: Level, node: Node, branches: Sequence[BranchLevel], rank: int, condition: Value,
    results: Sequence[tuple[int, Sequence[Value]]],
) -> None:  # fmt: skip
    here, sides = level.side(rank), [b.side(rank) for b in branches]
    exchanges = any(side.exchanges for side in sides)
    captured = list(dict.fromkeys(outer for side in sides for outer in side.captured))
    graphs = []
    for number, (branch, side) in enumerate(zip(branches, sides, strict=True)):
        inputs, outputs = [side.capture(v) for v in captured], [values[number] for _, values in results]
        if exchanges:
            inputs, outputs = [*inputs, side.start], [*outputs, side.token]
        graphs.append(Graph(inputs, outputs, name=branch.graph.name))
    operands = [condition, *captured, *([here.token] if exchanges else ())]
    names = [node.outputs[i].name for i, _ in results]
    made = Node(IfView.of(node).with_branches(*graphs), operands, node.name, node.meta, output_names=names)
    here.table.update((node.outputs[i], v) for (i, _), v in zip(results, made.outputs, strict=False))
    if exchanges:
        here.token = made.outputs[-1]
