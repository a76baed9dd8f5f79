"""Matrix products."""

from __future__ import annotations

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.mxnet_io.call import Call, as_indices, converter, rank_of, scalar, sizes_of, transpose
from graphkit.ops import F
from graphkit.ops.axes import i64


def _swapped(x: Value) -> Value:
    """Swap the last two axes."""
    rank = rank_of(x)
    return transpose(x, *range(rank - 2), rank - 1, rank - 2)


@converter("dot")
def dot(call: Call) -> Value:
    """Sum over the last axis of a and the first of b; over the first of a or the last of b if it is transposed."""
    attributes = call.attributes
    attributes.ignore("forward_stype")
    a, b = call[0], call[1]
    if attributes.flag("transpose_a", False):
        a = transpose(a, *range(1, rank_of(a)), 0)
    if attributes.flag("transpose_b", False):
        b = transpose(b, rank_of(b) - 1, *range(rank_of(b) - 1))
    if rank_of(a) == 1 and rank_of(b) == 1:
        result: Value = F.reduce_sum(F.mul(a, b), i64(0), keepdims=True)
    elif rank_of(b) <= 2:
        result = F.mat_mul(a, b, name=call.name)
    else:
        result = _contracted(call, a, b)
    return result


def _contracted(call: Call, a: Value, b: Value) -> Value:
    """Sum over the last axis of a and the first of b."""
    letters = "abcdefghijklmnopqrstuvwxy"
    left, right = letters[: rank_of(a) - 1], letters[rank_of(a) : rank_of(a) + rank_of(b) - 1]
    result: Value = F.einsum(a, b, equation=f"{left}z,z{right}->{left}{right}", name=call.name)
    return result


@converter("batch_dot", "linalg_gemm2", "_linalg_gemm2", "_npx_batch_dot")
def batch_dot(call: Call) -> Value:
    attributes = call.attributes
    attributes.ignore("forward_stype")
    if attributes.integer("axis", -2) != -2:
        raise UnsupportedError("axis: matrices whose rows are not the last axis but one")
    a = _swapped(call[0]) if attributes.flag("transpose_a", False) else call[0]
    b = _swapped(call[1]) if attributes.flag("transpose_b", False) else call[1]
    product: Value = F.mat_mul(a, b, name=call.name)
    alpha = attributes.number("alpha", 1.0)
    return product if alpha == 1.0 else F.mul(product, scalar(alpha, product))


@converter("linalg_gemm", "_linalg_gemm")
def linalg_gemm(call: Call) -> Value:
    """alpha op(a) op(b) + beta c."""
    attributes = call.attributes
    beta = attributes.number("beta", 1.0)
    product = batch_dot(call)
    c = call[2]
    result: Value = F.add(product, c if beta == 1.0 else F.mul(c, scalar(beta, c)))
    return result


@converter("_npi_matmul")
def matmul(call: Call) -> Value:
    result: Value = F.mat_mul(call[0], call[1], name=call.name)
    return result


@converter("_np_dot", "_npi_dot")
def numpy_dot(call: Call) -> Value:
    """Sum over the last axis of a and the last but one of b; of a scalar and a tensor, the product."""
    a, b = call[0], call[1]
    if not a.rank or not b.rank:
        result: Value = F.mul(a, b, name=call.name)
    elif rank_of(b) <= 2:
        result = F.mat_mul(a, b, name=call.name)
    else:
        rank = rank_of(b)
        result = _contracted(call, a, transpose(b, rank - 2, *range(rank - 2), rank - 1))
    return result


@converter("khatri_rao")
def khatri_rao(call: Call) -> Value:
    """Column-wise Kronecker products of matrices with equally many columns."""
    product, *others = call.operands()
    for matrix in others:
        outer = F.mul(F.unsqueeze(product, i64(1)), F.unsqueeze(matrix, i64(0)))
        product = F.reshape(outer, F.concat(i64(-1), F.shape(matrix, start=1), axis=0))
    return product


@converter("_contrib_count_sketch")
def count_sketch(call: Call) -> Value:
    """Add element j of each row, times s[j], to element h[j] of the result. Operands: data, h [1, n], s [1, n]."""
    attributes = call.attributes
    size = attributes.integer("out_dim", 1)
    attributes.ignore("processing_batch_size")
    x = call[0]
    signed = F.mul(x, F.reshape(call[2], i64(-1)))
    places = F.expand(as_indices(F.reshape(call[1], i64(-1))), F.shape(x))
    shape = F.concat(*(sizes_of(x, axis) for axis in range(rank_of(x) - 1)), i64(size), axis=0)
    zeros = F.constant_of_shape(shape, value=np.zeros(1, x.dtype.numpy))
    result: Value = F.scatter_elements(zeros, places, signed, axis=rank_of(x) - 1, reduction="add", name=call.name)
    return result
