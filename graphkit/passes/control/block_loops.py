"""Group the iterations of loops in blocks, so that differentiation needs memory for sqrt(T) iterations instead of T.

A Scan of T iterations becomes a Scan over blocks of k iterations, marked `recompute`, around a Scan inside a block. The
gradient stores the states at the borders of blocks (T / k of them) and recomputes one block of k iterations at a time,
as in Chen et al., "Training deep nets with sublinear memory cost", 2016. The iterations after the last whole block are
a separate Scan. A Loop becomes a Loop of Loops in the same way, with the same number of iterations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.subgraph import inline
from graphkit.ir.types import TensorType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, operator
from graphkit.ops.axes import i64, normal_axis
from graphkit.ops.control.loop_state import without_value
from graphkit.ops.control.operators import Loop, Scan
from graphkit.ops.control.views import Along, LoopView, repeating
from graphkit.passes.core.sweep import rewrite

Block: TypeAlias = int | Literal["sqrt"]


def block_loops(graph: Graph, block: Block) -> Graph:
    """Put the iterations of every Scan and Loop of `graph`, but not of its subgraphs, into blocks. Takes linear time.

    Kept are loops that are already marked `recompute`, and Loops with scan outputs, because their blocks could have
    different lengths.

    block: The number of iterations in a block. "sqrt": about sqrt(T) for T iterations; if T is unknown, this raises
    UsageError, which names the node.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if not isinstance(node.op, (Loop, Scan)) or node.op.recompute:
            return None
        rebuilt = node.rebuilt(operands)
        view = LoopView.of(rebuilt)
        return None if view.is_loop and view.scan_outputs else in_blocks(rebuilt, block)

    return rewrite(graph, rule)


def in_blocks(node: Node, block: Block) -> Sequence[Value]:
    """Return the results of a Scan, or of a Loop without scan outputs, that is computed in blocks."""
    if block != "sqrt" and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
        raise UsageError(
            f"{node.describe()}: a block must have a positive number of iterations or 'sqrt', not {block!r}"
        )
    trips = _scan_trips(node) if node.op.name == "Scan" else _loop_trips(node)
    if block == "sqrt":
        if not isinstance(trips, int):
            raise UsageError(
                f"{node.describe()}: blocks of 'sqrt' iterations need a known number of iterations; give the number of "
                "iterations in a block instead"
            )
        block = _near_sqrt(trips)
    if block == 1:
        return Node(repeating(node).replace(recompute=True), node.inputs, node.name, node.meta).outputs
    if isinstance(trips, int) and block >= trips:
        return node.outputs
    return _blocked_scan(node, block, trips) if node.op.name == "Scan" else _blocked_loop(node, block)


def _near_sqrt(trips: int) -> int:
    """Return the divisor of `trips` that is nearest to its square root.

    If none is within a factor of 2, return the root.
    """
    root = math.sqrt(trips)
    near = [k for k in range(max(math.ceil(root / 2), 1), int(2 * root) + 1) if trips % k == 0]
    return min(near, key=lambda k: abs(math.log(k / root))) if near else max(math.ceil(root), 1)


def _scan_trips(node: Node) -> Dim | None:
    scanned = LoopView.of(node).scan_inputs
    sizes = [s.outer.tensor.shape[s.axis] for s in scanned if s.outer.tensor.shape is not None]
    return next((n for n in sizes if isinstance(n, int)), sizes[0] if sizes else None)


def _loop_trips(node: Node) -> Dim | None:
    limit = node.inputs[0]
    return None if limit is None or limit.tensor.value is None else limit.tensor.value[0]


# --- Scan -----------------------------------------------------------------------------------------


