"""Sequences that branches and loops capture, carry and return, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import SequenceType, TensorType, Type
from graphkit.ops import F, Op, operator
from graphkit.ops.axes import i64
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.control.operators import Loop
from graphkit.ops.control.views import IfView, LoopState, LoopView, capture_count, is_if, repeating
from graphkit.ops.sequence.elements import drawn, is_unnamed
from graphkit.ops.sequence.split import SplitToSequence
from graphkit.passes.core.draws import is_undetermined
from graphkit.passes.core.match import first, producer
from graphkit.passes.core.sweep import CONTROL
from graphkit.passes.simplify.elements import MOST_ELEMENTS, Elements, length_of, rows_of, stacked

# How many nodes a loop may become that is written out.
_UNROLLED = 4096
# What reads single elements, or may hand a sequence on to what does.
_BY_ELEMENT = frozenset({"SequenceAt", "SequenceLength"}) | CONTROL


class _Opened(NamedTuple):
    """Values that stand for a sequence outside of a subgraph, and how it is made of them inside."""

    outer: Sequence[Value]
    inside: Callable[[Sequence[Value]], Value]


# --- captures -------------------------------------------------------------------------------------


def with_open_captures(node: Node, elements: Elements) -> Node:
    """The node with tensors in the place of the sequences that it captures, as far as they are known."""
    start = len(node.inputs) - capture_count(node)
    opened: dict[int, _Opened] = {}
    for k in range(start, len(node.inputs)):
        value = node.inputs[k]
        if value is not None and isinstance(value.type, SequenceType):
            found = _opened(node, k - len(node.inputs), value, elements)
            if found is not None:
                opened[k - len(node.inputs)] = found
    if not opened:
        return node
    captured = list(node.inputs[start:])
    outer = [w for k, v in enumerate(captured) for w in _outer(opened, k - len(captured), v)]
    graphs = {name: _on_opened(graph, opened, len(captured)) for name, graph in node.op.subgraphs().items()}
    changes: dict[str, Any] = {**graphs} if is_if(node) else {**graphs, "captures": len(outer)}
    return _made(node, operator(node, Op).replace(**changes), [*node.inputs[:start], *outer], node.outputs)


def _outer(opened: dict[int, _Opened], place: int, value: Value | None) -> Sequence[Value | None]:
    return opened[place].outer if place in opened else [value]


def _opened(node: Node, place: int, value: Value, elements: Elements) -> _Opened | None:
    """How the capture at `place`, counted from the end, goes in."""
    source = producer(value, "SplitToSequence")
    if source is not None and not all(_by_element(g, g.inputs[place]) for g in node.op.subgraphs().values()):
        source = None
    items = None if source is not None and rows_of(value) is not None else elements.all(value)
    if items is not None and 0 < len(items) <= MOST_ELEMENTS:
        stack = None if is_if(node) else stacked(items)
        if stack is not None:
            # One tensor, of which a loop can read the element that its number says.
            return _Opened([stack], lambda inner: F.split_to_sequence(inner[0], keepdims=False))
        return _Opened(items, lambda inner: F.sequence_construct(*inner))
    if source is None:
        return None
    op = operator(source, SplitToSequence)
    return _Opened(source.operands, lambda inner: F.split_to_sequence(*inner, **op.attributes()))


def _by_element(graph: Graph, value: Value) -> bool:
    """Whether a graph reads no more of a sequence than elements and their number."""
    readers = (node for node in graph.nodes if value in node.inputs)
    return value not in graph.outputs and all(n.op.domain == "" and n.op.name in _BY_ELEMENT for n in readers)


def _on_opened(graph: Graph, opened: dict[int, _Opened], count: int) -> Graph:
    """The subgraph on what its captures, the last `count` inputs, were replaced by."""
    own = list(graph.inputs[: len(graph.inputs) - count])
    inputs, arguments = list(own), list(own)
    for k, value in enumerate(graph.inputs[len(own) :]):
        found = opened.get(k - count)
        inner = [value] if found is None else [Value(v.type, v.name) for v in found.outer]
        inputs += inner
        arguments.append(value if found is None else found.inside(inner))
    return Graph(inputs, inline(graph, arguments), name=graph.name)


# --- results and states ---------------------------------------------------------------------------


def opened_results(node: Node, elements: Elements) -> Sequence[Value]:
    """The node's results, sequences made of tensors that it returns in their place where that can be."""
    if is_if(node):
        return _results_of_branches(node, elements)
    view = LoopView.of(node)
    if view.is_loop:
        for number, state in enumerate(view.states):
            if isinstance(state.initial.type, SequenceType):
                results = _as_stack(view, number, state) or _one_by_one(view, number, state, elements)
                if results is not None:
                    return results
    return node.outputs


