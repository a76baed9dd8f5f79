"""Closing a region over its captures: outer values become explicit inputs of the subgraph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphkit.errors import UsageError
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import DType, TensorType


def checkpoint() -> int:
    """Return a serial number: values that are made later have larger ones."""
    return Value(TensorType(DType.BOOL, ())).serial


def close_over(
    outputs: Sequence[Value],
    own_inputs: Sequence[Value],
    mark: int,
    captured: Sequence[Value] = (),
    name: str = "",
) -> tuple[Graph, list[Value]]:
    """Build the subgraph that computes `outputs`; return it and the outer values that it captures.

    `mark` is the checkpoint() taken before the region was built: values made after it belong to the region.
    The subgraph's inputs are `own_inputs`, then one input per capture. `captured` fixes the first captures,
    so that the two branches of an If can share one list. Nodes without operands (constants) that were
    made outside are copied into the subgraph, so that known shapes stay known.
    """
    own = set(own_inputs)
    captures: dict[Value, Value] = {outer: outer.like(role="data") for outer in captured}

    def boundary(value: Value) -> bool:
        if value in own:
            return False
        if value.node is not None and not value.node.inputs and not getattr(value.node.op, "random", False):
            return False
        if value.is_input and value.role != "data":
            return True  # a parameter made inside a region belongs to the outermost graph
        return value.serial < mark

    replaced: dict[Value, Value] = {}

    def resolve(value: Value | None) -> Value | None:
        if value is None or value in own:
            return value
        if boundary(value):
            if value not in captures:
                captures[value] = value.like(role="data") if value.is_input else Value(value.type, value.name)
            return captures[value]
        return replaced.get(value, value)

    nodes = _region_nodes(outputs, boundary)
    for value in (*outputs, *(v for node in nodes for v in node.inputs)):
        if value is not None and value.is_input and value not in own and not boundary(value):
            raise UsageError(
                f"the input {value} is created inside a function of cond, while_loop, scan or map; create it before "
                "the call, outside of the function"
            )
    for node in nodes:
        rebuilt = node.rebuilt([resolve(v) for v in node.inputs])
        if rebuilt is not node:
            replaced.update(zip(node.outputs, rebuilt.outputs, strict=True))
    resolved = [resolve(v) for v in outputs]
    graph = Graph([*own_inputs, *captures.values()], [v for v in resolved if v is not None], name=name)
    return graph, list(captures)


def _region_nodes(outputs: Iterable[Value], boundary: Callable[[Value], bool]) -> list[Node]:
    inside: set[Value] = set()
    outside: set[Value] = set()
    stack = list(outputs)
    while stack:
        value = stack.pop()
        if value in inside or value in outside:
            continue
        if boundary(value):
            outside.add(value)
            continue
        inside.add(value)
        if value.node is not None:
            stack.extend(v for v in value.node.inputs if v is not None)
    return topological([v for v in outputs if v in inside], stop=outside)


def inline(
    graph: Graph, arguments: Sequence[Value], is_new: Callable[[Node], bool] = lambda _node: False
) -> list[Value]:
    """Rebuild `graph`'s nodes on `arguments` (one per input) and return its outputs.

    A node whose operands do not change is shared, except if `is_new` returns True: then it is made again.
    """
    if len(arguments) != len(graph.inputs):
        raise ValueError(f"{len(graph.inputs)} arguments expected, {len(arguments)} given")
    table: dict[Value, Value] = dict(zip(graph.inputs, arguments, strict=True))
    for node in graph.nodes:
        operands = [None if v is None else table[v] for v in node.inputs]
        rebuilt = node.rebuilt(operands)
        if rebuilt is node and is_new(node):
            rebuilt = node.with_types(operands, [v.type for v in node.outputs])
        table.update(zip(node.outputs, rebuilt.outputs, strict=True))
    return [table[v] for v in graph.outputs]
