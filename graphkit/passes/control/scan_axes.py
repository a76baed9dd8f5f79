"""Transpose the operands and results of Scan so that it scans along the first axis. Slices are then contiguous."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import F, operator
from graphkit.ops.control.operators import Scan
from graphkit.ops.control.views import LoopView
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.sweep import all_nodes, map_bodies, rewrite


def _axes_to_move(view: LoopView) -> tuple[list[int], list[int]] | None:
    """Return the axes of the scan inputs and of the scan outputs.

    Returns None if all of them are the first axis, or if a rank is unknown.
    """
    read, written = ([axis for axis, _ in places] for places in (view.scan_input_places, view.scan_output_places))
    along = zip((*read, *written), (*view.scan_inputs, *view.scan_outputs), strict=True)
    moved = [scanned.outer for axis, scanned in along if axis]
    return (read, written) if moved and all(v.rank is not None for v in moved) else None


def _along_another_axis(graph: Graph) -> Node | None:
    scans = (node for node in graph.nodes if _is_scan(node))
    return next((node for node in scans if _axes_to_move(LoopView.of(node)) is not None), None)


def _is_scan(node: Node) -> bool:
    return node.op.name == "Scan" and not node.op.domain


@graph_pass(
    requires=[Property.RANKS_KNOWN],
    ensures=[Property.SCANS_ALONG_FIRST_AXIS],
    breaks=[Property.TRANSPOSES_MERGED],
    check=_along_another_axis,
    at=["Scan"],
)
def scan_axes(graph: Graph) -> Graph:
    """Transpose scan inputs and outputs that a Scan does not read or write along the first axis. Takes linear time.

    A Scan is kept if the rank of such an operand or result is unknown.
    """
    if not any(_is_scan(node) for node in all_nodes(graph)):
        return graph

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        rebuilt = map_bodies(node, operands, scan_axes)
        return (_along_first_axis(rebuilt) if _is_scan(rebuilt) else None) or rebuilt.outputs

    return rewrite(graph, rule, at=CONTROL)


def _along_first_axis(node: Node) -> Sequence[Value] | None:
    op = operator(node, Scan)
    view = LoopView.of(node)
    states = view.state_count
    axes = _axes_to_move(view)
    if axes is None:
        return None
    read, written = axes
    operands = list(node.inputs)
    for i, (axis, scanned) in enumerate(zip(read, view.scan_inputs, strict=True)):
        operands[states + i] = _move_axis(scanned.outer, axis, 0)
    plain = op.replace(scan_input_axes=None, scan_output_axes=None)
    results = Node(plain, operands, node.name, node.meta, output_names=[v.name for v in node.outputs]).outputs
    moved = [_move_axis(v, 0, axis) for axis, v in zip(written, results[states:], strict=True)]
    return (*results[:states], *moved)


def _move_axis(value: Value, source: int, target: int) -> Value:
    """Return the value with its axis `source` moved to `target`. The other axes keep their order."""
    if source == target:
        return value
    assert value.rank is not None
    source, target = source % value.rank, target % value.rank
    perm = [axis for axis in range(value.rank) if axis != source]
    perm.insert(target, source)
    moved: Value = value if source == target else F.transpose(value, perm=perm)
    return moved
