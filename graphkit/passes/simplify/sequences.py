"""Sequences whose elements are known one by one: who reads an element reads what was put in.

A Split in the place of SplitToSequence and SequenceAt, a Concat in that of ConcatFromSequence: networks that chunk,
split and join by way of sequences run as those that do without, and nothing of the sequence is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import OptionalType, SequenceType, TensorType
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.axes import i64, normal_axis, zeros_like
from graphkit.ops.sequence.gradient import SizesOfElements
from graphkit.ops.sequence.split import ConcatFromSequence, SplitToSequence, parts
from graphkit.passes.core.declare import graph_pass
from graphkit.passes.core.match import first, is_op, producer
from graphkit.passes.core.sweep import CONTROL, is_control, map_bodies, map_subgraphs, rewrite

_STANDARD = frozenset({"SequenceAt", "ConcatFromSequence", "OptionalGetElement", "OptionalHasElement"})
_OWN = frozenset({"SizesOfElements"})


class _Zeros(NamedTuple):
    """An element that is zeros of the shape of another one."""

    like: Value


# An element; None where it is not known.
_Item: TypeAlias = "Value | _Zeros | None"


@graph_pass()
def resolve_sequences(graph: Graph) -> Graph:
    """Read elements of sequences, and what optionals hold, where they come from, in subgraphs too.

    What cannot be traced stays: sequences that are fed, that loops and branches return, or whose positions a run tells.
    Linear in nodes and in the elements that are read, but for positions that many insertions move.
    """
    return _resolved(graph, trusting=True)


def _resolved(graph: Graph, trusting: bool) -> Graph:
    """`trusting`: whether the declared types of inputs hold whenever the graph runs."""
    if graph.operators.isdisjoint(_STANDARD | _OWN | CONTROL):
        return graph
    elements = Elements(trusting)

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if is_control(node):
            trusted = map_bodies(node, operands, lambda inner: _resolved(inner, trusting))
            return map_subgraphs(trusted, trusted.inputs, lambda inner: _resolved(inner, False)).outputs
        rebuilt = node.rebuilt(operands)
        found = _rules.get((rebuilt.op.domain, rebuilt.op.name))
        result = found(rebuilt, elements) if found else None
        return rebuilt.outputs if result is None else (result,)

    return rewrite(graph, rule, at=_STANDARD | _OWN | CONTROL)


class Elements:
    """The elements of sequences, as far as the nodes that made them tell."""

    def __init__(self, trusting: bool = True):
        self._trusting = trusting
        self._parts: dict[Node, Sequence[Value] | None] = {}
        self._found: dict[tuple[Value, int], _Item] = {}

    def at(self, sequence: Value, index: int) -> Value | None:
        """The element number `index`, which may count from the back; None where it is not known."""
        length = _length(sequence)
        if length is None:
            return _last_inserted(sequence) if index == -1 else None
        if not -length <= index < length:
            return None
        return _as_value(self._item(sequence, index % length))

    def all(self, sequence: Value) -> list[Value] | None:
        """All elements of a sequence of known length; None where one of them is not known."""
        changes: list[tuple[Node, int]] = []
        base, length = sequence, _length(sequence)
        while length is not None and (node := producer(base, "SequenceInsert", "SequenceErase", "Identity")):
            before = _length(first(node))
            place = 0 if is_op(node, "Identity") else _place(node, before)
            if before is None or place is None:
                return None
            changes.append((node, place))
            base, length = first(node), before
        if length is None:
            return None
        items = [_as_value(self._item(base, i)) for i in range(length)]
        for node, place in reversed(changes):
            if is_op(node, "SequenceInsert"):
                items.insert(place, node.inputs[1])
            elif is_op(node, "SequenceErase"):
                del items[place]
        found = [item for item in items if item is not None]
        return found if len(found) == len(items) else None

    def _item(self, sequence: Value, index: int) -> _Item:
        """The element at a place that there is. Without recursion: gradients of long chains are nested as deep."""
        goal = _origin(sequence, index)
        pending = [goal] if goal is not None else []
        while pending:
            key = pending[-1]
            if key in self._found:
                pending.pop()
                continue
            needs, combine = self._step(*key)
            origins = [_origin(*need) for need in needs]
            missing = [o for o in origins if o is not None and o not in self._found]
            if missing:
                pending.extend(missing)
                continue
            self._found[key] = combine([None if o is None else self._found[o] for o in origins])
            pending.pop()
        return None if goal is None else self._found[goal]

    def _step(
        self, sequence: Value, index: int
    ) -> tuple[list[tuple[Value, int]], Callable[[list[_Item]], _Item]]:
        """Which other elements the element at `index` is made of, and how."""
        node = sequence.node
        assert node is not None
        op = node.op
        if is_op(node, "SequenceConstruct", "SequenceInsert"):
            # `_origin` has counted: of an insertion it is the element that is inserted.
            item = node.inputs[index] if op.name == "SequenceConstruct" else node.inputs[1]
            return [], lambda _: item
        if isinstance(op, SplitToSequence):
            return [], lambda _: self._part(node, index)
        if is_op(node, "NestedZeros", domain=DOMAIN):
            return [(first(node), index)], lambda found: _zeros_of(found[0])
        if is_op(node, "NestedSum", domain=DOMAIN):
            return [(v, index) for v in node.operands], _total
        if is_op(node, "SequenceAtGrad", domain=DOMAIN):
            dy, forward, position = node.operands
            place = _constant(position)
            length = _length(forward)
            if place is None or length is None or not -length <= place < length:
                return [], lambda _: None
            if place % length == index:
                return [], lambda _: dy
            return [(forward, index)], lambda found: _zeros_of(found[0])
        return [], lambda _: None

    def _part(self, node: Node, index: int) -> Value | None:
        if node not in self._parts:
            op = operator(node, SplitToSequence)
            x, split = (*node.inputs, None)[:2]
            assert x is not None
            told = split is not None and split.rank == 1 and split.tensor.value is not None
            usable = self._trusting or told
            self._parts[node] = parts(op, x, split) if usable else None
        found = self._parts[node]
        return None if found is None else found[index]


def _origin(sequence: Value, index: int) -> tuple[Value, int] | None:
    """Where the element at a place comes from: the value that made it, and its place there; None if unknown."""
    while True:
        node = sequence.node
        if node is None:
            return None
        if is_op(node, "Identity"):
            sequence = first(node)
            continue
        if not is_op(node, "SequenceInsert", "SequenceErase"):
            return sequence, index
        place = _place(node, _length(first(node)))
        if place is None:
            return None
        if is_op(node, "SequenceErase"):
            index += index >= place
        elif index == place:
            return sequence, index
        else:
            index -= index > place
        sequence = first(node)


def _place(node: Node, length: int | None) -> int | None:
    """Where a SequenceInsert puts its element, or a SequenceErase takes one, in a sequence of `length`."""
    inserts = is_op(node, "SequenceInsert")
    position = node.inputs[2 if inserts else 1] if len(node.inputs) > (2 if inserts else 1) else None
    if length is None:
        return None
    most = length if inserts else length - 1
    index = most if position is None else _constant(position)
    return None if index is None or not -length <= index <= most else index + length * (index < 0)


def _last_inserted(sequence: Value) -> Value | None:
    """The last element, where it was put there."""
    node = producer(sequence, "SequenceInsert")
    return node.inputs[1] if node is not None and len(node.inputs) == 2 else None


def _length(sequence: Value) -> int | None:
    kind = sequence.type
    return kind.length if isinstance(kind, SequenceType) and isinstance(kind.length, int) else None


def _constant(position: Value | None) -> int | None:
    known = None if position is None else position.tensor.constants
    return None if known is None or len(known) != 1 else int(known[0])


def _as_value(item: _Item) -> Value | None:
    if isinstance(item, _Zeros):
        made: Value = zeros_like(item.like)
        return made
    return item


def _zeros_of(item: _Item) -> _Item:
    return _Zeros(item) if isinstance(item, Value) else item


def _total(items: list[_Item]) -> _Item:
    """The sum, in which zeros do not count."""
    if any(item is None for item in items):
        return None
    terms = [item for item in items if isinstance(item, Value)]
    if not terms:
        return items[0]
    if len(terms) == 1:
        return terms[0]
    made: Value = F.nested_sum(*terms) if not isinstance(terms[0].type, TensorType) else F.sum(*terms)
    return made


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
    index = _constant(position)
    if index is not None and (found := elements.at(sequence, index)) is not None:
        return found
    return _row(node, position)


def _row(node: Node, position: Value) -> Value | None:
    """One element of a tensor taken apart along an axis: a Gather, which fails outside of it as well."""
    split = _into_rows(first(node))
    if split is None:
        return None
    op, x = operator(split, SplitToSequence), first(split)
    assert x.rank is not None
    shape = i64() if _drops_axis(split) else i64(1)
    index: Any = position if position.rank == len(shape) else F.reshape(position, shape)
    made: Value = F.gather(x, index, axis=normal_axis(op.axis, x.rank))
    return made


def _into_rows(sequence: Value) -> Node | None:
    """The node that takes a tensor of known rank apart into parts of size 1."""
    node = producer(sequence, "SplitToSequence")
    if node is None or first(node).rank is None:
        return None
    ones = len(node.inputs) == 1 or node.operands[1].tensor.rank == 0 and _constant(node.operands[1]) == 1
    return node if ones else None


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
    split = _into_rows(first(node))
    if split is None or not is_filled(first(split), operator(split, SplitToSequence).axis):
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


def is_filled(x: Value, axis: int) -> bool:
    """Whether there is something along an axis: joining no elements is an error."""
    shape = x.tensor.shape
    if shape is None:
        return False
    size = shape[normal_axis(axis, len(shape))]
    return isinstance(size, int) and size > 0


@_rule("SizesOfElements", DOMAIN)
def _sizes(node: Node, elements: Elements) -> Value | None:
    items = elements.all(first(node))
    axis = operator(node, SizesOfElements).axis
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


