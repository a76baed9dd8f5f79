"""Convert between tensors with channels as the last axis, and the standard's operators, which have them first."""

from __future__ import annotations

from typing import Any

from graphkit.errors import UnsupportedError
from graphkit.ir.graph import Value
from graphkit.onnx_io.upgrade import NodeView
from graphkit.ops import F


def rank_of(node: NodeView, *values: Value) -> int:
    """The known rank of `values`, which all have the same rank."""
    ranks = [v.rank for v in values if v.rank is not None]
    if not ranks:
        raise UnsupportedError(f"{node.label}: channels_last needs a tensor of known rank")
    return ranks[0]


def channels_first(x: Any, rank: int) -> Any:
    """[N, *spatial, C] as [N, C, *spatial]."""
    return F.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Any, rank: int) -> Any:
    """[N, C, *spatial] as [N, *spatial, C]."""
    return F.transpose(x, perm=(0, *range(2, rank), 1))
