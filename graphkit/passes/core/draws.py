"""Which nodes draw random numbers, and from what state."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Node, Operator
from graphkit.passes.core.sweep import all_nodes


def is_random(op: Operator) -> bool:
    """Whether the operator, or a node of one of its subgraphs, draws random numbers."""
    if getattr(op, "random", False):
        return True
    subgraphs = op.subgraphs()
    return bool(subgraphs) and any(is_random(node.op) for graph in subgraphs.values() for node in graph.nodes)


def is_unbound(node: Node) -> bool:
    """Whether the node draws random numbers, and no state is connected to it."""
    position = rng_position(node)
    return position is not None and (len(node.inputs) <= position or node.inputs[position] is None)


def is_undetermined(node: Node) -> bool:
    """Whether the node, or one in its subgraphs, draws without a state: computed again, it gives other numbers."""
    if draws_anew(node):
        return True
    subgraphs = node.op.subgraphs()
    return bool(subgraphs) and any(draws_anew(n) for g in subgraphs.values() for n in all_nodes(g))


def draws_anew(node: Node) -> bool:
    """Whether the node draws, and has no state. A Dropout does in training only."""
    if rng_position(node) is None:
        return False
    if node.op.name == "Dropout" and not node.op.domain:
        mode = node.inputs[2] if len(node.inputs) > 2 else None
        if mode is None or mode.tensor.constants == (0,):
            return False
    return is_unbound(node)


def rng_position(node: Node) -> int | None:
    """Where a random operator takes its state; None for other operators."""
    operator: Any = node.op
    if not getattr(operator, "random", False):
        return None
    names = [formal.name for formal in operator.formals]
    if "rng" not in names:
        raise UnsupportedError(f"{node.describe()}: a random operator needs an input called 'rng'")
    return names.index("rng")
