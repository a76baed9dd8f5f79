"""Keep quantised weights packed in matrix products. The kernel unpacks them during the multiplication."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.ir.graph import Graph, Node, Value
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.ops import F, operator
from graphkit.ops.internal.weight_only import WeightOnlyMatMul
from graphkit.ops.quant.linear import DequantizeLinear
from graphkit.passes.core.declare import Property, graph_pass
from graphkit.passes.core.match import FixedValues, array_of, is_op, permutation, producer
from graphkit.passes.core.sweep import fuse, fused_node
from graphkit.passes.quantise.match import is_single_element

_BITS = {DType.INT4: 4, DType.UINT4: 4, DType.INT8: 8, DType.UINT8: 8}
# Kernels read weights in words of this many bits, so a block must fill whole words.
_WORD_BITS = 32


@graph_pass(
    requires=[Property.QUANTISED_INTEGER, Property.POINTWISE_APART],
    breaks=[Property.SIMPLIFIED],
    at=["DequantizeLinear"],
)
def weight_products(graph: Graph) -> Graph:
    """Fuse a MatMul and the dequantisation of its 4-bit or 8-bit weight matrix into WeightOnlyMatMul. Takes linear
    time.

    The matrix must be a parameter or a constant. It may have a scale for each block of terms, for each column, or a
    single scale.
    """
    fixed = FixedValues(graph)
    return fuse(graph, lambda node, _: _rule(node, fixed), needs=("DequantizeLinear",), at=("MatMul",))


class _Weights(NamedTuple):
    """Weights [columns, terms], with scales and zero points [columns, blocks] for blocks of `block` terms."""

    w: Value
    scale: Value
    zero: Value | None
    block: int


def _rule(node: Node, fixed: FixedValues) -> Sequence[Value] | None:
    if not is_op(node, "MatMul"):
        return None
    a, b = node.operands
    turned = producer(b, "Transpose")
    if turned is not None and permutation(turned) != (1, 0):
        return None
    dequantised = b if turned is None else turned.operands[0]
    inner = producer(dequantised, "DequantizeLinear")
    if inner is None or a.dtype is not DType.FLOAT32 or inner.output.dtype is not DType.FLOAT32:
        return None
    found = _weights(inner, fixed, columns=1 if turned is None else 0)
    if found is None:
        return None
    op = WeightOnlyMatMul(block_size=found.block, bits=_bits_of(inner.operands[0]))
    operands = (a, found.w, found.scale, found.zero)
    return (fused_node(op, operands if found.zero is not None else operands[:3], (inner, node)),)


def _weights(node: Node, fixed: FixedValues, columns: int) -> _Weights | None:
    """Return the weights that a DequantizeLinear unpacks; None if there is no kernel for them.

    columns: The axis of the columns.
    """
    op = operator(node, DequantizeLinear)
    w, scale = node.operands[:2]
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if w.dtype not in _BITS or scale.dtype is not DType.FLOAT32 or w.rank != 2:
        return None
    if w not in fixed or not w.tensor.is_static:
        return None
    shape = w.tensor.static_shape
    terms, count = shape[1 - columns], shape[columns]
    if terms == 0 or count == 0:
        return None
    axis = op.axis % 2 if -2 <= op.axis < 2 else None
    kind = DType.INT8 if w.dtype in (DType.INT4, DType.INT8) else DType.UINT8
    if op.block_size:
        if axis == columns or (op.block_size * _bits_of(w) % _WORD_BITS and op.block_size < terms):
            return None
        block = min(op.block_size, terms)
        placed = [None if v is None else _columns_first(v, columns) for v in (scale, zero)]
    elif is_single_element(scale):
        block, sizes = terms, np.array([count, 1])
        placed = [None if v is None else F.expand(F.reshape(v, np.array([1, 1])), sizes) for v in (scale, zero)]
    elif scale.rank == 1 and axis == columns:
        block = terms
        placed = [None if v is None else F.reshape(v, np.array([count, 1])) for v in (scale, zero)]
    else:
        return None
    of_scale, of_zero = placed
    assert of_scale is not None
    return _Weights(
        _as(kind, _columns_first(w, columns)), of_scale, None if of_zero is None else _as(kind, of_zero), block
    )


def _bits_of(w: Value) -> int:
    """Return the number of bits of the weights: those of their type, or 4 if a BitwiseAnd clears the upper half of the
    bytes.
    """
    value = w
    while (node := value.node) is not None and is_op(node, "Reshape", "Slice", "Transpose"):
        value = node.operands[0]
    masked = producer(value, "BitwiseAnd")
    if masked is not None and w.dtype is DType.UINT8:
        masks = [array_of(v) for v in masked.operands]
        if any(m is not None and m.size and int(m.max()) < 16 for m in masks):
            return 4
    return _BITS[w.dtype]


def _columns_first(value: Value, columns: int) -> Value:
    return value if columns == 0 else F.transpose(value, perm=(1, 0))


def _as(kind: DType, value: Value) -> Value:
    return value if value.dtype is kind else F.cast(value, to=kind)
