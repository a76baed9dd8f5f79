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
    rows_of,
    stacked,
)
from graphkit.passes.simplify.sequence_states import opened_results, unrolled, with_open_captures

_READERS = frozenset(
    {
        "SequenceAt", "SequenceLength", "ConcatFromSequence", "OptionalGetElement", "OptionalHasElement",
        "SequenceElementSizes",
    }
)  # fmt: skip


@graph_pass(at=_READERS)
def resolve_sequences(graph: Graph) -> Graph:
    """Read elements of sequences, and what optionals hold, where they come from, in subgraphs too.

    Sequences that go into branches and loops go in as tensors, and those that loops fill come out as scan outputs; a
    loop of few known iterations is written out where its sequences need that. What cannot be traced stays: sequences
    that are fed, or whose positions a run tells. Linear in nodes and in the elements that are read, but for positions
    that many insertions move.
    """
    budget = Budget()
    while not graph.operators.isdisjoint(_READERS | CONTROL) and any(n.op.name in _READERS for n in all_nodes(graph)):
        opened: list[Node] = []
        graph = _resolved(graph, Elements(budget, trusting=True), opened)
        if not opened:
            break
    return graph


def _resolved(graph: Graph, elements: Elements, opened: list[Node]) -> Graph:
    """`opened` gets nodes of control flow for whose results there is more to find now."""
    if graph.operators.isdisjoint(_READERS | CONTROL):
        return graph

    def control(node: Node, operands: Sequence[Value | None]) -> Sequence[Value]:
        node = node.rebuilt(operands)
        results = unrolled(node, elements)
        if results is not None:
            opened.append(node)
            return results
        node = with_open_captures(node, elements)
        trusting = declared_types_hold(node, node.inputs)
        inside = map_subgraphs(
            node, node.inputs, lambda inner: _resolved(inner, elements.inside(trusting=trusting), opened)
        )
        results = opened_results(inside, elements)
        if results is not inside.outputs:
            opened.append(inside)
        return results

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            return control(node, operands)
        rebuilt = node.rebuilt(operands)
        found = _rules.get((rebuilt.op.domain, rebuilt.op.name))
        try:
            result = found(rebuilt, elements) if found else None
        except TypeMismatch:  # elements do not fit each other: the node fails when it runs, if it ever does
            result = None
        return rebuilt.outputs if result is None else (result,)

    return rewrite(graph, rule, at=_READERS | CONTROL)


# --- who reads ------------------------------------------------------------------------------------

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
    """One of few elements of one shape: a Gather from all of them."""
    length = length_of(sequence)
    items = elements.all(sequence) if length is not None and length <= MOST_ELEMENTS else None
    stack = stacked(items) if items else None
    if stack is None:
        return None
    index = position if position.rank == 0 else F.reshape(position, i64())
    made: Value = F.gather(stack, index, axis=0)
    return made


def _row(node: Node, position: Value) -> Value | None:
    """One element of a tensor taken apart along an axis: a Gather, which fails outside of it as well."""
    split = rows_of(first(node))
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
    split = rows_of(first(node))
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
    """What was taken apart along an axis, put together along another one."""
    split = rows_of(first(node))
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
