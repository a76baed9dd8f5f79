"""An If as two graphs of the native program, of which a run takes one."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from graphkit.executor.lower.lowering import Emission, LoweredGraph, Lowering, NotNative, Site
from graphkit.ir.graph import Graph
from graphkit.passes.core.sweep import is_control

# The branch that runs where the condition holds, and the other one.
PARTS = ("then", "else")


class Branches(NamedTuple):
    """The branches of an If by their part, and of one that types rule out, which fails when it is taken, why they do.

    They return what somebody reads: the node's outputs at the positions `returned`.
    """

    lowered: Mapping[str, LoweredGraph]
    refused: Mapping[str, str]
    returned: tuple[int, ...]

    @property
    def arena_bytes(self) -> int:
        """Only one of them runs, so that their arenas share the working memory."""
        return max((graph.memory.layout.arena_bytes for graph in self.lowered.values()), default=0)

    def unread(self, captures: int) -> Set[int]:
        """The positions of the operands that none of the branches that can run reads."""
        read = {i + 1 for lowered in self.lowered.values() for i in lowered.inputs_read}
        return {i + 1 for i in range(captures)} - read


class Branch(Lowering):
    """The branches of an If in a native program."""

    def __init__(self, branches: Branches, captures: int):
        self._branches = branches
        self.unread = branches.unread(captures)
        self.subgraphs = branches.lowered
        self.scratch_bytes = branches.arena_bytes

    def emit(self, step: Emission) -> None:
        _, base = step.scratch
        targets = [step.outputs[i] for i in self._branches.returned]
        for part, builder in zip(PARTS, step.builder.branch(step.name, step.inputs[0]), strict=True):
            graph = self._branches.lowered.get(part)
            if graph is None:
                builder.fail(f"{step.name}/{part}: {self._branches.refused[part]}")
            else:
                step.writer.graph(builder, graph, base, step.inputs[1:], targets, prefix=f"{step.name}/{part}/")


def branch(site: Site) -> Branch | None:
    """An If whose branches run without Python."""
    if not is_control(site.node) or site.node.op.name != "If":
        return None
    return Branch(branches_of(site), len(site.node.inputs) - 1)


def branches_of(site: Site) -> Branches:
    """The branches of an If. Raises NotNative."""
    node = site.node
    returned = tuple(i for i, needed in enumerate(site.context.used_outputs) if needed)
    arrays = {i - 1: array for i, array in site.context.constant_inputs.items() if i > 0}
    lowered: dict[str, LoweredGraph] = {}
    refused: dict[str, str] = {}
    for part in PARTS:
        attribute = f"{part}_branch"
        if (misfit := site.misfits.get((node, attribute))) is not None:
            refused[part] = misfit
            continue
        subgraph: Graph = getattr(node.op, attribute)
        made = site.lower(subgraph.replace(outputs=[subgraph.outputs[i] for i in returned]), arrays)
        for result, declared in zip(made.graph.outputs, (node.outputs[i] for i in returned), strict=True):
            if declared.tensor.is_static and result.type != declared.type:
                raise NotNative(f"a branch returns {result.type}, but {declared.type} was inferred")
        lowered[part] = made
    return Branches(lowered, refused, returned)
