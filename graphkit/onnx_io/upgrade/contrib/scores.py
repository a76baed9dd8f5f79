"""Parts of attention with separate heads: masks and biases of the scores, and softmax(scores) V."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import UnsupportedError
from graphkit.ir import dims
from graphkit.ir.types import DType
from graphkit.named_tuples import NamedTuple
from graphkit.onnx_io.upgrade import NodeView
from graphkit.ops import F, constant
from graphkit.ops.axes import i64
from graphkit.ops.pointwise import scalar_like

# Default that a padding mask adds to the scores of hidden keys.
MASK_FILTER = -10000.0


def int64(value: int) -> Any:
    """A scalar."""
    return constant(np.asarray(value, np.int64))


def heads_of(x: Any, heads: int) -> Any:
    """[B, L, heads * D] -> [B, heads, L, D]."""
    hidden = x.tensor.known_shape[2]
    size = hidden // heads if dims.is_static(hidden) and hidden % heads == 0 else -1
    return F.transpose(F.reshape(x, i64(0, 0, heads, size)), perm=(0, 2, 1, 3))


def joined_heads(x: Any) -> Any:
    """[B, heads, L, D] -> [B, L, heads * D]."""
    _, heads, _, size = x.tensor.known_shape
    joint = heads * size if dims.is_static(heads) and dims.is_static(size) else -1
    return F.reshape(F.transpose(x, perm=(0, 2, 1, 3)), i64(0, 0, joint))


def needs_rank(node: NodeView, *ranks: int, **operands: Any) -> None:
    """Raise UnsupportedError for a present operand whose rank is not one of `ranks`."""
    for name, x in operands.items():
        if x is not None and x.rank not in ranks:
            allowed = " or ".join(map(str, ranks))
            raise UnsupportedError(f"{node.label}: {name} {x} does not have {allowed} axes")


def scale_of(node: NodeView, size: Any) -> float:
    """The factor of the scores: attribute `scale`, else 1 / sqrt(size of a head)."""
    scale = float(node.take("scale", 0.0))
    if scale:
        return scale
    if not dims.is_static(size):
        raise UnsupportedError(f"{node.label}: the head size is unknown, and no scale is given")
    return 1.0 / math.sqrt(size) if size else 1.0


class Lengths(NamedTuple):
    """int64 vectors of one element: number of queries, of all keys, and of keys before the first query."""

    queries: Any
    keys: Any
    past: Any


def lengths(q: Any, k: Any, past: Any = None) -> Lengths:
    """The lengths for q, k [B, H, L, D]. `past`: earlier keys [B, H, P, D]."""
    return Lengths(F.shape(q)[2:3], F.shape(k)[2:3], i64(0) if past is None else F.shape(past)[2:3])


def columns(sizes: Lengths) -> Any:
    """The position of each key."""
    return F.range(int64(0), F.squeeze(sizes.keys), int64(1))


def rows(sizes: Lengths) -> Any:
    """The position of each query among the keys: [L, 1]."""
    return F.unsqueeze(F.add(F.range(int64(0), F.squeeze(sizes.queries), int64(1)), sizes.past), i64(1))


def padding(node: NodeView, mask: Any, batch: Any, sizes: Lengths, fill: float, like: Any) -> Any:
    """The values to add to the scores [B, H, L, T] for `mask_index`: `fill` for hidden keys, else 0.

    mask: [B, T] or [B, L, T], in which 0 hides a key; [B, 1, M, M], cut to the existing rows and columns; [B], the
    number of keys; [2 * B], the ends, then the starts, of the visible keys.
    """
    if mask.rank is None or mask.rank > 4:
        raise UnsupportedError(f"{node.label}: a mask of unknown kind: {mask}")
    if mask.rank > 1:
        shown = F.greater(mask, constant(np.zeros((), mask.dtype.numpy)))
        if mask.rank == 4:
            ends = F.concat(F.add(sizes.past, sizes.queries), sizes.keys, axis=0)
            shown = F.slice(shown, F.concat(sizes.past, i64(0), axis=0), ends, i64(2, 3))
        else:
            shown = F.unsqueeze(shown, i64(1, 2) if mask.rank == 2 else i64(1))
    else:
        shown = _between(mask, batch, sizes)
    return F.where(shown, scalar_like(0.0, like), scalar_like(fill, like))


def _between(mask: Any, batch: Any, sizes: Lengths) -> Any:
    """Mask [B, 1, 1, T] of the keys between the first and last positions in a vector."""
    size, place = mask.shape[0], columns(sizes)
    count = F.shape(batch)[:1]
    ends = F.cast(mask, to=DType.INT64)
    if size == batch.tensor.known_shape[0]:
        return F.less(place, F.unsqueeze(ends, i64(1, 2, 3)))
    starts = F.slice(ends, count, F.add(count, count), i64(0))
    # If the vector contains no starts, this is empty, and is filled up with zeros.
    starts = F.pad(starts, F.concat(i64(0), F.sub(count, F.shape(starts)), axis=0))
    starts, ends = (F.reshape(v, i64(-1, 1, 1, 1)) for v in (starts, F.slice(ends, i64(0), count, i64(0))))
    return F.and_(F.less(place, ends), F.greater_or_equal(place, starts))


def causal(sizes: Lengths) -> Any:
    """Causal mask [L, T]: a query sees keys up to its own position."""
    return F.less_or_equal(columns(sizes), rows(sizes))


def summed(*terms: Any) -> Any:
    """The sum of the terms that are not None; None if there is none."""
    found = None
    for term in terms:
        if term is not None:
            found = term if found is None else F.add(found, term)
    return found


def scores(q: Any, k: Any, scale: float, added: Any = None, visible: Any = None) -> Any:
    """scale * q k^T + added, [B, H, L, T]; minus infinity where `visible` is false."""
    found = F.mul(F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), scalar_like(scale, q))
    if visible is not None and added is not None:
        added, visible = F.where(visible, added, scalar_like(-np.inf, q)), None
    if added is not None:
        found = F.add(found, added)
    return found if visible is None else F.where(visible, found, scalar_like(-np.inf, q))
