"""Convert elementwise functions between dequantisation and quantisation to integer operators or tables."""

from __future__ import annotations

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import F, Op, constant, operator
from graphkit.ops.evaluate import evaluate
from graphkit.ops.internal.quantised import QLinearAdd, QLinearGlobalAveragePool, QLinearMul, TableLookup
from graphkit.ops.quant.rounding import bounds
from graphkit.passes.core.match import array_of, first, is_op
from graphkit.passes.core.sweep import Readers, fused_node
from graphkit.passes.quantise.match import Quantised, dequantised, is_single_element

# The largest number of nodes that one table replaces.
_TABLE_NODES = 32


def quantised_pair(node: Node, y: Quantised, end: Node) -> Value | None:
    """Return the integer form of the sum or product of two dequantised tensors; None if there is none.

    y: The parameters with which the result is quantised. end: The QuantizeLinear node.
    """
    if not is_op(node, "Add", "Mul"):
        return None
    a, b = (dequantised(v) for v in node.inputs)
    if a is None or b is None or a.axis is not None or b.axis is not None:
        return None
    if a.x is b.x or not a.x.dtype is b.x.dtype is y.x.dtype:
        return None
    if not (a.is_factor and b.is_factor and y.is_divisor):
        return None
    if is_op(node, "Add") and not (a.is_addend_of(y) and b.is_addend_of(y)):
        return None
    op = QLinearAdd() if is_op(node, "Add") else QLinearMul()
    return fused_node(op, (a.x, a.scale, a.zero, b.x, b.scale, b.zero, y.scale, y.zero), (node, end))


def quantised_mean(node: Node, y: Quantised, end: Node) -> Value | None:
    """Return the integer form of a GlobalAveragePool of a dequantised image; None if there is none.

    y: The parameters with which the result is quantised. end: The QuantizeLinear node.
    """
    if not is_op(node, "GlobalAveragePool"):
        return None
    x = dequantised(first(node))
    if x is None or x.axis is not None or x.x.dtype is not y.x.dtype or not (x.is_factor and y.is_divisor):
        return None
    return fused_node(QLinearGlobalAveragePool(), (x.x, x.scale, x.zero, y.scale, y.zero), (node, end))


def lookup_table(end: Node, y: Quantised, readers: Readers) -> Value | None:
    """Replace elementwise functions between one dequantised tensor and the QuantizeLinear `end` by a table of 256
    results.

    If there are no functions between, and the parameters are equal, return the quantised tensor itself.
    """
    found = _region(first(end), readers)
    if found is None:
        return None
    source, members = found
    given = dequantised(source)
    assert given is not None
    if not members and given.same_parameters(y):
        return given.x
    elements = _elements(source, members, end, given, y)
    return None if elements is None else fused_node(TableLookup(), (given.x, elements), (*members, end))


def _region(value: Value, readers: Readers) -> tuple[Value, list[Node]] | None:
    """Return a dequantised value and the nodes that compute `value` from it alone; None if there is none."""
    members: dict[Node, int] = {}
    inner: dict[Value, int] = {}
    source: Value | None = None
    pending = [value]
    while pending:
        current = pending.pop()
        inner[current] = inner.get(current, 0) + 1
        if inner[current] > 1 or (array_of(current) is not None and is_single_element(current)):
            continue
        given = dequantised(current)
        if given is not None and given.axis is None:
            if source is not None and source is not current:
                return None
            source = current
            continue
        node = current.node
        if node is None or len(members) >= _TABLE_NODES or not _is_elementwise(node):
            return None
        members[node] = node.output.serial
        pending += node.operands
    if source is None or any(readers.count(n.output) > inner[n.output] for n in members):
        return None
    # Sort by serial number. A node that this sweep replaced has a larger number, but still a smaller one than its
    # readers.
    return source, sorted(members, key=lambda n: members[n])


def _is_elementwise(node: Node) -> bool:
    op = operator(node, Op)
    return (
        op.pointwise
        and len(node.outputs) == 1
        and not op.random
        and node.output.dtype is DType.FLOAT32
        and all(v.dtype in (DType.FLOAT32, DType.BOOL) for v in node.operands)
    )


def _elements(source: Value, members: list[Node], end: Node, given: Quantised, y: Quantised) -> Value | None:
    """Return the results for all 256 integers; as a constant if the parameters are constants."""
    least, most = bounds(given.x.dtype)
    integers = constant(np.arange(least, most + 1, dtype=given.x.dtype.numpy))
    table: dict[Value, Value] = {source: F.dequantize_linear(integers, given.scale, given.zero)}
    for node in (*members, end):
        try:
            rebuilt = Node(node.op, [None if v is None else table.get(v, v) for v in node.inputs])
        except GraphkitError:  # an operand of a rank that the table does not have
            return None
        table[node.output] = rebuilt.output
    result = table[end.output]
    if result.shape != (256,):
        return None
    # All other operands are constants: see _region.
    if any(array_of(v) is None for q in (given, y) for v in (q.scale, q.zero)):
        return result
    try:
        return constant(evaluate(Graph([], [result]), [])[0])
    except GraphkitError:  # it fails when it runs, if it ever does
        return None
