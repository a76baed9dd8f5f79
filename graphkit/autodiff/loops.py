"""The gradient of a Scan is a Scan, and the gradient of a Loop is a Loop. Both run the iterations in reverse.

The reverse loop has as states the gradients of the states and the sums of the captures' gradients. In each iteration it
reads the gradients of scan outputs, the slices of scan inputs, and the values of the forward body that the backward
body needs. The forward node stacks these values into additional scan outputs. The number of iterations of a Loop is the
length of these stacks, so data-dependent trip counts, including zero, need nothing more. The gradients of rows that an
iteration looks up in a capture are stacked, and scattered into it once, behind the loop. Some values are computed again
instead of stacked: values that depend only on captures; values whose shape may differ between iterations, such as those
that an inner loop saved; and, in a loop marked `recompute`, everything but the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.autodiff.iteration import Iteration
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
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F
from graphkit.ops.axes import zeros_like
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.control.views import Along, LoopState
from graphkit.ops.tensor.gather import GatherGrad
from graphkit.passes.control.merge import merge_control
from graphkit.passes.core.draws import is_undetermined


class _Lookup(NamedTuple):
    """Rows (slices along axis 0) of a capture that an iteration gathers: their `gradient` and `indices`.

    capture: input of the body. outer: its value outside the loop.
    """

    capture: Value
    outer: Value
    gradient: Value
    indices: Value


@dataclass
class _Step:
    """The backward pass of one iteration, as a function of the values of the forward iteration.

    `results` are the gradients of the states, the sums of the captures' gradients, the gradients of the slices, and
    gradient and indices of each lookup.
    """

    states: list[LoopState]
    slices: list[Along]
    captures: list[tuple[Value, Value]]
    lookups: list[_Lookup]
    outputs: list[tuple[Along, Value]]
    state_seeds: list[Value]
    output_seeds: list[Value]
    sums: list[Value]
    results: list[Value]
    extended: list[Node]


@dataclass
class _Reads:
    """The sources of the forward values that the backward pass reads.

    table: forward value -> its replacement in the reverse body.
    captures: values that the reverse loop captures.
    saved: values that the forward loop stacks.
    """

    table: dict[Value, Value]
    captures: list[Value]
    saved: list[Value]


@dataclass(frozen=True)
class _Reverse:
    """The reverse loop. `states`, `captures`: inputs of its body; `starts`, `captured`: the outer values of these."""

    states: Sequence[Value]
    starts: Sequence[Value]
    scanned: Sequence[Along]
    captures: Sequence[Value]
    captured: Sequence[Value]
    name: str
    recompute: bool


def loop_gradient(
    node: Node, gradients: Sequence[Value | None], active: set[Value], differentiate: Differentiate
) -> Contribution:
    """Gradients of the operands of a Loop or Scan, and the forward node extended by the values to save."""
    loop = Iteration.of(node)
    view = loop.view
    finals = dict(zip(view.states, gradients[: view.state_count], strict=True))
    step = _step(loop, finals, gradients[view.state_count :], active, differentiate)
    if not (step.states or step.slices or step.captures or step.lookups):
        return [None] * len(node.inputs), None
    reads = _reads(loop, step)
    saving, sources = loop.stacking(reads.saved)
    if not (sources or step.outputs):
        # The reverse loop needs one scanned operand: its length is the number of iterations.
        saving, sources = loop.stacking([loop.counter()])
    seeds = zip(step.output_seeds, step.outputs, strict=True)
    scanned = [Along(seed, g, s.axis, s.backwards) for seed, (s, g) in seeds]
    for source in sources:
        reads.table.setdefault(source.inner, placeholder(source.inner))
        scanned.append(Along(reads.table[source.inner], source.outer, source.axis, source.backwards))
    outer_of = dict(view.captures)
    reverse = _Reverse(
        [*step.state_seeds, *step.sums],
        [*(_or_zeros(finals[c], c.final) for c in step.states), *(zeros_like(b) for _, b in step.captures)],
        scanned,
        [reads.table[v] for v in reads.captures],
        [outer_of[v] for v in reads.captures],
        f"{node.name}_backward" if node.name else "",
        view.recompute,
    )
    if node.op.name == "Loop":
        values = _reverse_loop(reverse, step.results, reads.table, view.entry)
    else:
        written = [*((s.axis, s.backwards) for s in step.slices), *[(0, 0)] * (2 * len(step.lookups))]
        values = _reverse_scan(reverse, step.results, reads.table, written)
    inputs = [*(c.before for c in step.states), *(a for a, _ in step.captures), *(s.inner for s in step.slices)]
    of_input = dict(zip(inputs, values, strict=False))
    stacks = iter(values[len(inputs) :])
    for lookup in step.lookups:
        scattered = F.gather_grad(next(stacks), lookup.outer, next(stacks), axis=0)
        known = of_input.get(lookup.capture)
        of_input[lookup.capture] = scattered if known is None else _plus(known, scattered)
    lead: list[Value | None] = [None] * view.lead
    return lead + [of_input.get(v) for v in view.body.inputs[view.lead :]], saving


def _step(
    loop: Iteration,
    finals: dict[LoopState, Value | None],
    of_outputs: Sequence[Value | None],
    active: set[Value],
    differentiate: Differentiate,
) -> _Step:
    outputs = [(s, g) for s, g in zip(loop.view.scan_outputs, of_outputs, strict=True) if g is not None]
    seeded = {c.before for c, g in finals.items() if g is not None}
    states = loop.carrying_gradients(active, seeded, [s.inner for s, _ in outputs])
    slices = [s for s in loop.view.scan_inputs if s.outer in active and differentiable(s.inner)]
    captures = [(a, b) for a, b in loop.view.captures if b in active and differentiable(a)]
    state_seeds = [Value(without_value(c.after.type), f"d_{c.after.name or 'state'}") for c in states]
    output_seeds = [Value(without_value(s.inner.type), f"d_{s.inner.name or 'output'}") for s, _ in outputs]
    wrt = [*(c.before for c in states), *(s.inner for s in slices), *(a for a, _ in captures)]
    found, extended = differentiate(
        [*(c.after for c in states), *(s.inner for s, _ in outputs)], [*state_seeds, *output_seeds], wrt
    )
    by_input = dict(zip(wrt, found, strict=True))
    slices = [s for s in slices if by_input[s.inner] is not None]
    lookups: list[_Lookup] = []
    for inner, outer in captures:
        by_input[inner] = _without_lookups(loop, by_input[inner], inner, outer, lookups)
    captures = [(a, b) for a, b in captures if by_input[a] is not None]
    sums = [Value(without_value(a.type), f"d_{a.name or 'capture'}") for a, _ in captures]
    results: list[Value] = [_or_zeros(by_input[c.before], c.before) for c in states]
    results += [_plus(total, _or_zeros(by_input[a], a)) for total, (a, _) in zip(sums, captures, strict=True)]
    results += [_or_zeros(by_input[s.inner], s.inner) for s in slices]
    results += [v for lookup in lookups for v in (lookup.gradient, lookup.indices)]
    return _Step(states, slices, captures, lookups, outputs, state_seeds, output_seeds, sums, results, extended)


def _without_lookups(
    loop: Iteration, contribution: Value | None, inner: Value, outer: Value, lookups: list[_Lookup]
) -> Value | None:
    """Move the gradients of gathered rows from a capture's gradient to `lookups`; return the rest of the gradient.

    A loop marked `recompute` keeps them: its memory must not grow with the number of iterations.
    """
    if contribution is None or contribution.node is None or loop.view.recompute:
        return contribution
    is_sum = contribution.node.op.name == "Sum" and not contribution.node.op.domain
    rest = []
    for term in contribution.node.operands if is_sum else [contribution]:
        node = term.node
        if node is not None and isinstance(node.op, GatherGrad) and node.op.axis == 0 and node.inputs[1] is inner:
            gradient, _, indices = node.operands
            if loop.view.keeps_size(gradient) and loop.view.keeps_size(indices):
                lookups.append(_Lookup(inner, outer, gradient, indices))
                continue
        rest.append(term)
    if len(rest) <= 1:
        return rest[0] if rest else None
    total: Value = F.sum(rest)
    return total


def _reads(loop: Iteration, step: _Step) -> _Reads:
    """Divide the forward values that are read: into captures, values whose shape alone is read, and values to stack."""
    view = loop.view
    outer_of = dict(view.captures)
    given = {*view.body.inputs, *(s.inner for s in view.scan_outputs)}
    nodes = [*view.body.nodes, *step.extended]
    again = invariant_values(nodes, outer_of)
    if view.recompute:
        given = set(view.body.inputs)
        kept = {v for n in nodes if is_undetermined(n) for v in n.outputs}
    else:
        made = [v for n in nodes if not is_view(n) for v in n.outputs]
        kept = {v for v in made if v not in again and loop.view.keeps_size(v)}
        kept |= {v for n in nodes if is_undetermined(n) for v in n.outputs}
    read = read_values(step.results, lambda v: v in given or v in kept)
    # The reverse loop computes the iteration number, and its condition is always true.
    read = {v: elements for v, elements in read.items() if v not in view.entry}
    table = {v: placeholder(v) for v, elements in read.items() if elements}
    alike = by_shape([*table.values(), *step.sums, *step.state_seeds, *step.output_seeds])
    for value in read:
        if value not in table:
            stand_in = shape_stand_in(value, alike)
            table[value] = placeholder(value) if stand_in is None else stand_in
            read[value] = stand_in is None
    needed = [v for v, is_needed in read.items() if is_needed]
    return _Reads(table, [v for v in needed if v in outer_of], [v for v in needed if v not in outer_of])


def _reverse_scan(
    reverse: _Reverse, results: Sequence[Value], table: dict[Value, Value], written: Sequence[tuple[int, int]]
) -> list[Value]:
    """The final states, then stacks of the other results. `written`: (axis, backwards) of each in the forward pass."""
    inputs = [*reverse.states, *(s.inner for s in reverse.scanned), *reverse.captures]
    found = F.scan(
        *reverse.starts,
        *(s.outer for s in reverse.scanned),
        *reverse.captured,
        body=merge_control(Graph(inputs, rebuild(results, table), name="backward")),
        num_scan_inputs=len(reverse.scanned),
        scan_input_axes=[s.axis for s in reverse.scanned],
        scan_input_directions=[1 - s.backwards for s in reverse.scanned],
        scan_output_axes=[axis for axis, _ in written],
        scan_output_directions=[1 - backwards for _, backwards in written],
        captures=len(reverse.captured),
        recompute=reverse.recompute,
        name=reverse.name,
    )
    return list(found) if isinstance(found, tuple) else [found]


def _reverse_loop(
    reverse: _Reverse, results: Sequence[Value], table: dict[Value, Value], entry: Sequence[Value]
) -> list[Value]:
    """The final states, then stacks of the other results, in which the last iteration comes first.

    Iteration i reads slice -1 - i of each stack. If the stacks are empty, there is no iteration.

    entry: the inputs of the forward body that hold the iteration number and the condition.
    """
    iteration, going = Value(TensorType(DType.INT64, ()), "iteration"), Value(TensorType(DType.BOOL, ()), "going")
    stacks = [Value(without_value(s.outer.type), s.outer.name) for s in reverse.scanned]
    place = F.sub(np.array(-1, np.int64), iteration)
    read = {s.inner: _slice(stack, place) for s, stack in zip(reverse.scanned, stacks, strict=True)}
    table = {v: read.get(new, new) for v, new in table.items()} | read
    # The iteration number and the condition are scalars, but some exporters declare them with the shape (1,).
    number, condition = ((1,) if v.shape == (1,) else () for v in entry)
    table.setdefault(entry[0], F.reshape(F.add(_length(stacks[0]), place), np.array(number, np.int64)))
    table.setdefault(entry[1], F.constant(value=np.ones(condition, bool)))
    outputs = [F.constant(value=np.array(True)), *rebuild(results, table)]
    body = Graph([iteration, going, *reverse.states, *stacks, *reverse.captures], outputs, name="backward")
    found = F.loop(
        _length(reverse.scanned[0].outer),
        None,
        *reverse.starts,
        *(s.outer for s in reverse.scanned),
        *reverse.captured,
        body=merge_control(body),
        captures=len(stacks) + len(reverse.captured),
        recompute=reverse.recompute,
        name=reverse.name,
    )
    return list(found) if isinstance(found, tuple) else [found]


def _length(stack: Value) -> Value:
    """The number of slices of a stack, as a scalar."""
    tensors = isinstance(stack.type, TensorType)
    count: Value = F.squeeze(F.shape(stack, start=0, end=1)) if tensors else F.sequence_length(stack)
    return count


def _slice(stack: Value, place: Value) -> Value:
    found: Value = F.gather(stack, place, axis=0) if isinstance(stack.type, TensorType) else F.sequence_at(stack, place)
    return found


def _plus(a: Value, b: Value) -> Value:
    total: Value = F.add(a, b) if isinstance(a.type, TensorType) else F.add_n(a, b)
    return total


def _or_zeros(value: Value | None, like: Value) -> Value:
    zeros: Value = zeros_like(like) if value is None else value
    return zeros
