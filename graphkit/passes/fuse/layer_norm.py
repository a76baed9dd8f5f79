"""Recognise LayerNormalization and RMSNormalization in the formulas that exporters write."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType
from graphkit.ops import operator
from graphkit.ops.math.reduce import Reduction
from graphkit.ops.nn.norm import LayerNormalization, NormOfLastAxes, RMSNormalization
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import (
    axes_of,
    first,
    is_close,
    is_op,
    operand_orders,
    producer,
    same_type,
    scalar,
    split_shift,
)
from graphkit.passes.core.sweep import Readers, fuse

# For these types, the formula and the operator both compute the statistics in float32.
_DTYPES = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_MATCHED = ("ReduceMean", "LayerNormalization", "RMSNormalization")
# A formula contains one of the first two.
_NEEDED = ("Sqrt", "Pow", "LayerNormalization", "RMSNormalization")
# The last node of what the rules replace.
_LAST = ("Div", "Mul", "Add")


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.LAYER_NORMS_FUSED],
    at=_MATCHED,
    beside=[_NEEDED, _LAST],
)
def fuse_layer_norm(graph: Graph) -> Graph:
    """Replace formulas of normalisation over last axes of known size by operators. Linear.

    (x - mean) / sqrt(variance + epsilon) becomes LayerNormalization, with the factor and the term that follow.
    x / sqrt(mean(x * x) + epsilon) becomes RMSNormalization, with the factor that follows.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        return _standardised(node, readers) or _factor(node, readers) or _term(node, readers)

    return fuse(graph, rule, needs=_NEEDED, at=_LAST)


def _standardised(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Return a value divided by its root mean square or, if it is x - mean, the layer normalisation of x."""
    if not is_op(node, "Div", "Mul") or node.output.tensor.dtype not in _DTYPES:
        return None
    for value, mean_square, between in _quotients(node):
        found = _mean_of_squares(mean_square, value, readers)
        if found is None or not same_type(value, node.output):
            continue
        epsilon, axes, reads = found
        shape = value.tensor.known_shape
        sizes = [d for d in shape[axes[0] :] if isinstance(d, int)]
        if axes != tuple(range(axes[0], len(shape))) or len(sizes) != len(axes):
            continue
        one = Node(Constant(value=Tensor(np.ones(sizes, value.dtype.numpy))), ()).output
        difference = _difference(value, axes, readers) if readers.count(value) == reads + 1 else None
        if difference is not None:
            layer_norm = LayerNormalization(axis=axes[0] - len(shape), epsilon=epsilon)
            return (_normalised(layer_norm, (first(difference), one), (difference, node)),)
        if all(map(readers.has_one_use, between)):
            rms_norm = RMSNormalization(axis=axes[0] - len(shape), epsilon=epsilon)
            return (_normalised(rms_norm, (value, one), (node,)),)
    return None


def _difference(value: Value, axes: tuple[int, ...], readers: Readers) -> Node | None:
    """Return the node if the value is x minus its mean over `axes`."""
    node = producer(value, "Sub")
    average = None if node is None else producer(node.operands[1], "ReduceMean")
    if node is None or average is None or first(average) is not first(node) or axes_of(average) != axes:
        return None
    return (
        node if _keepdims(average) and readers.has_one_use(average.output) and same_type(first(node), value) else None
    )


def _normalised(op: NormOfLastAxes, operands: Sequence[Value], parts: Sequence[Node]) -> Value:
    name = next((part.name for part in parts if part.name), "")
    meta = {k: v for part in parts for k, v in part.meta.items()}
    return Node(op, operands, name, meta, output_names=[parts[-1].outputs[0].name]).outputs[0]


def _quotients(node: Node) -> list[tuple[Value, Value, list[Value]]]:
    """Return triples (a, b, between) for which the node is a / sqrt(b). between: what is computed from b for that."""
    if is_op(node, "Div"):
        a, below = node.operands
        root = producer(below, "Sqrt") or _power(below, 0.5)
        return [] if root is None else [(a, first(root), [below])]
    found = []
    for a, factor in operand_orders(node):
        inverse = producer(factor, "Reciprocal")
        quotient = producer(factor, "Div")
        if quotient is not None and is_close(scalar(quotient.inputs[0]), 1.0):
            inverse = quotient
        root = None if inverse is None else producer(inverse.operands[-1], "Sqrt")
        root = root or _power(factor, -0.5)
        if root is not None:
            found.append((a, first(root), [factor, root.output]))
    return found


def _power(value: Value, exponent: float) -> Node | None:
    node = producer(value, "Pow")
    return node if node is not None and is_close(scalar(node.inputs[1]), exponent) else None


def _mean_of_squares(value: Value, x: Value, readers: Readers) -> tuple[float, tuple[int, ...], int] | None:
    """If the value is the mean of the squares of x plus epsilon, return epsilon, the axes, and how often it reads x."""
    total = value.node
    found = None if total is None else split_shift(total)
    average = None if found is None else producer(found[0], "ReduceMean")
    if found is None or average is None or not _keepdims(average):
        return None
    square, axes = first(average), axes_of(average)
    if axes is None or not readers.has_one_use(square) or not readers.has_one_use(value):
        return None
    power = _power(square, 2.0)
    if power is not None and first(power) is x:
        return found[1], axes, 1
    product = producer(square, "Mul")
    if product is not None and all(v is x for v in product.operands):
        return found[1], axes, 2
    return None


def _factor(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Return a normalisation with the factor that follows it, if its own factor is only ones."""
    if not is_op(node, "Mul"):
        return None
    for y, scale in operand_orders(node):
        norm = _norm(y, readers)
        ones = None if norm is None or len(norm.inputs) > 2 else producer(norm.inputs[1], "Constant")
        if (
            norm is not None
            and ones is not None
            and _has_normalised_shape(norm, scale)
            and bool((_array(ones) == 1).all())
        ):
            return (_normalised(_operator(norm), (first(norm), scale), (norm, node)),)
    return None


def _term(node: Node, readers: Readers) -> Sequence[Value] | None:
    if not is_op(node, "Add"):
        return None
    for y, term in operand_orders(node):
        norm = _norm(y, readers)
        if norm is None or norm.op.name != LayerNormalization.name:
            continue
        if len(norm.operands) == 2 and _has_normalised_shape(norm, term):
            return (_normalised(operator(norm, LayerNormalization), (*norm.operands, term), (norm, node)),)
    return None


def _keepdims(reduction: Node) -> bool:
    return operator(reduction, Reduction).keepdims


def _norm(y: Value, readers: Readers) -> Node | None:
    node = producer(y, "LayerNormalization") or producer(y, "RMSNormalization")
    return node if node is not None and y is node.outputs[0] and readers.has_one_use(y) else None


def _has_normalised_shape(norm: Node, vector: Value) -> bool:
    """Return whether the vector has the shape of the normalised axes."""
    op = _operator(norm)
    shape = first(norm).tensor.known_shape
    return op.axis < 0 and vector.shape == shape[op.axis :] and vector.tensor.dtype is first(norm).tensor.dtype


def _operator(norm: Node) -> NormOfLastAxes:
    return operator(norm, NormOfLastAxes)


def _array(node: Node) -> np.ndarray:
    return operator(node, Constant).value.array
