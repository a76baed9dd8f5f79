"""Products of operands that are quantised at run time, as one operator: what dynamic quantisation writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, constant, operator
from graphkit.ops.internal.quantised import DynamicQuantizeMatMul, MatMulIntegerToFloat
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import array_of, is_op, operand_orders, producer
from graphkit.passes.core.sweep import Readers, fuse, fused_node
from graphkit.passes.quantise.match import is_one_number, is_vector


@graph_pass(
    requires=[Property.QUANTISED_INTEGER, Property.POINTWISE_APART],
    breaks=[Property.SIMPLIFIED],
    at=["MatMulInteger", "MatMulIntegerToFloat"],
)
def dynamic_products(graph: Graph) -> Graph:
    """Make one operator of Cast(MatMulInteger(a, b, a_zero, b_zero)) * (a_scale * b_scale), and a bias behind it.

    That is MatMulIntegerToFloat; DynamicQuantizeMatMul where a, a_zero and a_scale are a DynamicQuantizeLinear's that
    nothing else reads. Linear.
    """
    needs = ("MatMulInteger", "MatMulIntegerToFloat")
    return fuse(graph, _rule, needs=needs, at=("Mul", "Add", "MatMulIntegerToFloat"))


def _rule(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = _scaled(node, readers) if is_op(node, "Mul") else _biased(node, readers) if is_op(node, "Add") else None
    return None if found is None else (found,)


class _Scaled(NamedTuple):
    """The product, and the scales of its factors."""

    product: Node
    a_scale: Value
    b_scale: Value


def _scaled(node: Node, readers: Readers) -> Value | None:
    found = _factors(node, readers)
    if found is None:
        return None
    product = found.product
    a, b, a_zero, b_zero = (*product.inputs, None, None)[:4]
    assert a is not None
    assert b is not None
    if a_zero is not None and not is_one_number(a_zero):
        return None
    dynamic = producer(a, "DynamicQuantizeLinear")
    if dynamic is not None and _reads_once(dynamic, (a, found.a_scale, a_zero), readers):
        op, operands = DynamicQuantizeMatMul(), (dynamic.inputs[0], b, found.b_scale, b_zero)
        return fused_node(op, operands, (product, node))
    whole = (a, b, found.a_scale, found.b_scale, a_zero, b_zero)
    return fused_node(MatMulIntegerToFloat(), whole, (product, node))


def _factors(node: Node, readers: Readers) -> _Scaled | None:
    for total, scale in operand_orders(node):
        cast = producer(total, "Cast")
        if cast is None or cast.output.dtype is not DType.FLOAT32 or not readers.has_one_use(total):
            continue
        product = producer(cast.inputs[0], "MatMulInteger")
        if product is None or not readers.has_one_use(product.output) or scale.dtype is not DType.FLOAT32:
            continue
        b = product.operands[1]
        columns = None if b.shape is None or len(b.shape) != 2 else b.shape[1]
        for of_a, of_b in _scales(scale):
            fits = is_one_number(of_b) or is_vector(of_b, columns)
            if fits and is_one_number(of_a) and _is_scale_of(of_a, product):
                return _Scaled(product, of_a, of_b)
    return None


def _scales(scale: Value) -> Iterator[tuple[Value, Value]]:
    """What the scales of a and b may be, where `scale` is their product."""
    node = producer(scale, "Mul")
    if node is not None:
        yield from operand_orders(node)
    elif array_of(scale) is not None:
        # Two constants have become one.
        yield constant(np.float32(1.0)), scale


def _is_scale_of(scale: Value, product: Node) -> bool:
    """Whether a scale is known to be of the first factor: the one that DynamicQuantizeLinear found with it, if any."""
    dynamic = producer(product.inputs[0], "DynamicQuantizeLinear")
    return dynamic is None or scale is dynamic.outputs[1]


def _reads_once(dynamic: Node, values: tuple[Value | None, ...], readers: Readers) -> bool:
    """Whether the values are the results of a DynamicQuantizeLinear, and nothing else reads them."""
    results = zip(values, dynamic.outputs, strict=True)
    return all(v is made and readers.has_one_use(made) for v, made in results)


def _biased(node: Node, readers: Readers) -> Value | None:
    for total, bias in operand_orders(node):
        inner = total.node
        if (
            inner is None
            or inner.op.domain != DOMAIN
            or not readers.has_one_use(total)
            or bias.dtype is not DType.FLOAT32
        ):
            continue
        if not isinstance(inner.op, (MatMulIntegerToFloat, DynamicQuantizeMatMul)):
            continue
        place = 6 if isinstance(inner.op, MatMulIntegerToFloat) else 4
        operands = [*inner.inputs, *[None] * (place - len(inner.inputs))]
        width = None if total.shape is None else total.shape[-1]
        if len(operands) == place and is_vector(bias, width) and total.rank != 1:
            return fused_node(operator(inner, type(inner.op)), (*operands, bias), (inner, node))
    return None
