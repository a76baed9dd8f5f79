"""Matrix products with the transposes and factors before them, and with what follows: bias, activation, residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.ops import DOMAIN, F
from graphkit.ops.fused import FusedMatMul
from graphkit.passes._base import Readers, fuse, fused_node
from graphkit.passes._epilogue import Product, absorb, is_single
from graphkit.passes._match import first, ints, is_op, permutation, producer, same_type, scaled, vector_of


def fuse_matmul(graph: Graph) -> Graph:
    """Make FusedMatMul of a MatMul or Gemm and its neighbours.

    Before it: transposes of the last two axes, constant factors. Behind it, as its only readers: a constant factor, the
    sum with a vector, an activation (see FusedMatMul), the sum with a tensor of the result's shape. A product of rows
    that were flattened before and are unflattened behind takes them as they were. Linear.
    """
    return fuse(graph, _rule)


def _rule(node: Node, readers: Readers) -> Sequence[Value] | None:
    if is_op(node, "MatMul", "Gemm"):
        return _operands(node, readers)
    if is_op(node, "Reshape"):
        return _unflattened(node, readers)
    if is_op(node, "Mul", "Div"):
        found = _factor(node, readers)
        if found is not None:
            return found
    return absorb(node, readers, _form, _bias)


def _form(value: Value) -> Product | None:
    node = producer(value, "FusedMatMul", domain=DOMAIN)
    if node is not None:
        return Product(node.op, (*node.inputs, None, None)[:4], node)
    if not is_single(value):
        return None
    node = producer(value, "MatMul")
    if node is not None:
        matrices = all(v.rank not in (None, 1) for v in node.operands)
        return Product(FusedMatMul(), (*node.inputs, None, None), node) if matrices else None
    node = producer(value, "Gemm")
    return None if node is None else _gemm_form(node)


def _gemm_form(node: Node) -> Product | None:
    """A Gemm whose third operand is a bias, a residual or nothing."""
    op: Any = node.op
    fused = FusedMatMul(transA=op.transA, transB=op.transB, alpha=op.alpha)
    a, b, c = (*node.inputs, None)[:3]
    if c is None or op.beta == 0:
        return Product(fused, (a, b, None, None), node)
    if op.beta != 1:
        return None
    if same_type(c, node.output):
        return Product(fused, (a, b, None, c), node)
    bias = _vector(c, node.output)
    return None if bias is None else Product(fused, (a, b, bias, None), node)


def _bias(product: Product, value: Value) -> Value | None:
    return _vector(value, product.node.output)


def _vector(value: Value, y: Value) -> Value | None:
    """`value` as a vector of y's last axis, when it broadcasts to y as one."""
    rank = y.rank
    columns = None if y.shape is None else y.shape[-1]
    if rank is None:
        return None
    if value.rank == 1 and value.shape == (columns,):
        return value
    if isinstance(columns, int) and vector_of(value, columns, rank - 1, rank):
        return F.reshape(value, ints(columns))
    return None


# --- before the product ---------------------------------------------------------------------------


def _operands(node: Node, readers: Readers) -> Sequence[Value] | None:
    """A product of transposed or scaled operands takes them as they were before."""
    product = _form(node.output)
    if product is None:
        return None
    changes: dict[str, Any] = {}
    operands = list(product.operands)
    alpha = product.op.alpha
    for position, flag in ((0, "transA"), (1, "transB")):
        value, transposed = operands[position], getattr(product.op, flag)
        assert value is not None
        # Scaling the result instead saves a pass over the operand; that of a weight is not done at every run.
        while value.node is not None:
            source = _exchanged(value.node)
            factor = scaled(value.node) if readers.sole(value) and is_single(value) else None
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


def _exchanged(node: Node) -> Value | None:
    """The operand of a Transpose that exchanges the last two axes."""
    perm = permutation(node) if is_op(node, "Transpose") else None
    rank = 0 if perm is None else len(perm)
    if perm is None or rank < 2 or perm != (*range(rank - 2), rank - 1, rank - 2):
        return None
    return first(node)


# --- behind it ------------------------------------------------------------------------------------


def _factor(node: Node, readers: Readers) -> Sequence[Value] | None:
    found = scaled(node)
    if found is None or found[0].node is None or not readers.sole(found[0]):
        return None
    product = _form(found[0])
    if product is None or not product.open or product.bias is not None:
        return None
    return (product.node_with(node, alpha=product.op.alpha * found[1]),)


def _unflattened(node: Node, readers: Readers) -> Sequence[Value] | None:
    """Reshape(product(Reshape(x), b)) that only flattens and unflattens rows is a product of x."""
    y, x = node.output, first(node)
    product = _form(x) if x.node is not None and readers.sole(x) else None
    if product is None or product.residual is not None or product.op.transA or x.rank != 2:
        return None
    flattening = producer(product.operands[0], "Reshape", "Flatten")
    if flattening is None or not readers.sole(flattening.output):
        return None
    rows, right = first(flattening), product.operands[1]
    assert right is not None
    if rows.shape is None or y.shape is None or len(rows.shape) < 3 or rows.tensor.dtype is not DType.FLOAT32:
        return None
    flat = flattening.output.tensor.known_shape
    columns = x.tensor.known_shape[-1]
    if right.rank != 2 or rows.shape[-1] != flat[-1] or y.shape != (*rows.shape[:-1], columns):
        return None
    return (fused_node(product.op, (rows, *product.operands[1:]), (product.node, node)),)
