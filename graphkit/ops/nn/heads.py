"""Heads of attention: split hidden sizes into heads, merge heads, share heads of keys."""

from __future__ import annotations

from typing import Any

from graphkit.ops._base import F
from graphkit.ops.axes import i64


def split_heads(x: Any, heads: int) -> Any:
    """[B, L, heads * D] -> [B, L, heads, D]."""
    sizes = F.shape(x)
    return F.reshape(x, F.concat(sizes[:2], i64(heads), F.div(sizes[2:], i64(heads)), axis=0), allowzero=True)


def merge_heads(x: Any) -> Any:
    """[B, L, H, D] -> [B, L, H * D]."""
    sizes = F.shape(x)
    return F.reshape(x, F.concat(sizes[:2], F.mul(sizes[2:3], sizes[3:]), axis=0), allowzero=True)


def shared_product(a: Any, b: Any) -> Any:
    """a [B, H, L, m] @ b [B, G, m, n] -> [B, H, L, n], where each of the G matrices serves H / G neighbouring heads.

    The rows of these heads are stacked in one product, so that no matrix is copied, in exported files either.
    """
    sizes, groups = F.shape(a), F.shape(b)[1:2]
    rows = F.mul(sizes[2:3], F.div(sizes[1:2], groups))
    stacked = F.reshape(a, F.concat(sizes[:1], groups, rows, sizes[3:], axis=0), allowzero=True)
    y = F.mat_mul(stacked, b)
    return F.reshape(y, F.concat(sizes[:3], F.shape(b)[3:], axis=0), allowzero=True)


def repeated_heads(x: Any, q: Any) -> Any:
    """Repeat each head H / G times: [B, G, S, D] -> [B, H, S, D], where H is the number of heads of q."""
    sizes, heads = F.shape(x), F.shape(q)[1:2]
    times = F.div(heads, sizes[1:2])
    every = F.expand(F.unsqueeze(x, i64(2)), F.concat(sizes[:2], times, sizes[2:], axis=0))
    return F.reshape(every, F.concat(sizes[:1], heads, sizes[2:], axis=0), allowzero=True)
