"""Names for the results of all nodes, so that the steps of a profile can be matched with the nodes of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from graphkit.checks.inputs import make_feeds
from graphkit.ir.graph import Graph, Node, Value, give_name
from graphkit.model import Model
from graphkit.passes.core.sweep import map_subgraphs, rewrite
from graphkit.report.node_times import NodeTimes


def named_model(model: Model) -> tuple[Model, frozenset[str]]:
    """Return the model with names for the results of all nodes, and the names that it did not have itself.

    The names are those that its graph makes up. The new model shares the parameters.
    """
    names: set[str] = set()
    graph = _named(model.graph, names)
    if graph is model.graph:
        return model, frozenset()
    made = copy(model)
    made.graph, made._executor = graph, None
    return made, frozenset(names)


def _named(graph: Graph, made_up: set[str]) -> Graph:
    """Name all results of nodes, and the nodes that contain subgraphs. Adds the new names of results to `made_up`."""

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        inner = map_subgraphs(node, operands, lambda body: _named(body, made_up))
        names = [graph.name_of(v) for v in node.outputs]
        name = graph.node_name(node) if node.op.subgraphs() else node.name
        if names == [v.name for v in node.outputs] and name == node.name:
            return inner.outputs
        made = inner.with_types(inner.inputs, [v.type for v in inner.outputs])
        made.name = name
        for value, new in zip(made.outputs, names, strict=True):
            if new != value.name:
                made_up.add(new)
                give_name(value, new)
        return made.outputs

    return rewrite(graph, rule)


def with_results(times: NodeTimes, named: Model, shapes: Mapping[str, Sequence[int]]) -> NodeTimes:
    """Return the times with the names of results that the recorded model did not name.

    The model is compiled, but not run. A step of the profile is compared with the step of the same name: operator,
    element type and number of axes must be equal.

    Args:
        times: Times of the same model without `named_model`.
        named: The result of `named_model`.
        shapes: Input shapes by name. Dimensions that are not given are guessed.
    """
    if all(step.results for step in times.steps):
        return times
    arrays = make_feeds(named, shapes=shapes).arrays
    plan = named.compile().specialise({name: array.shape for name, array in arrays.items()})
    known = {
        (step.node, step.op.rpartition(".")[2], _without_sizes(out.type)): (out.name,)
        for step in plan.steps
        if step.outputs and (out := step.outputs[0]) is not None
    }
    steps = [
        step if step.results else step._replace(results=known.get(
            (step.path, step.operator.rpartition(".")[2], _without_sizes(step.type)), ()
        ))
        for step in times.steps
    ]  # fmt: skip
    return times._replace(steps=steps)


def _without_sizes(kind: str) -> tuple[str, int]:
    """Return the element type of a tensor type, and the number of commas between its sizes."""
    return kind.partition("[")[0], kind.count(",")
