"""Fuse matrix products with transposes and factors of their operands, and with bias, activation and residual."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.numbering import remember
from graphkit.ops import DOMAIN, F, operator
from graphkit.ops._op import number_of
from graphkit.ops.internal.fused import FusedMatMul
from graphkit.ops.linalg.matmul import Gemm
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import (
    first,
    ints,
    is_channel_vector,
    is_op,
    permutation,
    producer,
    same_type,
    split_scale,
)
from graphkit.passes.core.relevance import FACTORS, PRODUCTS
from graphkit.passes.core.sweep import Readers, fuse, fused_node
from graphkit.passes.fuse.epilogue import ABSORBED, Product, absorb, is_single

# Operators after a product that it can contain.
_FOLLOWING = frozenset({"Reshape", "Transpose", "Mul", "Div", *ABSORBED})


@graph_pass(
    requires=[
        Property.HALVES_WIDENED,
        Property.GELUS_FUSED,
        Property.ACTIVATIONS_FUSED,
        Property.HEADS_SHARED,
        Property.RESHAPES_MERGED,
        Property.BATCH_NORMS_FOLDED,
        Property.POINTWISE_APART,
    ],
    ensures=[Property.MATMULS_FUSED],
    at=PRODUCTS,
    beside=[_FOLLOWING | FACTORS],
)
def fuse_matmul(graph: Graph, *, activations: bool = True) -> Graph:
    """Fuse a MatMul or Gemm with its neighbours into FusedMatMul. Takes linear time.

    Before it: transposes of the last two axes, and constant factors. After it, each as the only reader: the transpose
    of a matrix, a constant factor, the sum with a vector, an activation (see FusedMatMul), and the sum with a tensor of
    the result's shape. If the rows are flattened before the product and unflattened after it, both reshapes are
    removed.

    activations: Whether activations are fused.
    """
    rule = partial(_rule, activations=activations)
    return fuse(graph, rule, at=("MatMul", "Gemm"), after=PRODUCTS, among=_FOLLOWING)


def _rule(node: Node, readers: Readers, activations: bool) -> Sequence[Value] | None:
    name = node.op.name
    if node.op.domain:
        return None
    if name in ("MatMul", "Gemm"):
        return _operands(node, readers)
    if name == "Reshape":
        return _unflattened(node, readers)
    if name == "Transpose":
        return _transposed(node, readers)
    if name in ("Mul", "Div"):
        return _factor(node, readers)
    return absorb(node, readers, _form, _bias) if activations or name == "Add" else None


def _form(value: Value) -> Product[FusedMatMul] | None:
    node = value.node
    if node is None or not (is_op(node, "FusedMatMul", domain=DOMAIN) or is_single(value)):
        return None
    return product_form(node)


def product_form(node: Node) -> Product[FusedMatMul] | None:
    """Return a FusedMatMul, MatMul or Gemm in fused form; None for other nodes.

    Also None for a MatMul with a vector, and a Gemm whose third operand is neither a bias nor a residual.
    """
    if is_op(node, "FusedMatMul", domain=DOMAIN):
        return Product(operator(node, FusedMatMul), (*node.inputs, None, None)[:4], node)
    if is_op(node, "MatMul"):
        matrices = all(v.rank not in (None, 1) for v in node.operands)
        return Product(FusedMatMul.shared(), (*node.inputs, None, None), node) if matrices else None
    return _gemm_form(node) if is_op(node, "Gemm") else None


def _gemm_form(node: Node) -> Product[FusedMatMul] | None:
    """Return the fused form of a Gemm whose third operand is a bias, a residual or absent; else None."""
    op = operator(node, Gemm)
    fused = _without_bias(op)
    a, b, c = (*node.inputs, None)[:3]
    if c is None or op.beta == 0:
        return Product(fused, (a, b, None, None), node)
    if op.beta != 1:
        return None
    if same_type(c, node.output):
        return Product(fused, (a, b, None, c), node)
    bias = _vector(c, node.output)
    return None if bias is None else Product(fused, (a, b, bias, None), node)


# The operators that `_without_bias` returns, by the number of the Gemm.
_PRODUCT_OF: dict[tuple[Any, ...], FusedMatMul] = {}


def _without_bias(op: Gemm) -> FusedMatMul:
    """Return the product that a Gemm computes before it adds its third operand. Equal operators share it."""
    key = (number_of(op),)
    found = _PRODUCT_OF.get(key)
    if found is None:
        found = FusedMatMul.shared(transA=op.transA, transB=op.transB, alpha=op.alpha)
        remember(_PRODUCT_OF, key, found)
    return found


def _bias(product: Product[FusedMatMul], value: Value) -> Value | None:
    return _vector(value, product.node.output)


def _vector(value: Value, y: Value) -> Value | None:
    """Return `value` as a vector along y's last axis if it broadcasts to y in this way; else None."""
    rank = y.rank
    columns = None if y.shape is None else y.shape[-1]
    if rank is None:
        return None
    if value.rank == 1 and value.shape == (columns,):
        return value
    if isinstance(columns, int) and is_channel_vector(value, columns, rank - 1, rank):
        return F.reshape(value, ints(columns))
    return None


