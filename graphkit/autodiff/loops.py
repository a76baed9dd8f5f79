"""The gradient of Scan is a Scan, that of Loop a Loop, which take the iterations in reverse.

The reverse loop carries the gradients of the states and the sums of the captures' gradients. It reads, per
iteration, the gradients of scan outputs, the slices of scan inputs, and what the forward body computed and the
backward one needs, which the forward node stacks into additional scan outputs. The number of iterations of a Loop
is the length of those stacks, so that data-dependent trips, none included, need nothing more. What depends on
captures alone is computed again in place of being stacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.autodiff.saving import by_shape, invariant_values, placeholder, read_values, rebuild, shape_stand_in
from graphkit.autodiff.subgraphs import Contribution, Differentiate, differentiable
from graphkit.errors import MissingGradient
from graphkit.ir.graph import Graph, Node, Value, topological
from graphkit.ir.types import DType, TensorType
from graphkit.ops import F
from graphkit.ops._carried import without_value
from graphkit.ops._shapes import zeros_like
from graphkit.passes.merge_control import merge_control


@dataclass(frozen=True)
class _Stacked:
    """A tensor of the surrounding graph that is read or written slice by slice."""

    inner: Value
    outer: Value
    axis: int = 0
    backwards: int = 0


@dataclass(frozen=True)
class _Carried:
    before: Value
    after: Value
    final: Value


@dataclass(frozen=True)
class _Parts:
    """A Loop or Scan taken apart. `positions` of operands: of the states, the slices, the captures."""

    body: Graph
    carried: tuple[_Carried, ...]
    slices: tuple[_Stacked, ...]
    captures: tuple[tuple[Value, Value], ...]
    stacked: tuple[_Stacked, ...]
    first_operand: int


@dataclass(frozen=True)
class _Reverse:
    """What the reverse loop carries, reads slice by slice, and captures: inside it, and around it."""

    carried: Sequence[Value]
    starts: Sequence[Value]
    scanned: Sequence[_Stacked]
    captures: Sequence[Value]
    captured: Sequence[Value]


def _parts(node: Node) -> _Parts:
    op: Any = node.op
    loop = op.name == "Loop"
    first, scanned = (2, 0) if loop else (0, op.num_scan_inputs)
    operands, inner = node.inputs[first:], op.body.inputs[first:]
    results = op.body.outputs[1 if loop else 0 :]
    states = len(operands) - scanned - op.captures
    pairs = [(a, b) for a, b in zip(inner, operands, strict=True) if b is not None]
    assert len(pairs) == len(operands), "values of a loop are never absent"
    count = len(results) - states
    none = (0,) * max(scanned, count)
    in_axes, in_directions = (none, none) if loop else (op.scan_input_axes or none, op.scan_input_directions or none)
    axes, directions = (none, none) if loop else (op.scan_output_axes or none, op.scan_output_directions or none)
    return _Parts(
        op.body,
        tuple(map(_Carried, inner[:states], results[:states], node.outputs[:states])),
        tuple(_Stacked(*pairs[states + i], in_axes[i], in_directions[i]) for i in range(scanned)),
        tuple(pairs[states + scanned :]),
        tuple(_Stacked(results[states + i], node.outputs[states + i], axes[i], directions[i]) for i in range(count)),
        first,
    )


def loop_gradient(
    node: Node, gradients: Sequence[Value | None], active: set[Value], differentiate: Differentiate
) -> Contribution:
    """Gradients of the operands of a Loop or Scan, and the forward node with what they need saved."""
    parts = _parts(node)
    states = len(parts.carried)
    finals = dict(zip(parts.carried, gradients[:states], strict=True))
    outputs = [(s, g) for s, g in zip(parts.stacked, gradients[states:], strict=True) if g is not None]
    carried = _carried_gradients(parts, node, active, finals, [s.inner for s, _ in outputs])
    slices = [s for s in parts.slices if s.outer in active and differentiable(s.inner)]
    captures = [(a, b) for a, b in parts.captures if b in active and differentiable(a)]

    # The backward pass of one iteration, on the values of the forward one.
    state_seeds = [Value(without_value(c.after.type), f"d_{c.after.name or 'state'}") for c in carried]
    output_seeds = [Value(without_value(s.inner.type), f"d_{s.inner.name or 'output'}") for s, _ in outputs]
    wrt = [*(c.before for c in carried), *(s.inner for s in slices), *(a for a, _ in captures)]
    found, extended = differentiate(
        [*(c.after for c in carried), *(s.inner for s, _ in outputs)], [*state_seeds, *output_seeds], wrt
    )
    by_input = dict(zip(wrt, found, strict=True))
    slices = [s for s in slices if by_input[s.inner] is not None]
    captures = [(a, b) for a, b in captures if by_input[a] is not None]
    if not (carried or slices or captures):
        return [None] * len(node.inputs), None
    sums = [Value(without_value(a.type), f"d_{a.name or 'capture'}") for a, _ in captures]
    results: list[Value] = [_or_zeros(by_input[c.before], c.before) for c in carried]
    results += [F.add(total, by_input[a]) for total, (a, _) in zip(sums, captures, strict=True)]
    results += [_or_zeros(by_input[s.inner], s.inner) for s in slices]

    # Where each forward value that it reads comes from.
    forward = {*parts.body.values, *(v for n in extended for v in n.outputs)}
    outer_of = dict(parts.captures)
    again = invariant_values([*parts.body.nodes, *extended], outer_of)
    read = read_values(results, lambda v: v in forward and v not in again)
    table = {v: placeholder(v) for v, elements in read.items() if elements and v in outer_of}
    alike = by_shape([*table.values(), *sums, *state_seeds, *output_seeds])
    for value in read:
        stand_in = None if read[value] else shape_stand_in(value, alike)
        if stand_in is not None:
            table[value] = stand_in
        elif value in outer_of:
            table.setdefault(value, placeholder(value))
    read_captures = [v for v in read if v in outer_of and table[v].is_input and table[v] not in (*sums, *state_seeds)]
    saving, sources = _saved(node, parts, [v for v in read if v not in table])
    if not (sources or outputs):
        # A Scan needs something to scan: it tells the number of iterations.
        saving, sources = _saved(node, parts, [_counter(parts)])
    scanned = [_Stacked(seed, g, s.axis, s.backwards) for seed, (s, g) in zip(output_seeds, outputs, strict=True)]
    for source in sources:
        table[source.inner] = placeholder(source.inner)
        scanned.append(_Stacked(table[source.inner], source.outer, source.axis, source.backwards))
    starts = [*(_or_zeros(finals[c], c.final) for c in carried), *(zeros_like(b) for _, b in captures)]
    reverse = _Reverse(
        [*state_seeds, *sums], starts, scanned, [table[v] for v in read_captures], [outer_of[v] for v in read_captures]
    )
    build = _reverse_loop if node.op.name == "Loop" else _reverse_scan
    values = build(reverse, results, table, slices, f"{node.name}_backward" if node.name else "")
    inputs = [*(c.before for c in carried), *(a for a, _ in captures), *(s.inner for s in slices)]
    of_input = dict(zip(inputs, values, strict=True))
    lead: list[Value | None] = [None] * parts.first_operand
    return lead + [of_input.get(v) for v in parts.body.inputs[parts.first_operand :]], saving


def _reverse_scan(
    reverse: _Reverse, results: Sequence[Value], table: dict[Value, Value], slices: Sequence[_Stacked], name: str
) -> list[Value]:
    """The final carried values, then the gradients of `slices`, which `results` ends with."""
    inputs = [*reverse.carried, *(s.inner for s in reverse.scanned), *reverse.captures]
    found = F.scan(
        *reverse.starts,
        *(s.outer for s in reverse.scanned),
        *reverse.captured,
        body=merge_control(Graph(inputs, rebuild(results, table), name="backward")),
        num_scan_inputs=len(reverse.scanned),
        scan_input_axes=[s.axis for s in reverse.scanned],
        scan_input_directions=[1 - s.backwards for s in reverse.scanned],
        scan_output_axes=[s.axis for s in slices],
        scan_output_directions=[1 - s.backwards for s in slices],
        captures=len(reverse.captured),
        name=name,
    )
    return list(found) if isinstance(found, tuple) else [found]


def _reverse_loop(
    reverse: _Reverse, results: Sequence[Value], table: dict[Value, Value], slices: Sequence[_Stacked], name: str
) -> list[Value]:
    """The final carried values. Iteration i reads the last slice but i of each stack, and none when there is none."""
    assert not slices, "a Loop scans no operand"
    iteration, going = Value(TensorType(DType.INT64, ()), "iteration"), Value(TensorType(DType.BOOL, ()), "going")
    stacks = [Value(without_value(s.outer.type), s.outer.name) for s in reverse.scanned]
    place = F.sub(np.array(-1, np.int64), iteration)
    read = {s.inner: F.gather(stack, place, axis=0) for s, stack in zip(reverse.scanned, stacks, strict=True)}
    table = {v: read.get(new, new) for v, new in table.items()} | read
    outputs = [F.constant(value=np.array(True)), *rebuild(results, table)]
    body = Graph([iteration, going, *reverse.carried, *stacks, *reverse.captures], outputs, name="backward")
    count = F.squeeze(F.shape(reverse.scanned[0].outer, start=0, end=1))
    found = F.loop(
        count,
        None,
        *reverse.starts,
        *(s.outer for s in reverse.scanned),
        *reverse.captured,
        body=merge_control(body),
        captures=len(stacks) + len(reverse.captured),
        name=name,
    )
    return list(found) if isinstance(found, tuple) else [found]


def _carried_gradients(
    parts: _Parts,
    node: Node,
    active: set[Value],
    finals: dict[_Carried, Value | None],
    outputs: Sequence[Value],
) -> list[_Carried]:
    """The states whose gradient an iteration passes on: they depend on what is differentiated, and results on them."""
    operands = zip(parts.body.inputs[parts.first_operand :], node.inputs[parts.first_operand :], strict=True)
    varying = {a for a, b in operands if b in active and differentiable(a)}
    while True:
        reached = set(varying)
        for inner in parts.body.nodes:
            if any(v in reached for v in inner.operands):
                reached.update(v for v in inner.outputs if differentiable(v))
        more = {c.before for c in parts.carried if c.after in reached and differentiable(c.before)} - varying
        if not more:
            break
        varying |= more
    live = {c.before for c in parts.carried if finals[c] is not None}
    while True:
        seeds = [*outputs, *(c.after for c in parts.carried if c.before in live)]
        used = {*seeds, *(v for n in topological(seeds) for v in n.operands)}
        more = {c.before for c in parts.carried if c.before in used} - live
        if not more:
            break
        live |= more
    return [c for c in parts.carried if c.before in varying and c.before in live]


def _saved(node: Node, parts: _Parts, values: Sequence[Value]) -> tuple[Node | None, list[_Stacked]]:
    """The forward node that also stacks those of `values` which are not scanned yet; where each is found."""
    existing = {s.inner: s for s in (*parts.stacked, *parts.slices)}
    new = [v for v in dict.fromkeys(values) if v not in existing]
    for value in new:
        if not isinstance(value.type, TensorType):
            raise MissingGradient(f"the backward pass needs {value} of every iteration; only tensors stack")
    if new:
        op: Any = node.op
        changes: dict[str, Any] = {"body": merge_control(parts.body.replace(outputs=[*parts.body.outputs, *new]))}
        for field in ("scan_output_axes", "scan_output_directions") if op.name == "Scan" else ():
            if getattr(op, field) is not None:
                changes[field] = (*getattr(op, field), *(0 for _ in new))
        node = Node(op.replace(**changes), node.inputs, node.name, node.meta)
        stacks = node.outputs[len(node.outputs) - len(new) :]
        existing |= {v: _Stacked(v, stack) for v, stack in zip(new, stacks, strict=True)}
    return node if new else None, [existing[v] for v in dict.fromkeys(values)]


def _counter(parts: _Parts) -> Value:
    """A value that each iteration has."""
    return parts.slices[0].inner if parts.slices else parts.body.inputs[0]


def _or_zeros(value: Value | None, like: Value) -> Value:
    zeros: Value = zeros_like(like) if value is None else value
    return zeros
