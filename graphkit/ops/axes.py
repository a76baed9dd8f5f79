"""Shared by operators that move data: axes, shapes of gradients, contiguous copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.graph import Value
from graphkit.ir.types import DType, TensorType
from graphkit.ops._base import F

INT64 = frozenset({DType.INT64})


def blank(xp: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Return an array filled with the standard's "zero" for a dtype: 0, False, or the empty string.

    Only for tensors: arrays of known elements have dtype object, too, but do not contain strings.
    """
    return np.full(shape, "", object) if dtype.kind == "O" else xp.zeros(shape, dtype=dtype)


def shape_text(shape: Sequence[Dim] | None) -> str:
    return "[...]" if shape is None else "[" + ", ".join(map(str, shape)) + "]"


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """Return the axis counted from the front. Raises TypeMismatch if it is outside [-rank, rank - 1]."""
    if not -rank <= axis < rank:
        raise TypeMismatch(f"{what} {axis} is outside [{-rank}, {rank - 1}]")
    return axis % rank


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return the axes counted from the front, in order. Raises TypeMismatch if one is repeated or out of range."""
    result = tuple(normal_axis(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise TypeMismatch(f"axes {list(result)} repeat")
    return result


# Most unknown dimensions, or sizes of parts, at once: a file may declare a vector of any length, and use it as a shape.
_MOST_UNKNOWN = 1 << 20


def length_of(vector: TensorType | None) -> int | None:
    """The static length of a 1-D operand; None when it is unknown. Raises TypeMismatch for another rank."""
    if vector is None or vector.shape is None:
        return None
    if len(vector.shape) != 1:
        raise TypeMismatch(f"{vector} must have one dimension")
    return vector.shape[0] if dims.is_static(vector.shape[0]) else None


def fresh_shape(rank: int | None) -> tuple[Dim, ...] | None:
    """Return `rank` new unknown sizes, of dimensions or parts; None for None. Raises TypeMismatch for too many."""
    if rank is not None and rank > _MOST_UNKNOWN:
        raise TypeMismatch(f"{rank} dimensions")
    return None if rank is None else tuple(dims.fresh() for _ in range(rank))


def merged(a: Dim, b: Dim) -> Dim | None:
    """Return the more precise of two dimensions that must be equal; None if they cannot be equal."""
    if not dims.may_equal(a, b):
        return None
    return b if dims.is_static(b) else a


def contiguous(xp: Any, view: Any) -> Any:
    """Return a new row-major array with the elements of a view."""
    return xp.array(view, order="C")


def i64(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def reshape_like(x: Any, like: Value) -> Any:
    """Reshape to the shape of `like`, whose dimensions may be 0."""
    shape = like.tensor.shape
    empty = shape is None or any(d == 0 or not dims.is_static(d) for d in shape)
    return F.reshape(x, F.shape(like), allowzero=empty)


def ranked(x: Value, rank: int | None) -> Value:
    """Return x. If its rank is unknown, reshape it to its own sizes, so that its type has the known rank `rank`."""
    if x.rank is not None or rank is None:
        return x
    view: Value = F.reshape(x, F.gather(F.shape(x), np.arange(rank)))
    return view


def zeros_like(like: Value) -> Any:
    """Return a tensor, sequence or optional of the same structure with all numbers 0."""
    if not isinstance(like.type, TensorType):
        return F.zeros_like(like)
    return F.constant_of_shape(F.shape(like), value=np.zeros(1, like.dtype.numpy))


def flat_positions(x: Value) -> Any:
    """Return an int64 tensor of x's shape that contains each element's row-major position.

    An operator that only moves elements can be applied to the positions, too. Its gradient is then one scatter: see
    `scatter_flat`.
    """
    return reshape_like(F.range(np.int64(0), F.size(x), np.int64(1)), x)


def scatter_flat(dy: Any, positions: Any, like: Value, *, unique: bool = False) -> Any:
    """Return zeros of `like`'s shape with each element of dy added at its row-major position.

    unique: no position occurs twice. Then no reduction is needed, and older opsets have the operator.
    """
    flat = i64(-1)
    zeros = F.constant_of_shape(F.reshape(F.size(like), i64(1)), value=np.zeros(1, dy.dtype.numpy))
    reduction = "none" if unique else "add"
    total = F.scatter_elements(zeros, F.reshape(positions, flat), F.reshape(dy, flat), reduction=reduction)
    return reshape_like(total, like)
