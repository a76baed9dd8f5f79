"""Scales, zero points and integers of quantised tensors, by the formulas of ONNX Runtime's tools."""

from __future__ import annotations

import numpy as np

from graphkit.named_tuples import NamedTuple


class Grid(NamedTuple):
    """The integers that numbers are rounded to: type, smallest and largest one, and whether zero is in the middle."""

    dtype: np.dtype
    least: int
    most: int
    symmetric: bool


UINT8 = Grid(np.dtype(np.uint8), 0, 255, False)
INT8 = Grid(np.dtype(np.int8), -127, 127, True)
GRIDS = {"uint8": UINT8, "int8": INT8}

# Integers of a bias stay below this number, so that rounding cannot leave int32.
_LARGEST_BIAS = 2.0**31 - 2.0**8


class Range(NamedTuple):
    """The smallest and the largest number of a tensor that need not be clipped."""

    low: float
    high: float


class Parameters(NamedTuple):
    """A scale and a zero point: an integer q represents (q - zero) * scale."""

    scale: np.ndarray
    zero: np.ndarray


def parameters(found: Range, grid: Grid, dtype: np.dtype) -> Parameters:
    """Return scale and zero point of a tensor. The range is extended to contain 0, which becomes an exact integer.

    dtype: type of the scale, and of the tensor. If the range is too small for a scale, the scale is 1.
    """
    low, high = min(float(found.low), 0.0), max(float(found.high), 0.0)
    if grid.symmetric:
        high = max(-low, high)
        low = -high
    scale = (high - low) / (grid.most - grid.least)
    if not np.isfinite(dtype.type(scale)):
        scale = float(np.finfo(dtype).max)
    if scale < _smallest_scale(dtype):
        return Parameters(np.array(1, dtype), np.array(0, grid.dtype))
    middle = (grid.least + grid.most) / 2
    zero = np.rint(middle if grid.symmetric else grid.least - low / scale)
    return Parameters(np.array(scale, dtype), np.array(zero, grid.dtype))


def weight_scales(weight: np.ndarray, axis: int | None, grid: Grid = INT8) -> np.ndarray:
    """Return the scale of a symmetric weight: a scalar, or one for each channel of `axis`. Zeros have scale 1."""
    others = None if axis is None else tuple(i for i in range(weight.ndim) if i != axis)
    largest = np.max(np.abs(weight.astype(np.float64)), axis=others, initial=0.0)
    scale = largest * 2 / (grid.most - grid.least)
    return np.where(scale < _smallest_scale(weight.dtype), 1.0, scale).astype(weight.dtype)


def _smallest_scale(dtype: np.dtype) -> float:
    """Return the smallest scale that is used. Numbers of a float16 tensor are divided in float32."""
    limits = np.finfo(dtype)
    return float(limits.smallest_subnormal if dtype == np.float16 else limits.tiny)


def fitting_bias(scale: np.ndarray, bias: np.ndarray, factor: float) -> np.ndarray:
    """Return weight scales with which the integers of a bias fit into int32. Scales that are too small are raised.

    factor: scale of the bias divided by that of the weight.
    """
    needed = np.abs(bias.astype(np.float64)) / (_LARGEST_BIAS * abs(factor))
    least = needed.max(initial=0.0) if scale.ndim == 0 else needed
    return np.maximum(scale.astype(np.float64), least).astype(scale.dtype)


def integers(array: np.ndarray, scale: np.ndarray, grid: Grid, axis: int | None = None) -> np.ndarray:
    """Return the integers of a tensor whose zero point is 0: rounded to the nearest, ties to even, and clipped."""
    wide = np.float32 if array.dtype == np.float16 else array.dtype
    if axis is not None and scale.ndim:
        scale = scale.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    rounded = np.rint(array.astype(wide) / scale.astype(wide))
    found: np.ndarray = np.clip(rounded, grid.least, grid.most).astype(grid.dtype)
    return found


def bias_integers(bias: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the int32 numbers of a bias."""
    rounded = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    bounds = np.iinfo(np.int32)
    return np.clip(rounded, bounds.min, bounds.max).astype(np.int32)


class Blocks(NamedTuple):
    """A weight matrix [columns, terms] in blocks of terms: unsigned integers [columns, blocks, terms of a block], and
    scales and zero points [columns, blocks].
    """

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray


def in_blocks(matrix: np.ndarray, bits: int, size: int) -> Blocks:
    """Quantise a matrix [columns, terms] in blocks of `size` terms. The last block is filled with zeros."""
    columns, terms = matrix.shape
    count = -(-terms // size)
    padded = np.zeros((columns, count * size))
    padded[:, :terms] = matrix
    blocks = padded.reshape(columns, count, size)
    most = (1 << bits) - 1
    low, high = np.minimum(blocks.min(-1), 0), np.maximum(blocks.max(-1), 0)
    scales = (high - low) / most
    scales = np.where(scales < _smallest_scale(matrix.dtype), 1.0, scales).astype(matrix.dtype)
    wide = scales.astype(np.float64)
    zeros = np.clip(np.rint(-low / wide), 0, most)
    numbers = np.clip(np.rint(blocks / wide[..., None]) + zeros[..., None], 0, most)
    return Blocks(numbers.astype(np.uint8), scales, zeros.astype(np.uint8))


def packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return the bytes of unsigned integers of 4 or 8 bits, along the last axis. The first one has the low bits."""
    if bits == 8:
        return numbers
    if numbers.shape[-1] % 2:
        numbers = np.concatenate([numbers, np.zeros_like(numbers[..., :1])], -1)
    pairs: np.ndarray = (numbers[..., ::2] | (numbers[..., 1::2] << 4)).astype(np.uint8)
    return pairs
