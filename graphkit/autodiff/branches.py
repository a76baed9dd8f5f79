"""The gradient of If: an If on the same condition, whose branches differentiate the branches.

Values that a branch computed and its backward pass reads become further results of the forward If. The branch that was
not taken returns zeros of the same shape for them, so that the saved values can be stacked if the If is in a loop. A
value whose shape the other branch cannot know is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.autodiff.saving import (
    by_shape,
    invariant_values,
    is_view,
    placeholder,
    read_values,
    rebuild,
    shape_stand_in,
)
from graphkit.autodiff.subgraphs import Contribution, Differentiate, differentiable
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops.axes import zeros_like
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.control.views import IfView
from graphkit.passes.control.merge import merge_control


@dataclass
class _Branch:
    """A branch and its backward pass. `found`: gradients of its inputs; `read`: forward values they depend on."""

    graph: Graph
    seeds: list[Value]
    found: dict[Value, Value | None]
    extended: list[Node]
    results: list[Value] = field(default_factory=list)
    read: list[Value] = field(default_factory=list)
    # Forward value -> its replacement in the backward branch.
    table: dict[Value, Value] = field(default_factory=dict)


@dataclass
class _Slot:
    """A result of the forward If that the backward If reads. `values`: what each branch returns there, or None."""

    values: list[Value | None]
    output: Value | None = None

    @property
    def result(self) -> Value:
        assert self.output is not None, "every slot has its result once the forward node is extended"
        return self.output


def if_gradient(
    node: Node, gradients: Sequence[Value | None], active: set[Value], differentiate: Differentiate
) -> Contribution:
    """Gradients of the operands of an If, and the forward node extended by the values to save (None if unchanged)."""
    view = IfView.of(node)
    operands = view.captures
    reached = [i for i, g in enumerate(gradients) if g is not None]
    wanted = [k for k, v in enumerate(operands) if v in active and differentiable(v)]
    branches = [_backward(g, reached, wanted, differentiate) for g in view.branches]
    wanted = [k for k in wanted if any(b.found[b.graph.inputs[k]] is not None for b in branches)]
    if not wanted:
        return [None] * len(node.inputs), None
    for this, other in (branches, branches[::-1]):
        _find_reads(this, other, wanted)
    slots = _slots(node, branches)
    extended = _saved(node, branches, slots)
    captured = [k for k in range(len(operands)) if any(b.graph.inputs[k] in b.read for b in branches)]
    backward = F.if_(
        view.condition,
        *(operands[k] for k in captured),
        *(s.result for s in slots),
        *(gradients[i] for i in reached),
        then_branch=_rebuilt(branches[0], captured, slots, 0),
        else_branch=_rebuilt(branches[1], captured, slots, 1),
        name=f"{node.name}_backward" if node.name else "",
    )
    values = backward if isinstance(backward, tuple) else (backward,)
    by_position = dict(zip(wanted, values, strict=True))
    return [None, *(by_position.get(k) for k in range(len(operands)))], extended


def _backward(graph: Graph, reached: Sequence[int], wanted: Sequence[int], differentiate: Differentiate) -> _Branch:
    outputs = [graph.outputs[i] for i in reached]
    seeds = [Value(without_value(y.type), f"d_{y.name or 'output'}") for y in outputs]
    inputs = [graph.inputs[k] for k in wanted]
    found, extended = differentiate(outputs, seeds, inputs)
    return _Branch(graph, seeds, dict(zip(inputs, found, strict=True)), extended)


def _find_reads(branch: _Branch, other: _Branch, wanted: Sequence[int]) -> None:
    """Fill in `results`, `table` and `read`.

    `read` contains inputs and outputs of the branch, and values whose shape `other` can compute.
    """
    for k in wanted:
        inner = branch.graph.inputs[k]
        result = branch.found[inner]
        branch.results.append(zeros_like(inner) if result is None else result)
    inputs = set(branch.graph.inputs)
    forward = {*branch.graph.values, *(v for n in branch.extended for v in n.outputs)}
    constants = invariant_values([*branch.graph.nodes, *branch.extended], ())

    def is_source(value: Value) -> bool:
        if value in inputs or value in branch.graph.outputs:
            return True
        if value not in forward or value in constants or (value.node is not None and is_view(value.node)):
            return False
        return _zeros(value, branch.graph, other.graph) is not None

    read = read_values(branch.results, is_source)
    branch.table = {v: placeholder(v) for v, elements in read.items() if elements}
    alike = by_shape([*branch.table.values(), *branch.seeds])
    for value in read:
        if value not in branch.table:
            stand_in = shape_stand_in(value, alike)
            branch.table[value] = placeholder(value) if stand_in is None else stand_in
            if stand_in is not None:
                continue
        branch.read.append(value)


def _zeros(value: Value, graph: Graph, other: Graph) -> list[Any] | None:
    """The shape of a value of `graph`, as sizes or (input of `other`, axis); None if `other` cannot compute it."""
    shape = value.shape if isinstance(value.type, TensorType) else None
    if shape is None:
        return None
    extents: list[Any] = []
    for size in shape:
        if isinstance(size, int):
            extents.append(size)
            continue
        place = _place_of(size, graph)
        if place is None:
            return None
        extents.append((other.inputs[place[0]], place[1]))
    return extents


def _place_of(size: Any, graph: Graph) -> tuple[int, int] | None:
    """Find an axis of an input that has this size: (position of the input, axis)."""
    for position, value in enumerate(graph.inputs):
        shape = value.type.shape if isinstance(value.type, TensorType) else None
        if shape is not None and size in shape:
            return position, shape.index(size)
    return None


def _made(extents: Sequence[Any], dtype: DType) -> Value:
    """Zeros of the shape that `_zeros` describes."""
    zero = np.zeros(1, dtype.numpy)
    if all(isinstance(size, int) for size in extents):
        made: Value = F.constant_of_shape(np.asarray(extents, np.int64), value=zero)
        return made
    sizes = [
        F.constant(value=np.array([size], np.int64)) if isinstance(size, int)
        else F.shape(size[0], start=size[1], end=size[1] + 1)
        for size in extents
    ]  # fmt: skip
    made = F.constant_of_shape(sizes[0] if len(sizes) == 1 else F.concat(*sizes, axis=0), value=zero)
    return made


def _slots(node: Node, branches: Sequence[_Branch]) -> list[_Slot]:
    """One slot for each value that is read; values of one type in both branches share a slot."""
    slots: list[_Slot] = []
    for number, branch in enumerate(branches):
        inputs = set(branch.graph.inputs)
        for value in branch.read:
            if value in inputs:
                continue
            output = node.outputs[branch.graph.outputs.index(value)] if value in branch.graph.outputs else None
            free = next(
                (
                    s
                    for s in slots
                    if s.values[number] is None
                    and s.output is output
                    and (output is not None or any(v is not None and v.type == value.type for v in s.values))
                ),
                None,
            )
            if free is None:
                free = _Slot([None, None], output)
                slots.append(free)
            free.values[number] = value
    return slots


def _saved(node: Node, branches: Sequence[_Branch], slots: Sequence[_Slot]) -> Node | None:
    """The forward node, with a new result for each slot that is not a result yet; None if there is no such slot."""
    new = [s for s in slots if s.output is None]
    if not new:
        return None
    graphs = []
    for number, branch in enumerate(branches):
        this, other = branch.graph, branches[1 - number].graph
        added = []
        for slot in new:
            value = slot.values[number]
            if value is None:
                wanted = slot.values[1 - number]
                assert wanted is not None, "a slot is made for a value"
                extents = _zeros(wanted, other, this)
                assert extents is not None, "only values whose shape is known are read"
                value = _made(extents, wanted.dtype)
            added.append(value)
        graphs.append(merge_control(this.replace(outputs=[*this.outputs, *added])))
    extended = Node(IfView.of(node).with_branches(graphs[0], graphs[1]), node.inputs, node.name, node.meta)
    for slot, output in zip(new, extended.outputs[len(node.outputs) :], strict=True):
        slot.output = output
    return extended


def _rebuilt(branch: _Branch, captured: Sequence[int], slots: Sequence[_Slot], number: int) -> Graph:
    """The backward branch as a graph of the captures, the slots, and the gradients of results."""
    inputs = [branch.graph.inputs[k] for k in captured]
    own = [branch.table[v] if v in branch.read else placeholder(v) for v in inputs]
    for slot in slots:
        value = slot.values[number]
        if value is None:  # Only the other branch has a value for this slot.
            own.append(Value(without_value(slot.result.type)))
        else:
            own.append(branch.table[value])
    return merge_control(
        Graph(
            [*own, *branch.seeds],
            rebuild(branch.results, branch.table),
            name=("then_backward", "else_backward")[number],
        )
    )
