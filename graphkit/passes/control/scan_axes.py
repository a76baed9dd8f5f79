"""Scans along the first axis: slices along it are contiguous, so that native loops read and write them in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, operator
from graphkit.ops.control.operators import Scan
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.sweep import map_bodies, rewrite


def scan_axes(graph: Graph) -> Graph:
    """Transpose what a Scan reads or writes along another axis than the first. Linear.

    A Scan stays as it is where the rank of such an operand or result is unknown.
    """

    def rule(node: Node, operands: list[Value | None]) -> Sequence[Value] | None:
        rebuilt = map_bodies(node, operands, scan_axes)
        if rebuilt.op.domain or rebuilt.op.name != "Scan":
            return rebuilt.outputs
        return _along_first_axis(rebuilt) or rebuilt.outputs

    return rewrite(graph, rule)


def _along_first_axis(node: Node) -> Sequence[Value] | None:
    op = operator(node, Scan)
    view = LoopView.of(node)
    states = view.state_count
    read, written = ([axis for axis, _ in places] for places in (view.scan_input_places, view.scan_output_places))
    if not any(read) and not any(written):
        return None
    scanned = node.inputs[view.at_scan_inputs]
    stacked = node.outputs[states:]
    if any(
        axis and (v is None or v.rank is None) for axis, v in zip((*read, *written), (*scanned, *stacked), strict=True)
    ):
        return None
    operands = list(node.inputs)
    for i, (axis, value) in enumerate(zip(read, scanned, strict=True)):
        operands[states + i] = _moved(value, axis, 0)
    plain = op.replace(scan_input_axes=None, scan_output_axes=None)
    results = Node(plain, operands, node.name, node.meta, output_names=[v.name for v in node.outputs]).outputs
    moved = [_moved(v, 0, axis) for axis, v in zip(written, results[states:], strict=True)]
    return (*results[:states], *moved)


def _moved(value: Value | None, source: int, target: int) -> Any:
    """The value with its axis `source` at `target`, the others in their order."""
    if value is None or source == target:
        return value
    assert value.rank is not None
    source, target = source % value.rank, target % value.rank
    perm = [axis for axis in range(value.rank) if axis != source]
    perm.insert(target, source)
    return value if source == target else F.transpose(value, perm=perm)
