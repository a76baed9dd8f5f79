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
    """The sources that `results` are computed from, in a deterministic order: source -> whether its elements are read.

    False means that only its shape is read. Other values are traced back to the sources that they depend on.
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
    """Whether the node's result is a view of an operand, so that computing it again costs nothing."""
    return isinstance(node.op, Op) and bool(node.op.views)


def rebuild(results: Sequence[Value], table: MutableMapping[Value, Value]) -> list[Value]:
    """Compute `results` from `table`, which maps values that they read to replacements. Adds every rebuilt value."""
    for node in topological(results, stop=table):
        rebuilt = node.rebuilt([None if v is None else table.get(v, v) for v in node.inputs])
        for old, new in zip(node.outputs, rebuilt.outputs, strict=True):
            table.setdefault(old, new)
    return [table.get(v, v) for v in results]


def placeholder(value: Value) -> Value:
    """A new input of a backward subgraph, which will receive a value of the forward subgraph."""
    return Value(without_value(value.type), value.name)


def shape_stand_in(value: Value, available: Mapping[tuple[Any, ...], Value]) -> Value | None:
    """A tensor with the shape of `value`, for readers of the shape alone; None if there is none.

    `available`: shape -> a tensor with this shape.
    """
    shape = value.shape if isinstance(value.type, TensorType) else None
    if shape is None:
        return None
    if all(dims.is_static(d) for d in shape):
        zero: Value = F.constant_of_shape(np.asarray(shape, np.int64), value=np.zeros(1, value.dtype.numpy))
        return zero
    return available.get(shape)


def by_shape(values: Iterable[Value]) -> dict[tuple[Any, ...], Value]:
    """Map each shape to the first tensor that has it."""
    found: dict[tuple[Any, ...], Value] = {}
    for value in values:
        if isinstance(value.type, TensorType) and value.type.shape is not None:
            found.setdefault(value.type.shape, value)
    return found
