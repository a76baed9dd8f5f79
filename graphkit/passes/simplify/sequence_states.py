"""Replace sequences that If, Loop and Scan capture, carry or return by tensors."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import SequenceType, TensorType, Type
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, Op, operator
from graphkit.ops.axes import i64
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.control.operators import Loop
from graphkit.ops.control.views import IfView, LoopView, capture_count, is_if, repeating
from graphkit.ops.sequence.elements import drawn, is_unnamed
from graphkit.ops.sequence.split import SplitToSequence
from graphkit.passes.core.declare import CONTROL
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.match import first, producer
from graphkit.passes.simplify.elements import MOST_ELEMENTS, Elements, length_of, row_split, stacked

# The largest number of nodes that an unrolled loop may have.
_UNROLLED = 4096
# Operators that need only single elements of a sequence. If, Loop and Scan count: their subgraphs may contain the
# others.
_BY_ELEMENT = frozenset({"SequenceAt", "SequenceLength"}) | CONTROL


class _CaptureReplacement(NamedTuple):
    """Replaces a captured sequence: the values that are captured instead, and a function that rebuilds the sequence
    from them.
    """

    outer: Sequence[Value]
    inside: Callable[[Sequence[Value]], Value]


# --- captures -------------------------------------------------------------------------------------


def with_tensor_captures(node: Node, elements: Elements) -> Node:
    """Return the node with captured sequences replaced by tensors, where the elements are known."""
    start = len(node.inputs) - capture_count(node)
    given = {k - len(node.inputs): v for k, v in enumerate(node.inputs) if k >= start and v is not None}
    sequences = {place: v for place, v in given.items() if isinstance(v.type, SequenceType)}
    if not sequences:
        return node
    whole = frozenset().union(*(_read_as_whole(g) for g in node.op.subgraphs().values()))
    replacements = {
        place: found
        for place, v in sequences.items()
        if (found := _capture_replacement(node, place, v, whole, elements))
    }
    if not replacements:
        return node
    captured = list(node.inputs[start:])
    outer = [w for k, v in enumerate(captured) for w in _outer_values(replacements, k - len(captured), v)]
    graphs = {
        name: _with_replaced_captures(graph, replacements, len(captured)) for name, graph in node.op.subgraphs().items()
    }
    changes: dict[str, Any] = {**graphs} if is_if(node) else {**graphs, "captures": len(outer)}
    return _made(node, operator(node, Op).replace(**changes), [*node.inputs[:start], *outer], node.outputs)


def _outer_values(
    replacements: dict[int, _CaptureReplacement], place: int, value: Value | None
) -> Sequence[Value | None]:
    return replacements[place].outer if place in replacements else [value]


def _capture_replacement(
    node: Node, place: int, value: Value, whole: frozenset[Value], elements: Elements
) -> _CaptureReplacement | None:
    """Return how to replace the capture at `place`, which is negative and counts from the end; None if it stays.

    whole: The values that subgraphs read as a whole, not by single elements.
    """
    source = producer(value, "SplitToSequence")
    if source is not None and any(g.inputs[place] in whole for g in node.op.subgraphs().values()):
        source = None
    items = None if source is not None and row_split(value) is not None else elements.all(value)
    if items is not None and 0 < len(items) <= MOST_ELEMENTS:
        stack = None if is_if(node) else stacked(items)
        if stack is not None:
            # A stacked tensor: the loop may read an element whose index it computes.
            return _CaptureReplacement([stack], lambda inner: F.split_to_sequence(inner[0], keepdims=False))
        return _CaptureReplacement(items, lambda inner: F.sequence_construct(*inner))
    if source is None:
        return None
    op = operator(source, SplitToSequence)
    return _CaptureReplacement(source.operands, lambda inner: F.split_to_sequence(*inner, **op.attributes()))


def _read_as_whole(graph: Graph) -> frozenset[Value]:
    """Return the values that a graph returns, or that an operator other than those in _BY_ELEMENT reads."""
    readers = (n for n in graph.nodes if n.op.domain or n.op.name not in _BY_ELEMENT)
    return frozenset([*graph.outputs, *(v for node in readers for v in node.operands)])


def _with_replaced_captures(graph: Graph, replacements: dict[int, _CaptureReplacement], count: int) -> Graph:
    """Return the subgraph with the replaced captures as inputs. The captures are its last `count` inputs."""
    own = list(graph.inputs[: len(graph.inputs) - count])
    inputs, arguments = list(own), list(own)
    for k, value in enumerate(graph.inputs[len(own) :]):
        found = replacements.get(k - count)
        inner = [value] if found is None else [Value(v.type, v.name) for v in found.outer]
        inputs += inner
        arguments.append(value if found is None else found.inside(inner))
    return Graph(inputs, inline(graph, arguments), name=graph.name)


# --- results and states ---------------------------------------------------------------------------


def with_tensor_results(node: Node, elements: Elements) -> Sequence[Value]:
    """Return the results of the node. If possible, it returns tensors; the sequences are rebuilt from them after it."""
    if is_if(node):
        return _branch_results(node, elements) or node.outputs
    view = LoopView.of(node)
    if not view.is_loop:
        return node.outputs
    return _as_stacks(view, elements) or _as_element_states(view, elements) or node.outputs


def _branch_results(node: Node, elements: Elements) -> Sequence[Value] | None:
    """Return the results of an If that returns single elements instead of sequences; None if it stays as it is.

    This applies to sequences of fixed length whose elements are known in both branches.
    """
    view = IfView.of(node)
    known: dict[int, tuple[list[Value], list[Value]]] = {}
    for i, value in enumerate(node.outputs):
        length = length_of(value)
        if length is not None and 0 < length <= MOST_ELEMENTS:
            then, other = (elements.inside().all(g.outputs[i]) for g in view.branches)
            if then is not None and other is not None:
                known[i] = (then, other)
    if not known:
        return None
    branches = [
        graph.replace(outputs=_spliced(graph.outputs, {i: pair[side] for i, pair in known.items()}))
        for side, graph in enumerate(view.branches)
    ]
    made = Node(view.with_branches(*branches), node.inputs, node.name, node.meta)
    return _regrouped(made, {i: len(then) for i, (then, _) in known.items()}, len(node.outputs))


def _spliced(values: Sequence[Value], items: Mapping[int, Sequence[Value]]) -> list[Value]:
    """Return the values, with each position in `items` replaced by several values."""
    return [w for i, v in enumerate(values) for w in items.get(i, [v])]


def _regrouped(made: Node, lengths: Mapping[int, int], count: int) -> list[Value]:
    """Return the `count` original results of a node that returns single elements instead of sequences.

    lengths: The lengths of these sequences, by the position of the result.
    """
    found = iter(made.outputs)
    return [
        F.sequence_construct(*itertools.islice(found, lengths[i])) if i in lengths else next(found)
        for i in range(count)
    ]


class _Appended(NamedTuple):
    """The element that an iteration appends to a sequence, and the initial elements, stacked (None: the sequence is
    empty).
    """

    row: Value
    start: Value | None


def _as_stacks(view: LoopView, elements: Elements) -> Sequence[Value] | None:
    """Turn states into scan outputs if each iteration appends one element of fixed shape. Return None if impossible."""
    appended = _appended(view, elements)
    if not appended or not _declared_shapes_hold(view):
        return None
    kept = [v for i, v in enumerate(view.body.outputs) if i - view.flag not in appended]
    rows = [found.row for found in appended.values()]
    made = _with_states(view, dict.fromkeys(appended, ()), [*kept, *rows], view.body.inputs)
    stacks = dict(zip(appended, made.outputs[-len(rows) :], strict=True))
    # The same dimension may have another name inside of the body.
    if not all(_fits(found.start, stacks[i]) for i, found in appended.items()):
        return None
    found = iter(made.outputs)
    return [
        _rows_as_sequence(appended[i].start, stacks[i]) if i in appended else next(found)
        for i in range(len(view.node.outputs))
    ]


def _fits(start: Value | None, stack: Value) -> bool:
    """Return whether the initial rows have the same shape as the stacked ones."""
    return start is None or start.tensor.known_shape[1:] == (stack.shape or ())[1:]


def _rows_as_sequence(start: Value | None, stack: Value) -> Value:
    """Return the sequence of the rows of `start`, if any, and of `stack`."""
    made: Value = F.split_to_sequence(stack if start is None else F.concat(start, stack, axis=0), keepdims=False)
    return made


def _appended(view: LoopView, elements: Elements) -> dict[int, _Appended]:
    """Return, by state, the elements that each iteration appends to a sequence that the loop does not read itself."""
    body = view.body
    readers = Counter(v for node in body.nodes for v in set(node.operands))
    returned = Counter(body.outputs)
    rows: dict[int, _Appended] = {}
    for number, state in enumerate(view.states):
        insertion = producer(state.after, "SequenceInsert")
        if insertion is None or len(insertion.inputs) > 2 or first(insertion) is not state.before:
            continue
        row = insertion.operands[1]
        alone = readers[state.before] == 1 and not readers[state.after]
        alone = alone and returned[state.before] + returned[state.after] == 1
        if not alone or not view.keeps_size(row):
            continue
        length = length_of(state.initial)
        if length == 0:
            rows[number] = _Appended(row, None)
        elif length is not None and length <= MOST_ELEMENTS:
            items = elements.all(state.initial)
            start = stacked(items) if items and all(v.type == row.type for v in items) else None
            if start is not None:
                rows[number] = _Appended(row, start)
    return rows


def _declared_shapes_hold(view: LoopView) -> bool:
    """Return whether the shapes that the body declares for its tensors hold in every iteration."""
    pairs = [*((s.before, s.initial) for s in view.states), *view.captures]
    before = all(_has_declared_type(inner.type, outer.type, named=True) for inner, outer in pairs)
    return before and all(_has_declared_type(s.before.type, s.after.type, named=False) for s in view.states)


def _has_declared_type(declared: Type, given: Type, *, named: bool) -> bool:
    """Return whether a tensor of type `given` has the declared type. named: whether a name matches any size."""
    if not isinstance(declared, TensorType) or not isinstance(given, TensorType) or declared.shape is None:
        return True
    if given.shape is None or len(given.shape) != len(declared.shape):
        return False
    pairs = zip(declared.shape, given.shape, strict=True)
    return all(d == g or (not isinstance(d, int) and (named or is_unnamed(d))) for d, g in pairs)


def _as_element_states(view: LoopView, elements: Elements) -> Sequence[Value] | None:
    """Split sequence states into one state for each element. Returns the results, or None.

    This applies to sequences whose length does not change, and whose elements are known after the body.
    """
    known: dict[int, list[Value]] = {}
    for number, state in enumerate(view.states):
        items = elements.all(state.initial) if isinstance(state.initial.type, SequenceType) else None
        if items is not None and 0 < len(items) <= MOST_ELEMENTS:
            known[number] = items
    while known and elements.budget.take(len(view.body.nodes)):
        inner = {number: _inner_elements(view.states[number].before, len(items)) for number, items in known.items()}
        sequences = {view.lead + number: [F.sequence_construct(*values)] for number, values in inner.items()}
        outputs = inline(view.body, _spliced(view.body.inputs, sequences))
        inside = elements.inside()
        after = {number: inside.all(outputs[view.flag + number]) or [] for number in known}
        resolved = {number: items for number, items in known.items() if len(after[number]) == len(items)}
        if len(resolved) < len(known):  # others may depend on the unknown elements
            known = resolved
            continue
        inputs = _spliced(view.body.inputs, {view.lead + number: values for number, values in inner.items()})
        outputs = _spliced(outputs, {view.flag + number: values for number, values in after.items()})
        made = _with_states(view, known, outputs, inputs)
        return _regrouped(made, {number: len(items) for number, items in known.items()}, len(view.node.outputs))
    return None


def _inner_elements(before: Value, count: int) -> list[Value]:
    """Return new inputs of the body for the elements of a sequence state."""
    assert isinstance(before.type, SequenceType)
    return [Value(drawn(without_value(before.type.element)), f"{before.name}_{i}") for i in range(count)]


def _with_states(
    view: LoopView, replaced: Mapping[int, Sequence[Value]], outputs: Sequence[Value], inputs: Sequence[Value]
) -> Node:
    """Return the loop with another body, and with several or no initial values instead of those of the states in
    `replaced`.
    """
    operands: list[Value | None] = []
    for k, value in enumerate(view.operands):
        operands += replaced.get(k - view.lead, [value])
    dropped = {view.body.inputs[view.lead + n] for n, items in replaced.items() if not items}
    body = Graph([v for v in inputs if v not in dropped], outputs, name=view.body.name)
    node = view.node
    return Node(repeating(node).replace(body=body), operands, node.name, node.meta)


# --- unrolled loops -------------------------------------------------------------------------------


def unrolled(node: Node, elements: Elements) -> Sequence[Value] | None:
    """Unroll a Loop that has sequences as states or captures, and a small known number of iterations.

    Returns the results, or None if the loop is kept.
    """
    if is_if(node) or not isinstance(node.op, Loop):
        return None
    view = LoopView.of(node)
    carried = [v for v in view.operands[view.lead :] if v is not None and isinstance(v.type, SequenceType)]
    trips = _trips(view)
    if not carried or trips is None or trips * max(len(view.body.nodes), 1) > _UNROLLED:
        return None
    if not elements.budget.take(trips * len(view.body.nodes)):
        return None
    if any(length_of(v) is None for v in carried) or is_undetermined(node):
        return None
    state: list[Value] = [s.initial for s in view.states]
    captured = [c.outer for c in view.captures]
    rows: list[list[Value]] = [[] for _ in view.scan_outputs]
    number, condition = ((1,) if v.shape == (1,) else () for v in view.entry)
    for i in range(trips):
        entry = [F.constant(value=np.full(number, i, np.int64)), F.constant(value=np.ones(condition, bool))]
        found = inline(view.body, [*entry, *state, *captured])
        state = found[1 : 1 + len(state)]
        for row, value in zip(rows, found[1 + len(state) :], strict=True):
            row.append(value)
    if not all(trips and isinstance(v.type, TensorType) for row in rows for v in row) or (rows and not trips):
        return None
    return [*state, *(F.concat(*(F.unsqueeze(v, i64(0)) for v in row), axis=0) for row in rows)]


def _trips(view: LoopView) -> int | None:
    """Return the number of iterations if it is constant; else None."""
    limit, condition = view.operands[:2]
    again = view.body.outputs[0].tensor.constants
    starts = condition is None or condition.tensor.constants == (1,)
    known = None if limit is None else limit.tensor.constants
    continues = again == (1,) or view.body.outputs[0] is view.body.inputs[1]
    return max(int(known[0]), 0) if known is not None and starts and continues else None


def _made(node: Node, op: Any, operands: Sequence[Value | None], outputs: Sequence[Value]) -> Node:
    return Node(op, operands, node.name, node.meta, output_names=[v.name for v in outputs])
