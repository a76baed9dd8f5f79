"""Replace sequences whose elements are known one by one: a reader of an element reads the inserted value directly.

A Split replaces SplitToSequence and SequenceAt, a Concat replaces ConcatFromSequence. Networks that chunk, split and
join through sequences then run like those without sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import OptionalType, TensorType
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.axes import i64, normal_axis
from graphkit.ops.sequence.gradient import SequenceElementSizes
from graphkit.ops.sequence.split import ConcatFromSequence, SplitToSequence
from graphkit.passes.core.declare import CONTROL, graph_pass
from graphkit.passes.core.match import first, producer
from graphkit.passes.core.sweep import all_nodes, declared_types_hold, is_control, map_subgraphs, rewrite
from graphkit.passes.simplify.elements import (
    MOST_ELEMENTS,
    Budget,
    Elements,
    constant_position,
    length_of,
    row_split,
    stacked,
)
from graphkit.passes.simplify.sequence_states import unrolled, with_tensor_captures, with_tensor_results

_READERS = frozenset(
    {
        "SequenceAt", "SequenceLength", "ConcatFromSequence", "OptionalGetElement", "OptionalHasElement",
        "SequenceElementSizes",
    }
)  # fmt: skip


@graph_pass(at=_READERS)
def resolve_sequences(graph: Graph) -> Graph:
    """Replace reads of sequence elements, and of optionals, by the values that were stored. Also applies to subgraphs.

    If, Loop and Scan get tensors instead of sequences. A sequence to which a loop appends becomes a scan output. A loop
    with a small known number of iterations is unrolled if its sequences need that. Kept are sequences that are graph
    inputs, and reads at run-time positions.

    Takes time linear in the nodes and in the elements that are read. Elements that are moved by many insertions take
    longer.
    """
    budget = Budget()
    while not graph.operators.isdisjoint(_READERS | CONTROL) and any(n.op.name in _READERS for n in all_nodes(graph)):
        changed: list[Node] = []
        graph = _resolved(graph, Elements(budget, trusts_inputs=True), changed)
        if not changed:
            break
    return graph


def _resolved(graph: Graph, elements: Elements, changed: list[Node]) -> Graph:
    """Resolve the sequences of a graph.

    changed: Gets each If, Loop or Scan whose results changed, because another sweep may resolve more.
    """
    if graph.operators.isdisjoint(_READERS | CONTROL):
        return graph

    def control(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        node = node.rebuilt(operands)
        results = unrolled(node, elements)
        if results is not None:
            changed.append(node)
            return results
        node = with_tensor_captures(node, elements)
        trusts_inputs = declared_types_hold(node, node.inputs)
        inside = map_subgraphs(
            node, node.inputs, lambda inner: _resolved(inner, elements.inside(trusts_inputs=trusts_inputs), changed)
        )
        results = with_tensor_results(inside, elements)
        if results is not inside.outputs:
            changed.append(inside)
        return results

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            return control(node, operands)
        rebuilt = node.rebuilt(operands)
        found = _rules.get((rebuilt.op.domain, rebuilt.op.name))
        try:
            result = found(rebuilt, elements) if found else None
        except TypeMismatch:  # the elements have incompatible types: the node fails when it is run
            result = None
        return rebuilt.outputs if result is None else (result,)

    return rewrite(graph, rule, at=_READERS | CONTROL)


# --- rules for readers ----------------------------------------------------------------------------

_Rule: TypeAlias = Callable[[Node, Elements], "Value | None"]
_rules: dict[tuple[str, str], _Rule] = {}


def _rule(name: str, domain: str = "") -> Callable[[_Rule], _Rule]:
    def install(function: _Rule) -> _Rule:
        _rules[domain, name] = function
        return function

    return install


@_rule("SequenceAt")
def _at(node: Node, elements: Elements) -> Value | None:
    sequence, position = node.operands
    index = constant_position(position)
    if index is not None and (found := elements.at(sequence, index)) is not None:
        return found
    row = _row(node, position)
    return _chosen(sequence, position, elements) if row is None and index is None else row


def _chosen(sequence: Value, position: Value, elements: Elements) -> Value | None:
    """Replace the read of an element at a run-time position by a Gather from the stacked elements."""
    length = length_of(sequence)
    items = elements.all(sequence) if length is not None and length <= MOST_ELEMENTS else None
    stack = stacked(items) if items else None
    if stack is None:
        return None
    index = position if position.rank == 0 else F.reshape(position, i64())
    made: Value = F.gather(stack, index, axis=0)
    return made


def _row(node: Node, position: Value) -> Value | None:
    """Replace the read of a part of a split tensor by a Gather. Both fail if the position is out of range."""
    split = row_split(first(node))
    if split is None:
        return None
    op, x = operator(split, SplitToSequence), first(split)
    assert x.rank is not None
    shape = i64() if _drops_axis(split) else i64(1)
    index: Any = position if position.rank == len(shape) else F.reshape(position, shape)
    made: Value = F.gather(x, index, axis=normal_axis(op.axis, x.rank))
    return made


@_rule("SequenceLength")
def _length(node: Node, elements: Elements) -> Value | None:
    split = row_split(first(node))
    if split is None:
        return None
    x = first(split)
    assert x.rank is not None
    axis = normal_axis(operator(split, SplitToSequence).axis, x.rank)
    made: Value = F.squeeze(F.shape(x, start=axis, end=axis + 1), i64(0))
    return made


def _drops_axis(node: Node) -> bool:
    split = node.operands[1].tensor if len(node.inputs) > 1 else None
    return bool(operator(node, SplitToSequence).drops_axis(split))


@_rule("ConcatFromSequence")
def _joined(node: Node, elements: Elements) -> Value | None:
    op = operator(node, ConcatFromSequence)
    items = elements.all(first(node))
    if not items:
        return _stack_of_rows(node, op)
    if op.new_axis:
        axis = i64(op.axis)
        items = [F.unsqueeze(item, axis) for item in items]
    made: Value = items[0] if len(items) == 1 else F.concat(*items, axis=op.axis)
    return made


def _stack_of_rows(node: Node, op: ConcatFromSequence) -> Value | None:
    """Replace the concatenation of the parts of a split tensor by a transpose or reshape of that tensor."""
    split = row_split(first(node))
    if split is None:
        return None
    apart, x = operator(split, SplitToSequence), first(split)
    assert x.rank is not None
    source = normal_axis(apart.axis, x.rank)
    if not _drops_axis(split):
        if op.new_axis or normal_axis(op.axis, x.rank) != source:
            return None
        return x
    target = normal_axis(op.axis, x.rank if op.new_axis else x.rank - 1)
    perm = [axis for axis in range(x.rank) if axis != source]
    perm.insert(target, source)
    moved: Value = x if perm == sorted(perm) else F.transpose(x, perm=perm)
    if op.new_axis:
        return moved
    sizes = F.shape(moved)
    product = F.reduce_prod(F.slice(sizes, i64(target), i64(target + 2)), keepdims=True)
    before, after = F.slice(sizes, i64(0), i64(target)), F.slice(sizes, i64(target + 2), i64(x.rank))
    made: Value = F.reshape(moved, F.concat(before, product, after, axis=0), allowzero=True)
    return made


@_rule("SequenceElementSizes", DOMAIN)
def _sizes(node: Node, elements: Elements) -> Value | None:
    items = elements.all(first(node))
    axis = operator(node, SequenceElementSizes).axis
    if not items or not all(isinstance(item.type, TensorType) for item in items):
        return None
    sizes = [F.shape(item, start=axis, end=None if axis == -1 else axis + 1) for item in items]
    made: Value = sizes[0] if len(sizes) == 1 else F.concat(*sizes, axis=0)
    return made


@_rule("OptionalGetElement")
def _held(node: Node, elements: Elements) -> Value | None:
    x = first(node)
    if not isinstance(x.type, OptionalType):
        return x
    made = producer(x, "Optional")
    return made.inputs[0] if made is not None and made.inputs else None


@_rule("OptionalHasElement")
def _has(node: Node, elements: Elements) -> Value | None:
    x = node.inputs[0] if node.inputs else None
    made = producer(x, "Optional")
    if made is None and x is not None and isinstance(x.type, OptionalType):
        return None
    there: Value = F.constant(value=np.array(x is not None if made is None else bool(made.inputs)))
    return there
