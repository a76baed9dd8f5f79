"""MurmurHash3: hashes of 32 bits of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir.types import DType
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.ops import F, constant

# Appleby's MurmurHash3_x86_32: https://github.com/aappleby/smhasher/blob/master/src/MurmurHash3.cpp
_C1, _C2 = 0xCC9E2D51, 0x1B873593
_ADDED = 0xE6546B64
_MIXED = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, None))


def _u32(value: int) -> Any:
    return constant(np.asarray(value, np.uint32))


def _rotated(x: Any, bits: int) -> Any:
    left = F.bit_shift(x, _u32(bits), direction="LEFT")
    return F.bitwise_or(left, F.bit_shift(x, _u32(32 - bits), direction="RIGHT"))


def _words(x: Any) -> list[Any]:
    """The elements as uint32 words, the least significant first."""
    if x.dtype.numpy.itemsize == 4:
        return [x if x.dtype is DType.UINT32 else F.bit_cast(x, to=DType.UINT32)]
    whole = x if x.dtype is DType.UINT64 else F.bit_cast(x, to=DType.UINT64)
    high = F.bit_shift(whole, constant(np.asarray(32, np.uint64)), direction="RIGHT")
    low = F.bitwise_and(whole, constant(np.asarray(0xFFFFFFFF, np.uint64)))
    return [F.cast(word, to=DType.UINT32) for word in (low, high)]


@contrib("MurmurHash3")
def _murmur_hash(node: NodeView) -> Results:
    x, seed, positive = node.operand(0), int(node.take("seed", 0)), bool(node.take("positive", 1))
    if x.dtype is DType.STRING:
        raise UnsupportedError(f"{node.label}: hashes of strings are not supported")
    words = _words(x)
    found = F.expand(_u32(seed & 0xFFFFFFFF), F.shape(x))
    for word in words:
        mixed = F.mul(_rotated(F.mul(word, _u32(_C1)), 15), _u32(_C2))
        found = F.add(F.mul(_rotated(F.bitwise_xor(found, mixed), 13), _u32(5)), _u32(_ADDED))
    found = F.bitwise_xor(found, _u32(4 * len(words)))
    for shift, factor in _MIXED:
        found = F.bitwise_xor(found, F.bit_shift(found, _u32(shift), direction="RIGHT"))
        found = found if factor is None else F.mul(found, _u32(factor))
    return (found if positive else F.bit_cast(found, to=DType.INT32),)
