"""Add a trip count to Loops whose condition compares a counter with a constant.

Exporters write `while` loops as Loops without a trip count; PyTorch's exporter does so for EmbeddingBag. With a trip
count, the sizes of scan outputs are known, and sequences that the loop fills become scan outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, operator
from graphkit.ops.control.operators import Loop
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.declare import CONTROL, graph_pass
from graphkit.passes.core.match import is_op, producer
from graphkit.passes.core.sweep import map_subgraphs, rewrite

# Operators that keep the element of an operand with one element.
_SAME_ELEMENT = ("Identity", "Reshape", "Unsqueeze", "Squeeze", "Cast", "CastLike")


class _Counter(NamedTuple):
    """A state that begins at `first` and grows by `step` in each of `trips` iterations."""

    state: int
    first: int
    step: int
    trips: int


@graph_pass(at=["Loop"])
def count_loops(graph: Graph) -> Graph:
    """Add a trip count to Loops that count up to a constant, also in subgraphs. Takes linear time.

    In their bodies, a Slice of one element becomes a Gather, whose result has a known size. This requires that its
    position is the counter plus a constant, and always within the data.
    """
    if graph.operators.isdisjoint(CONTROL):
        return graph

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        made = map_subgraphs(node, operands, count_loops)
        return (_with_trip_count(made) if is_op(made, "Loop") else made).outputs

    return rewrite(graph, rule, at=CONTROL)


def _with_trip_count(node: Node) -> Node:
    view = LoopView.of(node)
    counter = _counter(view)
    if counter is None:
        return node
    number = view.entry[0]
    count: Value = number
    if counter.step != 1:
        count = F.mul(count, F.constant(value=np.int64(counter.step)))
    if counter.first != 0:
        count = F.add(count, F.constant(value=np.int64(counter.first)))
    arguments = list(view.body.inputs)
    arguments[view.lead + counter.state] = count
    outputs = inline(view.body, arguments)
    body = Graph(view.body.inputs, [view.entry[1], *outputs[1:]], name=view.body.name)
    body = _with_gathered_elements(body, counter.trips)
    trips = F.constant(value=np.full(number.shape or (), counter.trips, np.int64))
    made = operator(node, Loop).replace(body=body)
    return Node(made, [trips, *view.operands[1:]], node.name, node.meta, output_names=[v.name for v in node.outputs])


def _counter(view: LoopView) -> _Counter | None:
    """Return the state that determines the number of iterations; None if there is none."""
    again = producer(view.body.outputs[0], "Less", "LessOrEqual")
    limit, condition = view.operands[:2]
    if again is None or (condition is not None and condition.tensor.constants != (1,)):
        return None
    most = None if limit is None else limit.tensor.constants
    if limit is not None and (most is None or most[0] < 1):
        return None
    known = {c.inner: c.outer.tensor.constants for c in view.captures}
    end = _integer(again.operands[1], known)
    number = view.entry[0]
    for i, state in enumerate(view.states):
        addition = producer(state.after, "Add")
        if addition is None or again.operands[0] is not state.after or state.before.type != number.type:
            continue
        steps = [_integer(v, known) for v in addition.operands if v is not state.before]
        first = state.initial.tensor.constants
        if len(steps) != 1 or end is None or steps[0] is None or steps[0] < 1 or first is None:
            continue
        last = end - 1 if is_op(again, "Less") else end
        trips = max((last - int(first[0])) // steps[0] + 1, 1)
        if int(first[0]) + trips * steps[0] > np.iinfo(np.int64).max:
            continue  # the counter wraps around
        return _Counter(i, int(first[0]), steps[0], trips if most is None else min(trips, int(most[0])))
    return None


def _integer(value: Value, known: Mapping[Value, Sequence[float] | None]) -> int | None:
    """Return the value of a constant int64 scalar, which may be a capture of the loop; None if it is not constant."""
    if value.dtype is not DType.INT64:
        return None  # a Cast from it may have changed the number
    constants = known.get(value, value.tensor.constants)
    if constants is None and (node := producer(value, *_SAME_ELEMENT)) is not None:
        return _integer(node.operands[0], known)
    return int(constants[0]) if constants is not None and len(constants) == 1 else None


def _with_gathered_elements(body: Graph, trips: int) -> Graph:
    """Return the body with Slices of one element, at the iteration number plus a constant, replaced by Gathers."""
    number = body.inputs[0]

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        data, start, end = (*operands, None, None)[:3]
        if data is None or start is None or end is None or data.shape is None or len(data.shape) != 1:
            return None
        if any(
            v is not None and v.tensor.constants != wanted
            for v, wanted in zip(operands[3:], ((0,), (1,)), strict=False)
        ):
            return None
        first, behind, size = _offset_from_iteration(start, number), _offset_from_iteration(end, number), data.shape[0]
        if first is None or behind is None or not isinstance(size, int):
            return None
        if behind - first != 1 or first < 0 or behind + trips - 1 > size:
            return None
        return [F.gather(data, start, axis=0)]

    return rewrite(body, rule, at=["Slice"])


def _offset_from_iteration(value: Value, number: Value) -> int | None:
    """Return the constant by which a single element exceeds the iteration number; None if it is not constant."""
    shift = 0
    while value is not number:
        if (node := producer(value, *_SAME_ELEMENT)) is not None:
            if value.dtype is not DType.INT64 or node.operands[0].tensor.size != 1:
                return None
            value = node.operands[0]
        elif (node := producer(value, "Add")) is not None:
            found = [(v, _integer(w, {})) for v, w in (node.operands, node.operands[::-1])]
            chosen = next(((v, added) for v, added in found if added is not None), None)
            if chosen is None:
                return None
            value, shift = chosen[0], shift + chosen[1]
        else:
            return None
    return shift
