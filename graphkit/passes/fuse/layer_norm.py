"""LayerNormalization from the nodes that older exporters write for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.tensor import Tensor
from graphkit.ir.types import DType
from graphkit.ops import operator
from graphkit.ops.math.reduce import Reduction
from graphkit.ops.nn.norm import LayerNormalization
from graphkit.ops.tensor.constants import Constant
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import axes_of, close, first, is_op, orders, producer, same_type, scalar, shifted
from graphkit.passes.core.sweep import Readers, fuse

# Statistics of these are computed in float32 in either form.
_DTYPES = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})


@graph_pass(
    requires=[Property.CONSTANTS_FOLDED, Property.POINTWISE_APART],
    ensures=[Property.LAYER_NORMS_FUSED],
    at=["ReduceMean", "LayerNormalization"],
)
def fuse_layer_norm(graph: Graph) -> Graph:
    """Replace (x - mean) / sqrt(var + epsilon), over last axes of known size, and the factor and term that follow, by
    LayerNormalization. Linear.
    """

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        return _standardised(node, readers) or _factor(node, readers) or _term(node, readers)

    return fuse(graph, rule, needs=("ReduceMean", "LayerNormalization"), at=("Div", "Mul", "Add"))


def _standardised(node: Node, readers: Readers) -> Sequence[Value] | None:
    if not is_op(node, "Div", "Mul") or node.output.tensor.dtype not in _DTYPES:
        return None
    for centred, spread in _deviations(node):
        found = _variance(spread, centred, readers)
        difference = producer(centred, "Sub")
        if found is None or difference is None:
            continue
        epsilon, axes, reads = found
        x, mean = difference.operands
        average = producer(mean, "ReduceMean")
        if average is None or first(average) is not x or axes_of(average) != axes or not _keepdims(average):
            continue
        shape = x.tensor.shape
        if shape is None or not same_type(x, node.output) or axes != tuple(range(axes[0], len(shape))):
            continue
        sizes = [d for d in shape[axes[0] :] if isinstance(d, int)]
        if len(sizes) != len(axes) or not readers.sole(mean) or readers.count(centred) != reads + 1:
            continue
        one = Node(Constant(value=Tensor(np.ones(sizes, x.tensor.dtype.numpy))), ()).output
        op = LayerNormalization(axis=axes[0] - len(shape), epsilon=epsilon)
        return (_normalised(op, (x, one), (difference, node)),)
    return None


def _normalised(op: LayerNormalization, operands: Sequence[Value], parts: Sequence[Node]) -> Value:
    name = next((part.name for part in parts if part.name), "")
    meta = {k: v for part in parts for k, v in part.meta.items()}
    return Node(op, operands, name, meta, output_names=[parts[-1].outputs[0].name]).outputs[0]


def _deviations(node: Node) -> list[tuple[Value, Value]]:
    """(x - mean, var + epsilon) when the node may be their quotient with the root of the second."""
    if is_op(node, "Div"):
        centred, below = node.operands
        root = producer(below, "Sqrt") or _power(below, 0.5)
        return [] if root is None else [(centred, first(root))]
    found = []
    for centred, factor in orders(node):
        inverse = producer(factor, "Reciprocal")
        quotient = producer(factor, "Div")
        if quotient is not None and close(scalar(quotient.inputs[0]), 1.0):
            inverse = quotient
        root = None if inverse is None else producer(inverse.operands[-1], "Sqrt")
        root = root or _power(factor, -0.5)
        if root is not None:
            found.append((centred, first(root)))
    return found


def _power(value: Value, exponent: float) -> Node | None:
    node = producer(value, "Pow")
    return node if node is not None and close(scalar(node.inputs[1]), exponent) else None


def _variance(value: Value, centred: Value, readers: Readers) -> tuple[float, tuple[int, ...], int] | None:
    """(epsilon, axes, how often it reads `centred`) when the value is the mean of its squares, and epsilon."""
    total = value.node
    found = None if total is None else shifted(total)
    average = None if found is None else producer(found[0], "ReduceMean")
    if found is None or average is None or not _keepdims(average):
        return None
    square, axes = first(average), axes_of(average)
    if axes is None or not readers.sole(square) or not readers.sole(value):
        return None
    power = _power(square, 2.0)
    if power is not None and first(power) is centred:
        return found[1], axes, 1
    product = producer(square, "Mul")
    if product is not None and all(v is centred for v in product.operands):
        return found[1], axes, 2
    return None


def _factor(node: Node, readers: Readers) -> Sequence[Value] | None:
    """The factor of a normalisation that has none but ones."""
    if not is_op(node, "Mul"):
        return None
    for y, scale in orders(node):
        norm = _norm(y, readers)
        ones = None if norm is None or len(norm.inputs) > 2 else producer(norm.inputs[1], "Constant")
        if norm is not None and ones is not None and _per_place(norm, scale) and bool((_array(ones) == 1).all()):
            return (_normalised(operator(norm, LayerNormalization), (first(norm), scale), (norm, node)),)
    return None


def _term(node: Node, readers: Readers) -> Sequence[Value] | None:
    if not is_op(node, "Add"):
        return None
    for y, term in orders(node):
        norm = _norm(y, readers)
        if norm is not None and len(norm.operands) == 2 and _per_place(norm, term):
            return (_normalised(operator(norm, LayerNormalization), (*norm.operands, term), (norm, node)),)
    return None


def _keepdims(reduction: Node) -> bool:
    return operator(reduction, Reduction).keepdims


def _norm(y: Value, readers: Readers) -> Node | None:
    node = producer(y, "LayerNormalization")
    return node if node is not None and y is node.outputs[0] and readers.sole(y) else None


def _per_place(norm: Node, vector: Value) -> bool:
    """Whether the vector has the shape of the normalised axes."""
    op = operator(norm, LayerNormalization)
    shape = first(norm).tensor.known_shape
    return op.axis < 0 and vector.shape == shape[op.axis :] and vector.tensor.dtype is first(norm).tensor.dtype


def _array(node: Node) -> np.ndarray:
    return operator(node, Constant).value.array
