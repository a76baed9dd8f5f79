"""Fuse matrix products of operands that are quantised at run time, as tools for dynamic quantisation write them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import DOMAIN, constant, operator
from graphkit.ops.internal.quantised import DynamicQuantizeMatMul, MatMulIntegerToFloat
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import array_of, is_op, operand_orders, producer
from graphkit.passes.core.sweep import Readers, fuse, fused_node
from graphkit.passes.quantise.match import is_single_element, is_vector


@graph_pass(
    requires=[Property.QUANTISED_INTEGER, Property.POINTWISE_APART],
    breaks=[Property.SIMPLIFIED],
    at=["MatMulInteger", "MatMulIntegerToFloat"],
)
def dynamic_products(graph: Graph) -> Graph:
    """Fuse Cast(MatMulInteger(a, b, a_zero, b_zero)) * (a_scale * b_scale), and a bias after it. Takes linear time.

    The result is a MatMulIntegerToFloat. If a, a_scale and a_zero are the results of a DynamicQuantizeLinear without
    other readers, it is a DynamicQuantizeMatMul.
    """
    needs = ("MatMulInteger", "MatMulIntegerToFloat")
    return fuse(graph, _rule, needs=needs, at=("Mul", "Add", "MatMulIntegerToFloat"))


def _rule(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = _scaled(node, readers) if is_op(node, "Mul") else _biased(node, readers) if is_op(node, "Add") else None
    return None if found is None else (found,)


class _Scaled(NamedTuple):
    """A MatMulInteger, and the scales of its factors."""

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
    if a_zero is not None and not is_single_element(a_zero):
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
            fits = is_single_element(of_b) or is_vector(of_b, columns)
            if fits and is_single_element(of_a) and _is_scale_of(of_a, product):
                return _Scaled(product, of_a, of_b)
    return None


def _scales(scale: Value) -> Iterator[tuple[Value, Value]]:
    """Yield candidates for the scales of a and b, whose product is `scale`."""
    node = producer(scale, "Mul")
    if node is not None:
        yield from operand_orders(node)
    elif array_of(scale) is not None:
        # Constant folding has multiplied the two scales.
        yield constant(np.float32(1.0)), scale


def _is_scale_of(scale: Value, product: Node) -> bool:
    """Return whether a scale may be that of the first factor.

    If DynamicQuantizeLinear made the factor, it also made the scale.
    """
    dynamic = producer(product.inputs[0], "DynamicQuantizeLinear")
    return dynamic is None or scale is dynamic.outputs[1]


def _reads_once(dynamic: Node, values: tuple[Value | None, ...], readers: Readers) -> bool:
    """Return whether the values are the results of this DynamicQuantizeLinear and have no other readers."""
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
