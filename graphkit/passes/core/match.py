"""Helpers for rewrite rules: producers, scalar constants, equal types, and values that are fixed between runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType, TensorType
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.draws import is_random

# Factors up to this, and down to its inverse, may be moved within a product of factors.
_LARGE = 2.0**24


def producer(value: Value | None, *names: str, domain: str = "") -> Node | None:
    """Return the node that computes `value` if its operator is one of `names`; else None."""
    if value is None or value.node is None:
        return None
    op = value.node.op
    return value.node if op.domain == domain and op.name in names else None


def is_op(node: Node, *names: str, domain: str = "") -> bool:
    return node.op.domain == domain and node.op.name in names


def first(node: Node) -> Value:
    """Return the first operand, which must be present."""
    value = node.inputs[0]
    assert value is not None
    return value


def array_of(value: Value) -> np.ndarray | None:
    """Return the array of a Constant node's output; None for any other value."""
    if value.node is None or not isinstance(value.node.op, Constant):
        return None
    array: np.ndarray = value.node.op.value.array
    return array


def scalar(value: Value | None) -> float | None:
    """Return the number in a floating-point constant of one element; None for any other value."""
    if value is None or (array := array_of(value)) is None or array.size != 1 or not value.dtype.is_float:
        return None
    return float(array.reshape(()))


def is_close(a: float | None, b: float) -> bool:
    """Return whether a constant `a` of a formula equals `b` up to a relative error of 2e-6: `a` is often rounded to
    float32.
    """
    return a is not None and math.isclose(a, b, rel_tol=2e-6, abs_tol=1e-12)


def operand_orders(node: Node) -> Iterator[tuple[Value, Value]]:
    """Yield the two operands of a commutative node in both orders."""
    a, b = node.inputs
    assert a is not None
    assert b is not None
    yield a, b
    yield b, a


def split_scale(node: Node) -> tuple[Value, float] | None:
    """Return (x, s) if the node multiplies x by the constant s, or divides x by 1 / s, and the result has the type of
    x.

    Returns None for a very large or very small s. So s may be moved within a formula: this can only overflow if the
    values were already near the limit.
    """
    if is_op(node, "Mul"):
        for x, other in operand_orders(node):
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


def split_shift(node: Node) -> tuple[Value, float] | None:
    """Return (x, s) if the node adds the constant s to x, and the result has the type of x; else None."""
    if is_op(node, "Add"):
        for x, other in operand_orders(node):
            s = scalar(other)
            if s is not None and same_type(x, node.output):
                return x, s
    return None


def same_type(a: Value, b: Value) -> bool:
    """Return whether both are tensors with equal element types and provably equal shapes."""
    return isinstance(a.type, TensorType) and a.type.shape is not None and a.type == b.type


def permutation(node: Node) -> tuple[int, ...] | None:
    """Return the permutation of a Transpose; None if the rank is unknown."""
    rank = first(node).rank
    if rank is None:
        return None
    perm: Sequence[int] | None = getattr(node.op, "perm", None)
    return tuple(range(rank))[::-1] if perm is None else tuple(perm)


def axes_of(node: Node, position: int = 1) -> tuple[int, ...] | None:
    """Return the axes of a reduction, sorted and not negative; None if they are unknown or absent.

    position: The position of the operand that contains the axes.
    """
    rank = first(node).rank
    value = node.inputs[position] if len(node.inputs) > position else None
    known = None if value is None else value.tensor.constants
    if known is None or rank is None or not known:
        return None
    return tuple(sorted(int(a) % rank for a in known))


class FixedValues:
    """Values that are fixed between runs: they depend only on constants, parameters, and states that no update writes.

    The executor computes them when it prepares a graph, and again when a parameter is written.
    """

    def __init__(self, graph: Graph) -> None:
        written = {state for state, _ in graph.updates}
        self._known: dict[Value, bool] = {
            v: v.role in ("parameter", "state") and v not in written for v in graph.inputs
        }

    def __contains__(self, value: Value) -> bool:
        """Return whether the value is fixed. Visits each node only once, also in several calls."""
        known = self._known
        found = known.get(value)
        if found is not None:
            return found
        stack = [value]
        while stack:
            current = stack[-1]
            node = current.node
            if current in known:
                stack.pop()
            elif node is None:
                known[current] = current.role in ("parameter", "state")
            else:
                states = [known.get(v) for v in node.operands]
                if None in states and False not in states:
                    stack.extend(v for v in node.operands if v not in known)
                    continue
                fixed = False not in states and not is_random(node.op)
                for result in node.outputs:
                    known[result] = fixed
        return known[value]


def fixed_values(graph: Graph) -> set[Value]:
    """Return all values of a graph that `FixedValues` contains. Faster than to ask for each value."""
    written = {state for state, _ in graph.updates}
    fixed: set[Any] = {v for v in graph.inputs if v.role in ("parameter", "state") and v not in written}
    fixed.add(None)  # absent operands
    for node in graph.nodes:
        if fixed.issuperset(node.inputs) and not is_random(node.op):
            fixed.update(node.outputs)
    fixed.remove(None)
    return fixed


def is_channel_vector(value: Value, channels: int, axis: int, rank: int) -> bool:
    """Return whether `value` broadcasts to rank `rank` with one element for each of the `channels` of `axis`."""
    shape = value.shape
    if shape is None or not 0 < len(shape) <= rank or math.prod(d for d in shape if isinstance(d, int)) != channels:
        return False
    lead = rank - len(shape)
    wanted = [channels if lead + i == axis else 1 for i in range(len(shape))]
    return list(shape) == wanted and (channels != 1 or lead <= axis)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class SharedConstants:
    """Constants that a sweep makes. Equal ones are one value, so that each is made once."""

    def __init__(self) -> None:
        self._ints: dict[tuple[int, ...], Value] = {}
        self._ones: dict[tuple[DType, tuple[int, ...]], Value] = {}

    def ints(self, values: Sequence[int]) -> Value:
        """Return a vector of integers."""
        key = tuple(values)
        if key not in self._ints:
            self._ints[key] = _constant(ints(*key))
        return self._ints[key]

    def ones(self, dtype: DType, shape: Sequence[int]) -> Value:
        """Return a tensor of ones."""
        key = dtype, tuple(shape)
        if key not in self._ones:
            self._ones[key] = _constant(np.ones(key[1], dtype.numpy))
        return self._ones[key]


def _constant(array: np.ndarray) -> Value:
    return Node(Constant(value=Tensor(array)), ()).output
