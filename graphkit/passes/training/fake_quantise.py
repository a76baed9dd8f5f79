"""Quantisation-aware training: replace QuantizeLinear followed by DequantizeLinear with one differentiable operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ops import operator
from graphkit.ops.quant.fake import FakeQuantize
from graphkit.ops.quant.linear import DequantizeLinear, QuantizeLinear
from graphkit.ops.quant.rounding import SCALES
from graphkit.passes.core.match import array_of, is_op, producer
from graphkit.passes.core.sweep import map_subgraphs, rewrite


def fake_quantise(graph: Graph) -> Graph:
    """Replace each QuantizeLinear and the DequantizeLinear after it, with equal scale and zero point, by FakeQuantize.

    Values do not change. The gradient is the straight-through estimator (see FakeQuantize). Subgraphs are included.
    Takes linear time.
    """

    def rule(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
        if node.op.subgraphs():
            return map_subgraphs(node, operands, fake_quantise).outputs
        return _fake(node, operands) if is_op(node, "DequantizeLinear") else None

    return rewrite(graph, rule)


def _fake(node: Node, operands: Sequence[Value | None]) -> Sequence[Value] | None:
    inner = producer(operands[0], "QuantizeLinear")
    if inner is None:
        return None
    first, second = operator(inner, QuantizeLinear), operator(node, DequantizeLinear)
    x, scale = inner.operands[:2]
    same = (first.axis, first.block_size) == (second.axis, second.block_size) or scale.rank == 0
    if not same or x.dtype not in SCALES or scale.dtype not in SCALES or node.output.dtype is not x.dtype:
        return None
    if not all(_equal(a, b) for a, b in zip(_parameters(inner.inputs), _parameters(operands), strict=True)):
        return None
    attributes = {**first.attributes(), "output_dtype": inner.output.dtype}
    return Node(FakeQuantize(**attributes), inner.inputs, node.name, node.meta, output_names=[node.output.name]).outputs


def _parameters(operands: Sequence[Value | None]) -> tuple[Value | None, Value | None]:
    return operands[1], operands[2] if len(operands) > 2 else None


def _equal(a: Value | None, b: Value | None) -> bool:
    """Return whether two scales or zero points are the same value or equal constants. An absent zero point is 0."""
    if a is b:
        return True
    if a is None or b is None:
        known = array_of(a) if a is not None else array_of(b) if b is not None else None
        return known is not None and not np.any(known)
    left, right = array_of(a), array_of(b)
    return left is not None and right is not None and left.dtype == right.dtype and np.array_equal(left, right)
