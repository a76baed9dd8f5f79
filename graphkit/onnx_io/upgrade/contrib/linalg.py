"""Inverse, distances between rows, and Fourier transforms of real signals. Complex numbers are pairs of floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.onnx_io.upgrade import NodeView, Results
from graphkit.onnx_io.upgrade.contrib import contrib
from graphkit.onnx_io.upgrade.contrib.scores import int64
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.ops.operands import converted, wide_type
from graphkit.ops.pointwise import scalar_like


@contrib("Inverse")
def _inverse(node: NodeView) -> Results:
    x = node.operand(0)
    return (converted(F.inverse(converted(x, wide_type(x.dtype))), x.dtype),)


@contrib("CDist")
def _distances(node: NodeView) -> Results:
    """The distance of each row of A from each row of B, squared or not."""
    a, b, metric = node.operand(0), node.operand(1), node.take("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedError(f"{node.label}: metric {metric!r} is not supported")
    squares = [F.reduce_sum_square(x, i64(1)) for x in (a, b)]
    products = F.mat_mul(a, F.transpose(b, perm=(1, 0)))
    both = F.add(squares[0], F.transpose(squares[1], perm=(1, 0)))
    found = F.max(F.sub(both, F.add(products, products)), scalar_like(0.0, a))
    return (F.sqrt(found) if metric == "euclidean" else found,)


def _check_transform(node: NodeView) -> None:
    for name, only, default in (("onesided", 1, 1), ("normalized", 0, 0), ("signal_ndim", 1, 1)):
        if node.take(name, default) != only:
            raise UnsupportedError(f"{node.label}: {name} other than {only} is not supported")


@contrib("Rfft")
def _rfft(node: NodeView) -> Results:
    """The first half of the transform along the last axis: [..., n // 2 + 1, 2]."""
    _check_transform(node)
    x = F.unsqueeze(node.operand(0), i64(-1))
    return (F.dft(x, None, int64(-2), onesided=True),)


@contrib("Irfft")
def _irfft(node: NodeView) -> Results:
    """Inverse of `_rfft`, for signals of even length. The missing elements are conjugates."""
    _check_transform(node)
    x = node.operand(0)
    # All elements except the first and the last, in reverse order.
    mirror = F.slice(x, i64(-2), i64(0), i64(-2), i64(-1))
    conjugate = F.mul(mirror, constant(np.array([1, -1], x.dtype.numpy)))
    signal = F.dft(F.concat(x, conjugate, axis=-2), None, int64(-2), inverse=True)
    return (F.gather(signal, int64(0), axis=-1),)


def _product(a: Any, b: Any, sign: float) -> Any:
    """Products of complex numbers, with real and imaginary parts along the last axis. With sign -1, b is conjugated."""
    real_a, imaginary_a, real_b, imaginary_b = (F.slice(x, i64(i), i64(i + 1), i64(-1)) for x in (a, b) for i in (0, 1))
    imaginary_b = F.mul(imaginary_b, scalar_like(sign, b)) if sign != 1 else imaginary_b
    real = F.sub(F.mul(real_a, real_b), F.mul(imaginary_a, imaginary_b))
    imaginary = F.add(F.mul(real_a, imaginary_b), F.mul(imaginary_a, real_b))
    return F.concat(real, imaginary, axis=-1)


@contrib("ComplexMul")
def _complex_mul(node: NodeView) -> Results:
    return (_product(node.operand(0), node.operand(1), 1.0),)


@contrib("ComplexMulConj")
def _complex_mul_conj(node: NodeView) -> Results:
    return (_product(node.operand(0), node.operand(1), -1.0),)
