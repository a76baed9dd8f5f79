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
    """The element with which operators fill where the standard says zero: 0, False, or the empty string.

    For references on tensors; arrays of known elements have dtype object, but are not strings.
    """
    return np.full(shape, "", object) if dtype.kind == "O" else xp.zeros(shape, dtype=dtype)


def shape_text(shape: Sequence[Dim] | None) -> str:
    return "[...]" if shape is None else "[" + ", ".join(map(str, shape)) + "]"


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """The axis counted from the front; raises TypeMismatch outside [-rank, rank - 1]."""
    if not -rank <= axis < rank:
        raise TypeMismatch(f"{what} {axis} is outside [{-rank}, {rank - 1}]")
    return axis % rank


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in the order given; raises TypeMismatch for a repeated one."""
    result = tuple(normal_axis(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise TypeMismatch(f"axes {list(result)} repeat")
    return result


# A vector of any declared length may be a shape.
_MOST_UNKNOWN = 1 << 20


def length_of(vector: TensorType | None) -> int | None:
    """The static length of a 1-D operand; None when it is unknown. Raises TypeMismatch for another rank."""
    if vector is None or vector.shape is None:
        return None
    if len(vector.shape) != 1:
        raise TypeMismatch(f"{vector} must have one dimension")
    return vector.shape[0] if dims.is_static(vector.shape[0]) else None


def fresh_shape(rank: int | None) -> tuple[Dim, ...] | None:
    """Unknown dimensions of a known rank, or of so many parts. Raises TypeMismatch for more than anything has."""
    if rank is not None and rank > _MOST_UNKNOWN:
        raise TypeMismatch(f"{rank} dimensions")
    return None if rank is None else tuple(dims.fresh() for _ in range(rank))


def merged(a: Dim, b: Dim) -> Dim | None:
    """The more precise of two dimensions that must be equal; None when they cannot be."""
    if not dims.may_equal(a, b):
        return None
    return b if dims.is_static(b) else a


def contiguous(xp: Any, view: Any) -> Any:
    """A fresh row-major array with the elements of a view."""
    return xp.array(view, order="C")


def i64(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def reshape_like(x: Any, like: Value) -> Any:
    """Reshape to the shape of `like`, in which a dimension may be zero."""
    shape = like.tensor.shape
    empty = shape is None or any(d == 0 or not dims.is_static(d) for d in shape)
    return F.reshape(x, F.shape(like), allowzero=empty)


def ranked(x: Value, rank: int | None) -> Value:
    """x; where its own rank is unknown, reshaped to its own sizes along the `rank` axes that it must have."""
    if x.rank is not None or rank is None:
        return x
    view: Value = F.reshape(x, F.gather(F.shape(x), np.arange(rank)))
    return view


def zeros_like(like: Value) -> Any:
    """A tensor, sequence or optional of the same structure, in which all numbers are zero."""
    if not isinstance(like.type, TensorType):
        return F.zeros_like(like)
    return F.constant_of_shape(F.shape(like), value=np.zeros(1, like.dtype.numpy))


def flat_positions(x: Value) -> Any:
    """int64 tensor of x's shape that holds each element's row-major position.

    Whatever moves x's elements moves their positions alike, which turns any such operator's gradient into one
    scatter: see `scatter_flat`.
    """
    return reshape_like(F.range(np.int64(0), F.size(x), np.int64(1)), x)


def scatter_flat(dy: Any, positions: Any, like: Value, *, unique: bool = False) -> Any:
    """A tensor of `like`'s shape: zeros, with every element of dy added at its row-major position.

    `unique` promises that no position occurs twice, which older versions of the standard can express.
    """
    flat = i64(-1)
    zeros = F.constant_of_shape(F.reshape(F.size(like), i64(1)), value=np.zeros(1, dy.dtype.numpy))
    reduction = "none" if unique else "add"
    total = F.scatter_elements(zeros, F.reshape(positions, flat), F.reshape(dy, flat), reduction=reduction)
    return reshape_like(total, like)