class _ScanLayout(NamedTuple):
    """The layout of a scan operand or scan output: the axis of the iterations, and whether it is scanned in reverse."""

    axis: int
    backwards: int

    @staticmethod
    def of(scanned: Along) -> _ScanLayout:
        return _ScanLayout(normal_axis(scanned.axis, scanned.outer.rank or 1), scanned.backwards)

    def split(self, x: Value, border: Value) -> tuple[Value, Value]:
        """Split x into the parts that the first `border` iterations and the other iterations read."""
        length = _size(x, self.axis)
        sizes = [border, F.sub(length, border)]
        parts = F.split(x, F.concat(*sizes[:: -1 if self.backwards else 1], axis=0), axis=self.axis)
        return (parts[1], parts[0]) if self.backwards else (parts[0], parts[1])

    def concatenated(self, first: Value, others: Value) -> Value:
        parts = (others, first) if self.backwards else (first, others)
        whole: Value = F.concat(*parts, axis=self.axis)
        return whole

    def in_blocks(self, x: Value, blocks: Value, block: int) -> Value:
        """Reshape [..., blocks * block, ...] to [..., blocks, block, ...]."""
        return _reshaped(x, self.axis, self.axis + 1, [blocks, F.constant(value=i64(block))])

    def joined(self, x: Value) -> Value:
        """Invert `in_blocks`."""
        count = F.mul(_size(x, self.axis), _size(x, self.axis + 1))
        return _reshaped(x, self.axis, self.axis + 2, [count])


def _check_ranks(node: Node) -> None:
    """Raise UsageError, which names the node, if the rank of a scan input or output is unknown."""
    view = LoopView.of(node)
    for along in (*view.scan_inputs, *view.scan_outputs):
        if along.outer.rank is None:
            name = along.outer.name or "a result"
            raise UsageError(f"{node.describe()}: blocks of iterations need {name} of known rank")


