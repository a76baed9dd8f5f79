"""Attention and related operators. Older opsets have no windows, the oldest no lengths for an external cache.

Some element types are in no opset.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.ir.graph import Value
from graphkit.ir.types import DType
from graphkit.onnx_io.downgrade import ALWAYS, Site, Spelling, rewrites, spells
from graphkit.ops import operator
from graphkit.ops.nn.attention import Attention

_VALID_KEYS = 6


@rewrites("Attention", below=25)
def _expanded(site: Site) -> Sequence[Value] | None:
    op = operator(site.node, Attention)
    windowed = op.left_window_size >= 0 or op.right_window_size >= 0
    if windowed or (site.target < 24 and site.input(_VALID_KEYS) is not None):
        results: Sequence[Value] = site.op.expand(*site.inputs)
        return results
    return None


@spells("Attention", below=25)
def _without_windows(spelling: Spelling) -> None:
    spelling.only("left_window_size", -1)
    spelling.only("right_window_size", -1)


@rewrites("CausalConvWithState", "LinearAttention", "RotaryEmbedding", below=ALWAYS)
def _doubles(site: Site) -> Sequence[Value] | None:
    if site.operand(0).dtype is not DType.FLOAT64:
        return None
    results = site.op.expand(*site.inputs)
    return results if isinstance(results, tuple) else (results,)
