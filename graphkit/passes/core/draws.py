"""Find nodes that generate random numbers, and the operand that is their random state."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Graph, Node, Operator
from graphkit.passes.core.sweep import all_nodes


def is_random(op: Operator) -> bool:
    """Return whether the operator, or a node of one of its subgraphs, generates random numbers."""
    if getattr(op, "random", False):
        return True
    subgraphs = op.subgraphs()
    return bool(subgraphs) and any(is_random(node.op) for graph in subgraphs.values() for node in graph.nodes)


def is_unbound(node: Node) -> bool:
    """Return whether the node generates random numbers and has no random state as operand."""
    position = rng_position(node)
    return position is not None and (len(node.inputs) <= position or node.inputs[position] is None)


def has_unbound(graph: Graph) -> bool:
    """Return whether a node of the graph, without its subgraphs, is unbound (see `is_unbound`)."""
    kinds = {type(node.op) for node in graph.nodes}
    return any(getattr(kind, "random", False) for kind in kinds) and any(map(is_unbound, graph.nodes))


def is_undetermined(node: Node) -> bool:
    """Return whether the node would give other results if it were computed again.

    This is the case if it, or a node of its subgraphs, generates random numbers without a random state.
    """
    if draws_without_state(node):
        return True
    subgraphs = node.op.subgraphs()
    return bool(subgraphs) and any(draws_without_state(n) for g in subgraphs.values() for n in all_nodes(g))


def draws_without_state(node: Node) -> bool:
    """Return whether the node generates random numbers without a random state. Dropout does so only in training."""
    if rng_position(node) is None:
        return False
    if node.op.name == "Dropout" and not node.op.domain:
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        if mode is None or mode.tensor.constants == (0,):
            return False
    return is_unbound(node)


def rng_position(node: Node) -> int | None:
    """Return the position of the random state among a random operator's operands; None for other operators."""
    operator: Any = node.op
    if not getattr(operator, "random", False):
        return None
    names = [formal.name for formal in operator.formals]
    if "rng" not in names:
        raise UnsupportedError(f"{node.describe()}: a random operator needs an input called 'rng'")
    return names.index("rng")
