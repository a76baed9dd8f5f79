"""Helpers for rewrite rules: producers, scalar constants, equal shapes, values that no run changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import TensorType
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.draws import is_random

# Operators that keep the elements in order: a reshape of one is a reshape of its operand.
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")

# Factors up to this, and down to its inverse, may be anywhere among factors.
_LARGE = 2.0**24


def producer(value: Value | None, *names: str, domain: str = "") -> Node | None:
    """The node that computes `value`, when its operator is one of `names`."""
    if value is None or value.node is None:
        return None
    op = value.node.op
    return value.node if op.domain == domain and op.name in names else None


def is_op(node: Node, *names: str, domain: str = "") -> bool:
    return node.op.domain == domain and node.op.name in names


def first(node: Node) -> Value:
    """The first operand, which the operator requires."""
    value = node.inputs[0]
    assert value is not None
    return value


def array_of(value: Value) -> np.ndarray | None:
    """The array of a Constant node's output; None for any other value."""
    if value.node is None or not isinstance(value.node.op, Constant):
        return None
    array: np.ndarray = value.node.op.value.array
    return array


def scalar(value: Value | None) -> float | None:
    """The number that a floating-point constant of one element holds."""
    if value is None or (array := array_of(value)) is None or array.size != 1 or not value.dtype.is_float:
        return None
    return float(array.reshape(()))


def close(a: float | None, b: float) -> bool:
    """Whether a constant of a formula is `b`, given in single precision or with five digits."""
    return a is not None and math.isclose(a, b, rel_tol=2e-6, abs_tol=1e-12)


def orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """The two operands of a commutative node, in both orders."""
    a, b = node.inputs
    assert a is not None
    assert b is not None
    yield a, b
    yield b, a


def scaled(node: Node) -> tuple[Value, float] | None:
    """(x, s) when the node multiplies x by the constant s, or divides it by 1 / s, and keeps its shape. s has a usual
    size: elsewhere in a formula it makes no number overflow that did not before, but for such that almost did.
    """
    if is_op(node, "Mul"):
        for x, other in orders(node):
            s = scalar(other)
            if s is not None and _is_usual(s) and same_type(x, node.output):
                return x, s
    if is_op(node, "Div"):
        s = scalar(node.inputs[1])
        if s is not None and _is_usual(s) and same_type(first(node), node.output):
            return first(node), 1.0 / s
    return None


def _is_usual(factor: float) -> bool:
    return 1 / _LARGE <= abs(factor) <= _LARGE


def shifted(node: Node) -> tuple[Value, float] | None:
    """(x, s) when the node adds the constant s to x and keeps its shape."""
    if is_op(node, "Add"):
        for x, other in orders(node):
            s = scalar(other)
            if s is not None and same_type(x, node.output):
                return x, s
    return None


def same_type(a: Value, b: Value) -> bool:
    """Whether both are tensors of one element type and provably of one shape."""
    return isinstance(a.type, TensorType) and a.type.shape is not None and a.type == b.type


def permutation(node: Node) -> tuple[int, ...] | None:
    """The permutation of a Transpose; None when the rank is unknown."""
    rank = first(node).rank
    if rank is None:
        return None
    perm: Sequence[int] | None = node.op.attributes().get("perm")
    return tuple(range(rank))[::-1] if perm is None else tuple(perm)


def axes_of(node: Node, position: int = 1) -> tuple[int, ...] | None:
    """The axes of a reduction (an operand), in order and not negative; None when they are unknown or absent."""
    rank = first(node).rank
    value = node.inputs[position] if len(node.inputs) > position else None
    known = None if value is None else value.tensor.constants
    if known is None or rank is None or not known:
        return None
    return tuple(sorted(int(a) % rank for a in known))


class FixedValues:
    """Which values no feed changes: they depend on constants, parameters, and states that the graph does not write.

    The executor computes them when it prepares a graph, and again when a parameter is written.
    """

    def __init__(self, graph: Graph) -> None:
        written = {state for state, _ in graph.updates}
        self._known: dict[Value, bool] = {
            v: v.role in ("parameter", "state") and v not in written for v in graph.inputs
        }

    def __contains__(self, value: Value) -> bool:
        """Costs as many steps as there are nodes before the value that nobody asked about."""
        stack = [value]
        while stack:
            current = stack[-1]
            node = current.node
            if current in self._known:
                stack.pop()
            elif node is None:
                self._known[current] = current.role in ("parameter", "state")
            else:
                waiting = [v for v in node.operands if v not in self._known]
                if waiting:
                    stack.extend(waiting)
                    continue
                fixed = all(self._known[v] for v in node.operands) and not is_random(node.op)
                self._known.update((v, fixed) for v in node.outputs)
        return self._known[value]


def vector_of(value: Value, channels: int, axis: int, rank: int) -> bool:
    """Whether `value` broadcasts against rank `rank` as one number for each place of `axis`, of which there are
    `channels`.
    """
    shape = value.shape
    if shape is None or not 0 < len(shape) <= rank or math.prod(d for d in shape if isinstance(d, int)) != channels:
        return False
    lead = rank - len(shape)
    wanted = [channels if lead + i == axis else 1 for i in range(len(shape))]
    return list(shape) == wanted and (channels != 1 or lead <= axis)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
