"""An If as two graphs of the native program, of which a run takes one."""

from __future__ import annotations

from graphkit.executor.lower.lowering import Emission, LoweredGraph, Lowering, NotNative, Site
from graphkit.ir.graph import Graph
from graphkit.passes.core.sweep import is_control

_PARTS = ("then", "else")


class Branch(Lowering):
    """The branches, or for one that types rule out, which fails when it is taken, the message that says why.

    Only one of them runs, so that their arenas share the working memory. They return what somebody reads: the node's
    outputs at the positions `returned`.
    """

    def __init__(self, branches: tuple[LoweredGraph | str, LoweredGraph | str], returned: tuple[int, ...]):
        self._branches = branches
        self._returned = returned
        named = zip(_PARTS, branches, strict=True)
        self.subgraphs = {part: branch for part, branch in named if isinstance(branch, LoweredGraph)}
        self.scratch_bytes = max(graph.memory.layout.arena_bytes for graph in self.subgraphs.values())

    def emit(self, step: Emission) -> None:
        _, base = step.scratch
        targets = [step.outputs[i] for i in self._returned]
        builders = step.builder.branch(step.name, step.inputs[0])
        for part, branch, builder in zip(_PARTS, self._branches, builders, strict=True):
            if isinstance(branch, str):
                builder.fail(f"{step.name}: {branch}")
            else:
                step.writer.graph(builder, branch, base, step.inputs[1:], targets, prefix=f"{step.name}/{part}/")


def branch(site: Site) -> Branch | None:
    """An If whose branches run without Python."""
    node = site.node
    if not is_control(node) or node.op.name != "If":
        return None
    returned = tuple(i for i, needed in enumerate(site.context.used_outputs) if needed)
    arrays = {i - 1: array for i, array in site.context.constant_inputs.items() if i > 0}

    def lowered(attribute: str) -> LoweredGraph | str:
        misfit = site.misfits.get((node, attribute))
        if misfit is not None:
            return misfit
        subgraph: Graph = getattr(node.op, attribute)
        made = site.lower(subgraph.replace(outputs=[subgraph.outputs[i] for i in returned]), arrays)
        for result, declared in zip(made.graph.outputs, (node.outputs[i] for i in returned), strict=True):
            if declared.tensor.is_static and result.type != declared.type:
                raise NotNative(f"a branch returns {result.type} where {declared.type} was inferred")
        return made

    return Branch((lowered("then_branch"), lowered("else_branch")), returned)
