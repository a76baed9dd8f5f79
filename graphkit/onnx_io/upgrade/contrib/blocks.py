"""Weights with few bits, quantised in blocks: MatMulNBits and GatherBlockQuantized.

A byte contains several weights, the first in the low bits. Constant weights become tensors of the standard's 4-bit and
2-bit types. Others are unpacked at run time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import InvalidModel, TypeMismatch, UnsupportedError
from graphkit.ir.graph import Value
from graphkit.ir.types import FLOATS, TINY_FLOATS, DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.ops import F, constant
from graphkit.passes.core.match import array_of

_UNSIGNED = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}


def _bits(node: NodeView, default: int = 4) -> int:
    bits = int(node.take("bits", default))
    if bits not in _UNSIGNED:
        raise UnsupportedError(f"{node.op_type} of {bits} bits is not supported: 2, 4 and 8 are")
    return bits


def unpacked(packed: Value, bits: int, last: Any) -> Value:
    """Unpack the bytes of the last axis, and keep the first `last` numbers.

    Constants become tensors of the type with `bits` bits, others uint8.
    """
    per_byte = 8 // bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    known = array_of(packed)
    if known is not None:
        numbers = (known[..., None] >> shifts) & np.uint8((1 << bits) - 1)
        whole = numbers.reshape(*known.shape[:-1], known.shape[-1] * per_byte)[..., :last]
        return constant(whole.astype(_UNSIGNED[bits].numpy))
    shifted = F.bit_shift(F.unsqueeze(packed, np.array([-1])), shifts, direction="RIGHT")
    low = F.bitwise_and(shifted, np.array((1 << bits) - 1, np.uint8))
    if packed.rank is None:
        raise UnsupportedError("packed weights of unknown rank are not supported")
    kept = F.shape(packed, start=0, end=packed.rank - 1)
    row: Value = F.reshape(low, F.concat(kept, np.array([-1]), axis=0))
    return row if last is None else F.slice(row, np.array([0]), np.array([last]), np.array([-1]))


def _in_blocks(weights: Value, scales: Value, zeros: Value | None, bits: int, axis: int, block: int) -> Value:
    """Dequantise weights to the type of the scales. Zero points: integers or floats, by default 2 ** (bits - 1)."""
    middle = 1 << (bits - 1)
    if zeros is not None and zeros.dtype not in FLOATS:
        return F.dequantize_linear(weights, scales, F.cast(zeros, to=weights.dtype), axis=axis, block_size=block)
    around = F.cast(scales, to=DType.FLOAT32)
    plain = F.dequantize_linear(weights, around, axis=axis, block_size=block)
    offset = F.mul(around, np.float32(middle) if zeros is None else F.cast(zeros, to=DType.FLOAT32))
    ones = F.expand(constant(np.array(1, np.uint8)), F.shape(weights))
    shift = F.dequantize_linear(ones, offset, axis=axis, block_size=block)
    return F.cast(F.sub(plain, shift), to=scales.dtype)


@contrib("MatMulNBits")
def _matmul(node: NodeView) -> Results:
    """a: [..., K], b: uint8 [N, blocks, bytes of a block], scales: [N * blocks] or [N, blocks] -> [..., N].

    Weights are multiplied as floats. accuracy_level, which permits less accuracy, has no effect.
    """
    bits, columns, depth = _bits(node), int(node.require("N")), int(node.require("K"))
    block = int(node.require("block_size"))
    node.take("accuracy_level")
    if node.take("weight_prepacked", 0):
        raise UnsupportedError("MatMulNBits with weights that are packed for one device is not supported")
    if block < 1 or columns < 0 or depth < 0:
        raise InvalidModel(f"{node.label}: N={columns}, K={depth}, block_size={block} are not valid sizes")
    operands: Any = (*node.inputs, *[None] * 6)[:6]
    a, b, scales, zeros, groups, bias = operands
    blocks = -(-depth // block)
    _check_bytes(b, columns * blocks * (block * bits // 8), node)
    weights = unpacked(F.reshape(b, np.array([columns, blocks * (block * bits // 8)])), bits, depth)
    shape = np.array([columns, blocks])
    scales = F.reshape(scales, shape)
    if zeros is not None and zeros.dtype in FLOATS:
        zeros = F.reshape(zeros, shape)
    elif zeros is not None:
        zeros = unpacked(F.reshape(zeros, np.array([columns, -(-blocks * bits // 8)])), bits, blocks)
    if zeros is None:
        zeros = constant(np.full((columns, blocks), 1 << (bits - 1), weights.dtype.numpy))
    if groups is not None:
        # Give each position along K the scale and zero point of its block.
        scales, zeros = F.gather(scales, groups, axis=1), F.gather(F.cast(zeros, to=DType.FLOAT32), groups, axis=1)
        block = 1
    w = _in_blocks(weights, scales, zeros, bits, 1, block)
    y = F.mat_mul(a, F.cast(F.transpose(w, perm=(1, 0)), to=a.dtype))
    return (y if bias is None else F.add(y, bias),)


def _check_bytes(b: Value | None, count: int, node: NodeView) -> None:
    known = None if b is None else array_of(b)
    if known is not None and known.size != count:
        raise InvalidModel(f"{node.label}: the weights have {known.size} bytes, but its sizes need {count}")


@contrib("GatherBlockQuantized")
def _gather(node: NodeView) -> Results:
    """Gather rows of a table of quantised weights, then dequantise them."""
    gather_axis, axis = int(node.take("gather_axis", 0)), int(node.take("quantize_axis", 1))
    block, bits = int(node.take("block_size", 128)), _bits(node)
    data, indices, scales = node.operand(0), node.operand(1), node.operand(2)
    zeros = node.input(3)
    if data.rank is None or indices.rank is None:
        raise UnsupportedError("GatherBlockQuantized of tensors of unknown rank is not supported")
    if data.dtype in TINY_FLOATS:
        raise UnsupportedError(f"GatherBlockQuantized of {data.dtype} is not supported")
    gather_axis, axis = gather_axis % data.rank, axis % data.rank
    if gather_axis == axis or block < 1:
        raise TypeMismatch("weights are gathered along another axis than that of their blocks")
    rows, parts = (F.gather(v, indices, axis=gather_axis) for v in (data, scales))
    chosen = None if zeros is None else F.gather(zeros, indices, axis=gather_axis)
    if data.dtype is DType.UINT8 and bits < 8:
        if axis != data.rank - 1:
            raise TypeMismatch("packed weights have their blocks along the last axis")
        rows = unpacked(rows, bits, None)
        if chosen is not None:
            count = scales.shape[axis] if scales.shape is not None else None
            chosen = unpacked(chosen, bits, count if isinstance(count, int) else None)
    if chosen is None and data.dtype is DType.UINT8:
        chosen = F.expand(constant(np.array(1 << (bits - 1), rows.dtype.numpy)), F.shape(parts))
    moved = axis + indices.rank - 1 if axis > gather_axis else axis
    return (F.dequantize_linear(rows, parts, chosen, axis=moved, block_size=block),)
