"""Helpers of normalisations: statistics, shapes of channel vectors, and the gradient that all share.

With h = (x - mean) * r, r = 1 / sqrt(var + epsilon), statistics over some axes, and g the gradient by h: dx = r * (g -
mean(g) - h * mean(g * h)), means over the same axes. (Ioffe and Szegedy 2015.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UnsupportedError
from graphkit.ir.dims import Dim, DimExpr
from graphkit.ir.graph import Node
from graphkit.ir.types import TensorType
from graphkit.ops._base import F
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like


def channel_shape(rank: int) -> tuple[int, ...]:
    """Return the shape in which a vector of channels broadcasts to [N, C, *spatial]. A tensor [N] has one channel."""
    return (-1, *(1,) * (rank - 2))


def channel_axes(rank: int) -> tuple[int, ...]:
    return tuple(i for i in range(rank) if i != 1)


def check_vector(vector: TensorType | None, channels: Dim, what: str) -> None:
    if vector is not None and not fits(vector.shape, (channels,)):
        raise TypeMismatch(f"{what} {vector} does not fit {channels} channels")


def known_rank(node: Node, x: Any) -> int:
    rank: int | None = x.rank
    if rank is None:
        raise UnsupportedError(f"{node.describe()}: the gradient needs an operand of known rank")
    return rank


def columns(vector: Any, rank: int) -> Any:
    """Reshape a vector of channels, so that it broadcasts against [N, C, *spatial]."""
    return F.unsqueeze(vector, np.arange(1, rank - 1)) if rank > 2 else vector


def mean_over(x: Any, axes: Sequence[int]) -> Any:
    return F.reduce_mean(x, np.asarray(axes, np.int64), keepdims=True)


def sum_over(x: Any, axes: Sequence[int]) -> Any:
    return F.reduce_sum(x, np.asarray(axes, np.int64), keepdims=False)


def per_channel(x: Any) -> Any:
    """Sum [N, C, *spatial] per channel, to [C]; sum [N], which is one channel, to [1]."""
    return F.reduce_sum(x, np.asarray(channel_axes(x.rank), np.int64), keepdims=x.rank == 1)


def count_along(x: Any, axes: Sequence[int]) -> Any:
    """Return the number of elements along `axes`, as a scalar of x's dtype."""
    sizes = [x.shape[i] for i in axes]
    if not any(isinstance(n, DimExpr) for n in sizes):
        return scalar_like(float(math.prod(sizes)), x)
    product = F.reduce_prod(F.gather(F.shape(x), np.asarray(axes, np.int64)), keepdims=False)
    return F.cast(product, to=x.dtype)


def standardised(x: Any, axes: Sequence[int], epsilon: float) -> tuple[Any, Any]:
    """Build ((x - mean) * r, r), where r = 1 / sqrt(var + epsilon), with the biased variance over `axes`."""
    centred = F.sub(x, mean_over(x, axes))
    r = F.reciprocal(F.sqrt(F.add(mean_over(F.mul(centred, centred), axes), scalar_like(epsilon, x))))
    return F.mul(centred, r), r


def input_gradient(g: Any, h: Any, r: Any, axes: Sequence[int]) -> Any:
    """Build dx from g, h and r (see the formula of this module)."""
    return F.mul(r, F.sub(F.sub(g, mean_over(g, axes)), F.mul(h, mean_over(F.mul(g, h), axes))))


def input_gradient_array(xp: Any, g: Any, h: Any, r: Any, axes: tuple[int, ...]) -> Any:
    return r * (g - xp.mean(g, axis=axes, keepdims=True) - h * xp.mean(g * h, axis=axes, keepdims=True))


def statistics(xp: Any, x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
    """Return (mean, biased variance) over `axes`, which stay with size 1."""
    mean = xp.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    return mean, xp.mean(centred * centred, axis=axes, keepdims=True)
