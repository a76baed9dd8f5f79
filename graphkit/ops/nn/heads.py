"""Heads of attention: how they are taken out of hidden sizes, and shared."""

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


def repeated_heads(x: Any, q: Any) -> Any:
    """[B, G, S, D] -> [B, H, S, D] where q has the H heads: each comes H / G times. `share_heads` takes that back."""
    sizes, heads = F.shape(x), F.shape(q)[1:2]
    times = F.div(heads, sizes[1:2])
    every = F.expand(F.unsqueeze(x, i64(2)), F.concat(sizes[:2], times, sizes[2:], axis=0))
    return F.reshape(every, F.concat(sizes[:1], heads, sizes[2:], axis=0), allowzero=True)
