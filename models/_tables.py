"""Inputs of networks for tables: columns of numbers, `x`, and of category codes, `categories` (docs/tables.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import UsageError
from graphkit.frontend import layers as nn
from graphkit.ir.graph import Value
from graphkit.models._transformer import drop
from graphkit.ops import F


def table_inputs(network: str, numbers: int, sizes: Sequence[int]) -> tuple[Value | None, list[Value]]:
    """Return x, float32 [N, numbers] or None, and the columns of `categories`, int64 [N], one per size.

    Raises UsageError if `sizes` is not one positive integer or more, or if `numbers` is negative.
    """
    if isinstance(numbers, bool) or not isinstance(numbers, int) or numbers < 0:
        raise UsageError(f"{network}: numbers must be 0 or a positive integer, not {numbers!r}")
    if not sizes or not _positive(sizes):
        raise UsageError(f"{network}: sizes must be a positive integer per column of categories, not {sizes!r}")
    x = nn.input("x", ["N", numbers]) if numbers else None
    categories = nn.input("categories", ["N", len(sizes)], "int64")
    return x, [F.gather(categories, np.int64(column), axis=1) for column in range(len(sizes))]


def hidden_widths(network: str, option: str, widths: int | Sequence[int]) -> tuple[int, ...]:
    """Return the widths of hidden layers as a tuple. Raises UsageError if one is not positive."""
    found = (widths,) if isinstance(widths, int) else tuple(widths)
    if not _positive(found):
        raise UsageError(f"{network}: {option} must be positive integers, not {widths!r}")
    return found


def dense(x: Value, widths: Sequence[int], dropout: float = 0.0, *, name: str = "fc") -> Value:
    """Apply fully connected layers, each followed by ReLU and dropout. Parameters: `<name>1_weight`, `_bias`, ..."""
    for i, width in enumerate(widths, 1):
        x = drop(F.relu(nn.linear(x, width, init="he_normal", bias_init="zeros", name=f"{name}{i}")), dropout)
    return x


def _positive(sizes: Sequence[int]) -> bool:
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
