"""Outputs that loops stack in host memory until loops of the backward pass read them."""

from __future__ import annotations

from graphkit.executor.lower.loop import Loop
from graphkit.executor.lower.loop_layout import LoopLayout
from graphkit.executor.lower.lowering import LoweredGraph, Lowering
from graphkit.executor.memory import swapping
from graphkit.ir.graph import Node, Value
from graphkit.passes.core.sweep import elements_read
from graphkit.passes.training.swap import is_swapped

# Stacks with fewer slices are not swapped: loops keep two slices on the device anyway.
LEAST_ROWS = 5

# A slice must have at least MIN_BYTES / ROW_PARTS bytes: very small copies are slow.
ROW_PARTS = 16


def stacks_on_host(lowered: LoweredGraph) -> frozenset[Value]:
    """Return the outputs of loops that are stacked in host memory. Takes linear time.

    The loop must be marked (`is_swapped`), and only loops may read the output, slice by slice. The numbers of
    iterations of all these loops must be known, and the output large enough.
    """
    placement = lowered.placement
    found = {
        node.outputs[stack.output]
        for node, lowering in lowered.steps
        if isinstance(lowering, Loop) and is_swapped(node) and (lowering.layout.known_trips or 0) >= LEAST_ROWS
        for stack in lowering.layout.stacked
        if ROW_PARTS * stack.row.tensor.nbytes >= swapping.MIN_BYTES and _is_alone(stack.row, lowering.layout)
    }
    found = {v for v in found if placement.place[v] == "arena" and v.tensor.nbytes >= swapping.MIN_BYTES}
    for node, lowering in lowered.steps if found else ():
        scanned = _scanned(node, lowering)
        found.difference_update(
            root for v in elements_read(node) if v not in scanned and (root := placement.root[v]) in found
        )
    return frozenset(found)


def _is_alone(row: Value, layout: LoopLayout) -> bool:
    return [*(s.row for s in layout.scanned), *(s.row for s in layout.stacked)].count(row) == 1


def _scanned(node: Node, lowering: Lowering) -> frozenset[Value]:
    """Return the values that a step reads in slices and never as a whole."""
    if not isinstance(lowering, Loop) or lowering.layout.known_trips is None:
        return frozenset()
    rows = {scan.operand for scan in lowering.layout.scanned}
    whole = {v for position, v in enumerate(node.inputs) if position not in rows}
    return frozenset(v for position in rows if (v := node.inputs[position]) is not None and v not in whole)