def _results_of_branches(node: Node, elements: Elements) -> Sequence[Value]:
    """Sequences of one length, whose elements both branches tell, element by element."""
    view = IfView.of(node)
    known: dict[int, tuple[list[Value], list[Value]]] = {}
    for i, value in enumerate(node.outputs):
        length = length_of(value)
        if length is not None and 0 < length <= MOST_ELEMENTS:
            pair = [elements.inside().all(g.outputs[i]) for g in view.branches]
            if pair[0] is not None and pair[1] is not None:
                known[i] = (pair[0], pair[1])
    if not known:
        return node.outputs
    branches = []
    for side, graph in enumerate(view.branches):
        outputs = [w for i, v in enumerate(graph.outputs) for w in (known[i][side] if i in known else [v])]
        branches.append(graph.replace(outputs=outputs))
    made = iter(Node(view.with_branches(*branches), node.inputs, node.name, node.meta).outputs)
    return [
        F.sequence_construct(*(next(made) for _ in known[i][0])) if i in known else next(made)
        for i in range(len(node.outputs))
    ]


def _as_stack(view: LoopView, number: int, state: LoopState) -> Sequence[Value] | None:
    """The results where a state starts empty, and gets one element of the same shape at its end in each iteration."""
    insertion = producer(state.after, "SequenceInsert")
    if insertion is None or len(insertion.inputs) > 2 or first(insertion) is not state.before:
        return None
    row = insertion.operands[1]
    readers = [n for n in view.body.nodes if state.before in n.inputs or state.after in n.inputs]
    returned = view.body.outputs.count(state.after) + view.body.outputs.count(state.before)
    if length_of(state.initial) != 0 or readers != [insertion] or returned > 1:
        return None
    if not (_declares_what_holds(view) and view.keeps_size(row)):
        return None
    position = view.flag + number
    outputs = [v for i, v in enumerate(view.body.outputs) if i != position]
    made = _with_states(view, {number: []}, [*outputs, row], view.body.inputs)
    results = list(made.outputs)
    results.insert(number, F.split_to_sequence(results.pop(), keepdims=False))
    return results


def _declares_what_holds(view: LoopView) -> bool:
    """Whether the sizes that the body declares for tensors are those of every iteration."""
    pairs = [*((s.before, s.initial) for s in view.states), *view.captures]
    before = all(_covers(inner.type, outer.type, named=True) for inner, outer in pairs)
    return before and all(_covers(s.before.type, s.after.type, named=False) for s in view.states)


def _covers(declared: Type, given: Type, *, named: bool) -> bool:
    """Whether tensors of a type are of the declared one; with `named` a name stands for any size."""
    if not isinstance(declared, TensorType) or not isinstance(given, TensorType) or declared.shape is None:
        return True
    if given.shape is None or len(given.shape) != len(declared.shape):
        return False
    pairs = zip(declared.shape, given.shape, strict=True)
    return all(d == g or (not isinstance(d, int) and (named or is_unnamed(d))) for d, g in pairs)


def _one_by_one(view: LoopView, number: int, state: LoopState, elements: Elements) -> Sequence[Value] | None:
    """The results where a state keeps its length, and the body tells the elements that it leaves."""
    items = elements.all(state.initial)
    if items is None or not 0 < len(items) <= MOST_ELEMENTS:
        return None
    assert isinstance(state.before.type, SequenceType)
    kind = state.before.type.element
    inner = [Value(drawn(without_value(kind)), f"{state.before.name}_{i}") for i in range(len(items))]
    place = view.lead + number
    arguments = list(view.body.inputs)
    arguments[place] = F.sequence_construct(*inner)
    outputs = inline(view.body, arguments)
    position = view.flag + number
    after = elements.inside().all(outputs[position])
    if after is None or len(after) != len(items):
        return None
    outputs[position : position + 1] = after
    inputs = [*view.body.inputs[:place], *inner, *view.body.inputs[place + 1 :]]
    made = _with_states(view, {number: items}, outputs, inputs)
    results = list(made.outputs)
    results[number : number + len(items)] = [F.sequence_construct(*results[number : number + len(items)])]
    return results


def _with_states(
    view: LoopView, replaced: dict[int, Sequence[Value]], outputs: Sequence[Value], inputs: Sequence[Value]
) -> Node:
    """The loop with other initial values in the place of some of its states, on a body of these outputs."""
    operands: list[Value | None] = []
    kept: list[Value] = []
    for k, value in enumerate(view.operands):
        number = k - view.lead
        operands += replaced.get(number, [value]) if number >= 0 else [value]
    dropped = {view.body.inputs[view.lead + n] for n, items in replaced.items() if not items}
    kept = [v for v in inputs if v not in dropped]
    body = Graph(kept, outputs, name=view.body.name)
    node = view.node
    return Node(repeating(node).replace(body=body), operands, node.name, node.meta)


# --- loops written out ----------------------------------------------------------------------------


def unrolled(node: Node, elements: Elements) -> Sequence[Value] | None:
    """The results of a loop of few known iterations, without the loop, where it carries or captures known sequences."""
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
    """How often the body runs, where that is a number."""
    limit, condition = view.operands[:2]
    again = view.body.outputs[0].tensor.constants
    starts = condition is None or condition.tensor.constants == (1,)
    known = None if limit is None else limit.tensor.constants
    goes_on = again == (1,) or view.body.outputs[0] is view.body.inputs[1]
    return max(int(known[0]), 0) if known is not None and starts and goes_on else None


def _made(node: Node, op: Any, operands: Sequence[Value | None], outputs: Sequence[Value]) -> Node:
    return Node(op, operands, node.name, node.meta, output_names=[v.name for v in outputs])