def _blocked_scan(node: Node, block: int, trips: Dim | None) -> list[Value]:
    """Return the results of a Scan over whole blocks, followed by a Scan over the remaining iterations."""
    _check_ranks(node)
    op = operator(node, Scan)
    view = LoopView.of(node)
    states = view.state_count
    start, captured = [s.initial for s in view.states], [c.outer for c in view.captures]
    inputs = [s.outer for s in view.scan_inputs]
    read, written = (list(map(_ScanLayout.of, part)) for part in (view.scan_inputs, view.scan_outputs))
    op = op.replace(scan_input_axes=[p.axis for p in read], scan_output_axes=[p.axis for p in written])
    rest: Sequence[Value] = ()
    if isinstance(trips, int):
        blocks = F.constant(value=i64(trips // block))
    else:
        # Leave at least one iteration for the last Scan: ONNX Runtime rejects a Scan without iterations.
        before_last = F.max(F.sub(_size(inputs[0], read[0].axis), i64(1)), i64(0))
        blocks = F.div(before_last, i64(block))
    if not isinstance(trips, int) or trips % block:
        border = F.mul(blocks, i64(block))
        split = [p.split(x, border) for p, x in zip(read, inputs, strict=True)]
        inputs, rest = [a for a, _ in split], [b for _, b in split]
    folded = [p.in_blocks(x, blocks, block) for p, x in zip(read, inputs, strict=True)]
    found = _over_blocks(node, op, [*start, *folded, *captured], read)
    final, stacked = found[:states], [p.joined(y) for p, y in zip(written, found[states:], strict=True)]
    if rest:
        last = Node(op, [*final, *rest, *captured], _name_with(node, "rest"), node.meta).outputs
        final = last[:states]
        stacked = [p.concatenated(a, b) for p, a, b in zip(written, stacked, last[states:], strict=True)]
    return [*final, *stacked]


def _over_blocks(node: Node, op: Scan, values: Sequence[Value], read: Sequence[_ScanLayout]) -> tuple[Value, ...]:
    """Return the results of the Scan over blocks. Its body is `op`, which scans one block.

    The outer Scan removes the axis of the blocks, so the inner one scans along the same axis number.
    """
    states = len(values) - op.num_scan_inputs - op.captures
    inside = [_inside(v) for v in values]
    for i, along in enumerate(read, states):
        kind = values[i].tensor
        assert kind.shape is not None, "in_blocks gives a known rank"
        shape = [d for axis, d in enumerate(kind.shape) if axis != along.axis]
        inside[i] = Value(TensorType(kind.dtype, shape), f"{values[i].name}_block" if values[i].name else "")
    body = Graph(inside, Node(op, inside, node.name, node.meta).outputs, name="block")
    outer = op.replace(body=body, recompute=True)
    return Node(outer, values, _name_with(node, "blocks"), node.meta).outputs


# --- Loop -----------------------------------------------------------------------------------------


def _blocked_loop(node: Node, block: int) -> Sequence[Value]:
    """Return the results of a Loop over blocks.

    Iteration b runs at most min(block, m - b * block) iterations of the original loop, where m is its trip count. It
    stops earlier if the condition becomes false.
    """
    op = operator(node, Loop)
    view = LoopView.of(node)
    limit, condition = view.operands[: view.lead]
    states = view.state_count
    given = [s.initial for s in view.states]
    captured = [c.outer for c in view.captures] if limit is None else [*(c.outer for c in view.captures), limit]
    number, inner_condition = _copies(op.body.inputs[:2])
    before, inside = [_inside(v) for v in given], [_inside(v) for v in captured]
    done = F.mul(F.reshape(number, i64()), np.int64(block))
    trips = F.constant(value=np.int64(block))
    if limit is not None:
        trips = F.min(trips, F.sub(F.reshape(inside[-1], i64()), done))
    next_condition, *after = _one_block(node, trips, inner_condition, [*before, *inside[: op.captures], done], states)
    body = Graph([number, inner_condition, *before, *inside], [next_condition, *after], name="block")
    blocks = None
    if limit is not None:
        blocks = F.div(F.add(F.reshape(limit, i64()), np.int64(block - 1)), np.int64(block))
    outer = op.replace(body=body, captures=len(captured), recompute=True)
    return Node(outer, [blocks, condition, *given, *captured], _name_with(node, "blocks"), node.meta).outputs


def _one_block(
    node: Node, trips: Value, inner_condition: Value, values: Sequence[Value], states: int
) -> Sequence[Value]:
    """Return (condition, *states) after at most `trips` iterations.

    values: The states, the captures, and as the last value the number of iterations in earlier blocks.
    """
    op = operator(node, Loop)
    number, entered = _copies(op.body.inputs[:2])
    inside = [_inside(v) for v in values]
    next_condition = _inside(inner_condition)
    offset = F.add(number, F.reshape(inside[-1], F.shape(number)))
    results = inline(op.body, [offset, entered, *inside[:-1]])
    body = Graph(
        [number, entered, *inside[:states], next_condition, *inside[states:]], [*results, results[0]], name="iteration"
    )
    inner = op.replace(body=body, captures=op.captures + 1)
    found = Node(
        inner, [trips, None, *values[:states], inner_condition, *values[states:]], node.name, node.meta
    ).outputs
    return [found[states], *found[:states]]


# --- values ---------------------------------------------------------------------------------------


def _inside(value: Value) -> Value:
    """Return a new subgraph input for an outer value."""
    return Value(without_value(value.type), value.name)


def _copies(values: Sequence[Value]) -> list[Value]:
    return [Value(v.type, v.name) for v in values]


def _name_with(node: Node, what: str) -> str:
    return f"{node.name}_{what}" if node.name else ""


def _size(x: Value, axis: int) -> Any:
    return F.shape(x, start=axis, end=axis + 1)


def _reshaped(x: Value, first: int, last: int, sizes: Sequence[Value]) -> Value:
    """Return x with its axes from `first` up to `last` (excluded) replaced by axes of the given sizes."""
    assert x.rank is not None
    around = [F.shape(x, start=0, end=first)] if first else []
    behind = [F.shape(x, start=last, end=x.rank)] if last < x.rank else []
    parts = [*around, *sizes, *behind]
    y: Value = F.reshape(x, parts[0] if len(parts) == 1 else F.concat(*parts, axis=0), allowzero=True)
    return y
