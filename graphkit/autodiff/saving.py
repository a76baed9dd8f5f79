"""The forward values that a backward subgraph reads, and how the subgraph is rebuilt on saved values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from graphkit.ir import dims
from graphkit.ir.graph import Node, Value, topological
from graphkit.ir.types import TensorType
from graphkit.ops import F, Op
from graphkit.ops.control.loop_state import without_value
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.sweep import read_positions


def read_values(results: Iterable[Value], is_source: Callable[[Value], bool]) -> dict[Value, bool]:
    """The sources that `results` are computed from, in a deterministic order.

    What is computed from sources alone is followed down to them. The flag says whether elements are read, or only
    the shape.
    """
    found: dict[Value, bool] = {}
    seen: set[Node] = set()
    stack: list[tuple[Value, bool]] = [(v, True) for v in results]
    while stack:
        value, elements = stack.pop()
        if is_source(value):
            found[value] = found.get(value, False) or elements
        elif value.node is not None and value.node not in seen:
            seen.add(value.node)
            read = set(read_positions(value.node))
            stack.extend((v, i in read) for i, v in enumerate(value.node.inputs) if v is not None)
    return found


def invariant_values(nodes: Iterable[Node], inputs: Iterable[Value]) -> set[Value]:
    """The outputs of `nodes` (in topological order) that are constants or computed from `inputs` and constants."""
    known = set(inputs)
    found: set[Value] = set()
    for node in nodes:
        if all(v in known for v in node.operands) and not is_undetermined(node):
            known.update(node.outputs)
            found.update(node.outputs)
    return found


def is_view(node: Node) -> bool:
    """Whether the node only gives its operand another shape, which costs nothing to do again."""
    return isinstance(node.op, Op) and bool(node.op.views)


def rebuild(results: Sequence[Value], table: MutableMapping[Value, Value]) -> list[Value]:
    """`results` computed from `table`, which maps what they read to its replacement, and gets every value made."""
    for node in topological(results, stop=table):
        rebuilt = node.rebuilt([None if v is None else table.get(v, v) for v in node.inputs])
        for old, new in zip(node.outputs, rebuilt.outputs, strict=True):
            table.setdefault(old, new)
    return [table.get(v, v) for v in results]


def placeholder(value: Value) -> Value:
    """An input of a backward subgraph, as a placeholder for a value of the forward subgraph."""
    return Value(without_value(value.type), value.name)


def shape_stand_in(value: Value, available: Mapping[tuple[Any, ...], Value]) -> Value | None:
    """A tensor of the shape of `value`, of which nothing else is read; None when its sizes are known only later.

    `available` holds tensors by shape.
    """
    shape = value.shape if isinstance(value.type, TensorType) else None
    if shape is None:
        return None
    if all(dims.is_static(d) for d in shape):
        zero: Value = F.constant_of_shape(np.asarray(shape, np.int64), value=np.zeros(1, value.dtype.numpy))
        return zero
    return available.get(shape)


def by_shape(values: Iterable[Value]) -> dict[tuple[Any, ...], Value]:
    """The first tensor of each shape."""
    found: dict[tuple[Any, ...], Value] = {}
    for value in values:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            found.setdefault(value.type.shape, value)
    return found
