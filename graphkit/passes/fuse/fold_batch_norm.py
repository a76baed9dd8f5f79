"""Fold batch normalisation at inference, and other factors and shifts per channel, into the weights before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, Op, operator
from graphkit.ops.math.arithmetic import Add, Mul
from graphkit.ops.pointwise import scalar_like
from graphkit.passes.core.declare import CONTROL, Property, graph_pass
from graphkit.passes.core.match import (
    FixedValues,
    SharedConstants,
    array_of,
    first,
    ints,
    is_channel_vector,
    is_op,
    operand_orders,
    producer,
    same_type,
)
from graphkit.passes.core.sweep import Readers, fuse, fused_node

# In float16 and bfloat16, the factors would lose digits that the operator keeps.
_DTYPES = frozenset({DType.FLOAT32, DType.FLOAT64})

_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Data movement.
_VIEWS = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten")

# Rebuilds a product with new weights and bias. Returns its output.
_Rebuild = Callable[[Value, Value | None, Node], Value]


@graph_pass(
    requires=[Property.HALVES_WIDENED, Property.RANKS_KNOWN],
    ensures=[Property.BATCH_NORMS_FOLDED],
    at=["BatchNormalization", "Mul"],
    beside=[["BatchNormalization", *_PRODUCTS]],
)
def fold_batch_norm(graph: Graph, expanded: bool = False) -> Graph:
    """Fold a BatchNormalization or Mul into the weights and bias of the product before it. Takes linear time.

    The product is a Conv, ConvTranspose, Gemm, or a matrix product with bias. The node must be its only reader. A Mul
    must have one number per channel, or one number. All operands except the data must be constants or parameters, so
    the new weights depend on parameters only. Other BatchNormalizations with fixed statistics become a product and a
    sum, which can be fused with pointwise neighbours. Nodes that update their statistics are kept.

    expanded: Compute the new weights by standard operators, for devices without a kernel of FoldedBatchNorm.
    """
    fixed, constants = FixedValues(graph), SharedConstants()
    if graph.operators.isdisjoint(("BatchNormalization", *CONTROL)) and not _has_fixed_weights(graph, fixed):
        return graph

    def rule(node: Node, readers: Readers) -> Sequence[Value] | None:
        if is_op(node, "BatchNormalization"):
            return _batch_norm(node, readers, fixed, None if expanded else constants)
        if is_op(node, "Mul"):
            return _factor(node, readers, fixed)
        return None

    return fuse(graph, rule, at=("BatchNormalization", "Mul"))


def _has_fixed_weights(graph: Graph, fixed: FixedValues) -> bool:
    products = (node for node in graph.nodes if node.op.name in _PRODUCTS and not node.op.domain)
    return any(node.operands[1] in fixed for node in products)


class _Product(NamedTuple):
    """A product of data with fixed weights. Its channels are the positions along `axis` of the result."""

    channels: int
    axis: int
    weights: Value
    weight_axis: int
    bias: Value | None
    rebuild: _Rebuild


def _batch_norm(
    node: Node, readers: Readers, fixed: FixedValues, constants: SharedConstants | None
) -> Sequence[Value] | None:
    """Fold a BatchNormalization. constants: None if standard operators must compute the new weights."""
    from graphkit.ops.internal.folded_batch_norm import FoldedBatchNorm
    from graphkit.ops.nn.norm import BatchNormalization

    op = operator(node, BatchNormalization)
    x, scale, shift, mean, var = (v for v in node.inputs if v is not None)
    vectors = (scale, shift, mean, var)
    channels = scale.shape[0] if scale.rank == 1 and scale.shape is not None else None
    same = all(v.type == scale.type and v.dtype is x.dtype for v in vectors)
    if op.training_mode or not isinstance(channels, int) or not same or x.rank is None or x.rank < 2:
        return None
    if x.dtype not in _DTYPES:
        return None
    # BatchNormalization rejects other numbers of channels, but the folded result would broadcast them.
    if not all(v in fixed for v in vectors) or x.tensor.known_shape[1] != channels:
        return None
    product = _product(x, readers, fixed)
    if product is not None and (product.axis, product.channels) == (1, channels):
        folded = FoldedBatchNorm(axis=product.weight_axis, epsilon=op.epsilon)
        operands = (product.weights, scale, shift, mean, var, product.bias)
        weights, bias = folded.expand(*operands) if constants is None else Node(folded, operands).outputs
        return (product.rebuild(weights, bias, node),)
    column = [channels, *(1 for _ in range(x.rank - 2))]
    factor, rest = _affine(op.epsilon, vectors, column, constants)
    scaled = Node(Mul(), (x, factor), node.name).output
    return (Node(Add(), (scaled, rest), node.name, node.meta, output_names=[node.outputs[0].name]).output,)


def _affine(
    epsilon: float, vectors: Sequence[Value], column: Sequence[int], constants: SharedConstants | None
) -> tuple[Value, Value]:
    """Return the factor and the summand of a batch normalisation, with the shape `column`, [channels, 1, ...].

    vectors: scale, shift, mean and variance.
    """
    from graphkit.ops.internal.folded_batch_norm import FoldedBatchNorm

    scale, shift, mean, var = vectors
    if constants is None:
        factor = F.div(scale, F.sqrt(F.add(var, scalar_like(epsilon, var))))
        return F.reshape(factor, ints(*column)), F.reshape(F.sub(shift, F.mul(mean, factor)), ints(*column))
    # The folded weights of a product that copies its operand are the factors.
    copy = constants.ones(scale.dtype, column)
    factor, rest = Node(FoldedBatchNorm(axis=0, epsilon=epsilon), (copy, *vectors)).outputs
    if len(column) > 1:
        from graphkit.ops.tensor.shape import Reshape

        rest = Node(Reshape(), (rest, constants.ints(column))).output
    return factor, rest


def _factor(node: Node, readers: Readers, fixed: FixedValues) -> Sequence[Value] | None:
    """Fold a Mul with a fixed factor, for each channel or for all elements, into the product before it."""
    for y, vector in operand_orders(node):
        if y.node is None or y.rank is None or not same_type(y, node.output) or vector not in fixed:
            continue
        if vector.shape is not None and all(d == 1 for d in vector.shape):
            found = None if array_of(vector) is not None else _uniform(node, y, vector, readers, fixed)
            if found is not None:
                return found
            continue
        product = _product(y, readers, fixed)
        if product is None or not is_channel_vector(vector, product.channels, product.axis, y.rank):
            continue
        factor = F.reshape(vector, ints(product.channels)) if vector.rank != 1 else vector
        bias = None if product.bias is None else F.mul(product.bias, factor)
        return (product.rebuild(_scaled(product, factor), bias, node),)
    return None


def _uniform(node: Node, y: Value, factor: Value, readers: Readers, fixed: FixedValues) -> Sequence[Value] | None:
    """Fold one fixed factor for all elements into the product, also through views and transposes of its result.

    The caller excludes constant factors: attention and products have an attribute for them.
    """
    views = []
    while (view := producer(y, *_VIEWS)) is not None and readers.has_one_use(y):
        views.append(view)
        y = first(view)
    product = _product(y, readers, fixed)
    if product is None or y.node is None:
        return None
    number = F.reshape(factor, ints(1))
    bias = None if product.bias is None else F.mul(product.bias, number)
    result = product.rebuild(F.mul(product.weights, number), bias, y.node)
    for view in reversed(views):
        result = view.rebuilt([result, *view.inputs[1:]]).output
    if not views:
        return (result,)
    assert result.node is not None
    names = [node.output.name]
    return Node(result.node.op, result.node.inputs, result.node.name, result.node.meta, output_names=names).outputs


def _scaled(product: _Product, factor: Value) -> Value:
    rank = product.weights.rank
    assert rank is not None
    column = [product.channels if axis == product.weight_axis else 1 for axis in range(product.weight_axis, rank)]
    return F.mul(product.weights, F.reshape(factor, ints(*column)))


def _product(value: Value, readers: Readers, fixed: FixedValues) -> _Product | None:
    """Return the product that computes `value`; None if there is none, or if `value` has several readers."""
    node = value.node
    if node is None or not readers.has_one_use(value):
        return None
    if is_op(node, "Add"):
        return _product_with_bias(node, readers, fixed)
    if not is_op(node, *_PRODUCTS):
        return None
    op, given = operator(node, Op), node.op.attributes()
    weights = node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if weights is None or weights.rank is None or weights not in fixed or (bias is not None and bias not in fixed):
        return None
    last = value.rank - 1 if value.rank is not None else 0
    if op.name == "Conv":
        place, axis = 0, 1
    elif op.name == "ConvTranspose":
        place, axis = 1, 1
        if given["group"] != 1:
            return None
    elif op.name == "Gemm":
        place, axis = (0 if given["transB"] else 1), 1
        if given["beta"] != 1 or (bias is not None and (bias.rank != 1 or bias.shape != value.tensor.known_shape[1:])):
            return None
    else:
        place, axis = 1, last
        if weights.rank != 2 or first(node).rank in (None, 1):
            return None
    channels = weights.tensor.known_shape[place]
    if not isinstance(channels, int):
        return None

    def rebuild(new_weights: Value, new_bias: Value | None, root: Node) -> Value:
        if op.name == "MatMul" and new_bias is not None:
            y = Node(op, (first(node), new_weights), node.name, node.meta).output
            return fused_node(Add(), (y, new_bias), (root,))
        return fused_node(op, (first(node), new_weights, new_bias), (node, root), keeps_type=True)

    return _Product(channels, axis, weights, place, bias, rebuild)


def _product_with_bias(node: Node, readers: Readers, fixed: FixedValues) -> _Product | None:
    """Match the sum of a MatMul and a fixed vector."""
    for y, bias in operand_orders(node):
        product = _product(y, readers, fixed) if producer(y, "MatMul") is not None else None
        if product is not None and bias.shape == (product.channels,) and bias in fixed:
            return product._replace(bias=bias)
    return None