# --- before the product ---------------------------------------------------------------------------


def _operands(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Remove transposes and constant factors from the operands of a product."""
    made_by = [None if v is None or v.node is None else v.node.op.name for v in node.inputs[:2]]
    if FACTORS.isdisjoint(made_by):
        return None
    product = _form(node.output)
    if product is None:
        return None
    changes: dict[str, Any] = {}
    operands = list(product.operands)
    alpha = product.op.alpha
    for position, flag in ((0, "transA"), (1, "transB")):
        value, transposed = operands[position], getattr(product.op, flag)
        assert value is not None
        # Scaling the result saves a pass over the operand.
        while value.node is not None:
            source = _swapped_operand(value.node)
            factor = split_scale(value.node) if readers.has_one_use(value) and is_single(value) else None
            if source is not None:
                value, transposed = source, not transposed
            elif factor is not None and product.bias is None and product.residual is None:
                value, alpha = factor[0], alpha * factor[1]
            else:
                break
        operands[position] = value
        changes[flag] = transposed
    if operands == list(product.operands):
        return None
    return (fused_node(product.op.replace(alpha=alpha, **changes), operands, (node,)),)


def _swapped_operand(node: Node) -> Value | None:
    """Return the operand of a Transpose that exchanges the last two axes; None for another node."""
    perm = permutation(node) if is_op(node, "Transpose") else None
    rank = 0 if perm is None else len(perm)
    if perm is None or rank < 2 or perm != (*range(rank - 2), rank - 1, rank - 2):
        return None
    return first(node)


# --- after the product ----------------------------------------------------------------------------


def _transposed(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Replace the transpose of a product of matrices by the product of the transposed factors in reverse order."""
    x = _swapped_operand(node)
    product = _form(x) if x is not None and x.rank == 2 and readers.has_one_use(x) else None
    if product is None or not product.is_plain or product.bias is not None or product.residual is not None:
        return None
    op, (a, b) = product.op, product.operands[:2]
    return (fused_node(op.replace(transA=not op.transB, transB=not op.transA), (b, a), (product.node, node)),)


def _factor(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = split_scale(node)
    if found is None or found[0].node is None or not readers.has_one_use(found[0]):
        return None
    product = _form(found[0])
    if product is None or not product.is_plain or product.bias is not None:
        return None
    return (product.extended(node, alpha=product.op.alpha * found[1]),)


def _unflattened(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Replace Reshape(product(Flatten(x), b)) by product(x, b) if the Reshape keeps the columns.

    Operators after the Reshape, such as a residual sum, can then be fused into the product.
    """
    y, x = node.output, first(node)
    product = _form(x) if x.node is not None and readers.has_one_use(x) else None
    if product is None or product.residual is not None or product.op.transA or x.rank != 2:
        return None
    left, right = product.operands[:2]
    flattening = producer(left, "Reshape", "Flatten")
    if left is None or right is None or right.rank != 2 or flattening is None or not readers.has_one_use(left):
        return None
    if y.shape is None or len(y.shape) < 3 or y.shape[-1] != x.tensor.known_shape[-1]:
        return None
    rows = _rows(first(flattening), (*y.shape[:-1], left.tensor.known_shape[-1]), node)
    if rows is None:
        return None
    return (fused_node(product.op, (rows, *product.operands[1:]), (product.node, node)),)


def _rows(source: Value, shape: tuple[Dim, ...], node: Node) -> Value | None:
    """Return `source` in the given shape, whose leading dimensions are those of the target of `node`; None if
    impossible.
    """
    if source.shape == shape:
        return source
    target = node.inputs[1]
    known = None if target is None else target.tensor.value
    # A 0 in the target copies a dimension of another operand. -1 is computed from the number of elements.
    if target is None or known is None or 0 in known or isinstance(shape[-1], DimExpr):
        return None
    leading = F.slice(target, ints(0), ints(len(shape) - 1), ints(0))
    rows: Value = F.reshape(source, F.concat(leading, ints(shape[-1]), axis=0))
    return rows if rows.shape == shape else None
