"""Find the elements of sequences from the nodes that built the sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from graphkit.ir.graph import Node, Value
from graphkit.ir.types import SequenceType, TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops.axes import i64, zeros_like
from graphkit.ops.sequence.split import SplitToSequence, parts
from graphkit.passes.core.match import first, is_op, producer

# The largest number of elements of a sequence that become separate operands, results or states.
MOST_ELEMENTS = 64


class _Zeros(NamedTuple):
    """A zero element with the shape of another element."""

    like: Value


# An element; None if it is unknown.
_Item: TypeAlias = "Value | _Zeros | None"


class Budget:
    """The number of steps that one pass may take. It protects against small files that describe very long sequences."""

    def __init__(self, steps: int = 1 << 18):
        self._left = steps

    def take(self, steps: int) -> bool:
        """Use up `steps` steps. Returns False, and uses none, if fewer are left."""
        if steps > self._left:
            return False
        self._left -= steps
        return True


class Elements:
    """Finds the elements of sequences from the nodes that built them, as long as the budget lasts.

    trusts_inputs: whether the declared types of graph inputs hold in every run.
    """

    def __init__(self, budget: Budget, *, trusts_inputs: bool):
        self.budget = budget
        self._trusts_inputs = trusts_inputs
        self._parts: dict[Node, Sequence[Value] | None] = {}
        self._found: dict[tuple[Value, int], _Item] = {}

    def inside(self, *, trusts_inputs: bool = False) -> Elements:
        """Return the object for a subgraph. It trusts its inputs only if this graph does and `trusts_inputs` is set."""
        return Elements(self.budget, trusts_inputs=trusts_inputs and self._trusts_inputs)

    def at(self, sequence: Value, index: int) -> Value | None:
        """Return element `index`, which may be negative; None if it is unknown."""
        length = length_of(sequence)
        if length is None:
            return _last_inserted(sequence) if index == -1 else None
        if not -length <= index < length:
            return None
        return _as_value(self._item(sequence, index % length))

    def all(self, sequence: Value) -> list[Value] | None:
        """Return all elements of a sequence of known length; None if one of them is unknown."""
        changes: list[tuple[Node, int]] = []
        base, length = sequence, length_of(sequence)
        while length is not None and (node := producer(base, "SequenceInsert", "SequenceErase", "Identity")):
            before = length_of(first(node))
            place = 0 if is_op(node, "Identity") else _place(node, before)
            if before is None or place is None or not self.budget.take(1):
                return None
            changes.append((node, place))
            base, length = first(node), before
        if length is None or not self.budget.take(length):
            return None
        items: list[Value | None] = []
        for i in range(length):
            items.append(_as_value(self._item(base, i)))
            if items[-1] is None:
                return None
        for node, place in reversed(changes):
            if is_op(node, "SequenceInsert"):
                items.insert(place, node.inputs[1])
            elif is_op(node, "SequenceErase"):
                del items[place]
        return [item for item in items if item is not None]

    def _item(self, sequence: Value, index: int) -> _Item:
        """Return the element at a valid index. Iterative, because gradients of long chains are deeply nested."""
        goal = self._origin(sequence, index)
        pending = [goal] if goal is not None else []
        while pending:
            key = pending[-1]
            if key in self._found:
                pending.pop()
                continue
            needs, combine = self._step(*key)
            origins = [self._origin(*need) for need in needs]
            missing = [o for o in origins if o is not None and o not in self._found]
            if missing:
                pending.extend(missing)
                continue
            self._found[key] = combine([None if o is None else self._found[o] for o in origins])
            pending.pop()
        return None if goal is None else self._found[goal]

    def _step(self, sequence: Value, index: int) -> tuple[list[tuple[Value, int]], Callable[[list[_Item]], _Item]]:
        """Return the elements from which the element at `index` is computed, and the function that computes it."""
        node = sequence.node
        assert node is not None
        op = node.op
        if is_op(node, "SequenceConstruct", "SequenceInsert"):
            # `_origin` stops at a SequenceInsert only if `index` is the inserted element.
            item = node.inputs[index] if op.name == "SequenceConstruct" else node.inputs[1]
            return [], lambda _: item
        if isinstance(op, SplitToSequence):
            return [], lambda _: self._part(node, index)
        if is_op(node, "ZerosLike", domain=DOMAIN):
            return [(first(node), index)], lambda found: _zeros_of(found[0])
        if is_op(node, "AddN", domain=DOMAIN):
            return [(v, index) for v in node.operands], _sum_of
        if is_op(node, "SequenceAtGrad", domain=DOMAIN):
            dy, forward, position = node.operands
            place = constant_position(position)
            length = length_of(forward)
            if place is None or length is None or not -length <= place < length:
                return [], lambda _: None
            if place % length == index:
                return [], lambda _: dy
            return [(forward, index)], lambda found: _zeros_of(found[0])
        return [], lambda _: None

    def _origin(self, sequence: Value, index: int) -> tuple[Value, int] | None:
        """Return (sequence, index) of the same element before insertions and erasures; None if unknown."""
        while True:
            node = sequence.node
            if node is None or not self.budget.take(1):
                return None
            if is_op(node, "Identity"):
                sequence = first(node)
                continue
            if not is_op(node, "SequenceInsert", "SequenceErase"):
                return sequence, index
            place = _place(node, length_of(first(node)))
            if place is None:
                return None
            if is_op(node, "SequenceErase"):
                index += index >= place
            elif index == place:
                return sequence, index
            else:
                index -= index > place
            sequence = first(node)

    def _part(self, node: Node, index: int) -> Value | None:
        if node not in self._parts:
            op = operator(node, SplitToSequence)
            x, split = (*node.inputs, None)[:2]
            assert x is not None
            is_known = split is not None and split.rank == 1 and split.tensor.value is not None
            usable = (self._trusts_inputs or is_known) and self.budget.take(length_of(node.output) or 0)
            self._parts[node] = parts(op, x, split) if usable else None
        found = self._parts[node]
        return None if found is None else found[index]


def _place(node: Node, length: int | None) -> int | None:
    """Return the index at which a SequenceInsert or SequenceErase changes a sequence of `length`; None if unknown."""
    inserts = is_op(node, "SequenceInsert")
    position = node.inputs[2 if inserts else 1] if len(node.inputs) > (2 if inserts else 1) else None
    if length is None:
        return None
    most = length if inserts else length - 1
    index = most if position is None else constant_position(position)
    return None if index is None or not -length <= index <= most else index + length * (index < 0)


def _last_inserted(sequence: Value) -> Value | None:
    """Return the last element if the sequence was made by appending it; else None."""
    node = producer(sequence, "SequenceInsert")
    return node.inputs[1] if node is not None and len(node.inputs) == 2 else None


def length_of(sequence: Value) -> int | None:
    kind = sequence.type
    return kind.length if isinstance(kind, SequenceType) and isinstance(kind.length, int) else None


def constant_position(position: Value | None) -> int | None:
    known = None if position is None else position.tensor.constants
    return None if known is None or len(known) != 1 else int(known[0])


def _as_value(item: _Item) -> Value | None:
    if isinstance(item, _Zeros):
        made: Value = zeros_like(item.like)
        return made
    return item


def _zeros_of(item: _Item) -> _Item:
    return _Zeros(item) if isinstance(item, Value) else item


def _sum_of(items: list[_Item]) -> _Item:
    """Return the sum of the items. Known zeros are left out."""
    if any(item is None for item in items):
        return None
    terms = [item for item in items if isinstance(item, Value)]
    if not terms:
        return items[0]
    if len(terms) == 1:
        return terms[0]
    made: Value = F.add_n(*terms) if not isinstance(terms[0].type, TensorType) else F.sum(*terms)
    return made


def stacked(items: Sequence[Value]) -> Value | None:
    """Stack the elements along a new first axis; None if their types differ or are not tensors of known rank."""
    kinds = [item.type for item in items]
    if not all(isinstance(t, TensorType) and t.shape is not None and t == kinds[0] for t in kinds):
        return None
    made: Value = F.concat(*(F.unsqueeze(item, i64(0)) for item in items), axis=0)
    return made


def row_split(sequence: Value) -> Node | None:
    """Return the SplitToSequence that made the sequence, if it splits a tensor of known rank into parts of size 1."""
    node = producer(sequence, "SplitToSequence")
    if node is None or first(node).rank is None:
        return None
    ones = len(node.inputs) == 1 or (node.operands[1].tensor.rank == 0 and constant_position(node.operands[1]) == 1)
    return node if ones else None
