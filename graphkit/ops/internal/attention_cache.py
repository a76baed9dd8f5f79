"""Attention of a decoder with a cache: keys and values of earlier runs, followed by new ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.ir.types import BOOLS, FLOATS, TensorType
from graphkit.ops._base import F, Sample, apply, op
from graphkit.ops.internal.fused_attention import AttentionOp, FusedAttention
from graphkit.ops.tensor.concat import Concat


@op
class CachedAttention(AttentionOp):
    """FusedAttention over cached keys and values followed by new ones; also returns the extended cache.

    q: [N, H, L, D], k: [N, G, S, D], v: [N, G, S, Dv], past_k: [N, G, P, D], past_v: [N, G, P, Dv]. The outputs
    `keys` [N, G, P + S, D] and `values` [N, G, P + S, Dv] are the extended cache: past_k followed by k, and past_v
    followed by v. The output `y` is FusedAttention of q over them. The mask has P + S columns. `layout` must be "NHLD";
    the other attributes are those of FusedAttention.
    """

    inputs = ("q", "k", "v", "past_k", "past_v", "mask?")
    outputs = ("y", "keys", "values")
    types = {"q": FLOATS, "k": "q", "v": "q", "past_k": "q", "past_v": "q", "mask": FLOATS | BOOLS}
    samples = lambda: (
        Sample((2, 3, 1, 5), (2, 3, 1, 5), (2, 3, 1, 4), (2, 3, 6, 5), (2, 3, 6, 4), scale=0.5),
        Sample((1, 4, 1, 4), (1, 2, 1, 4), (1, 2, 1, 4), (1, 2, 5, 4), (1, 2, 5, 4), causal=True),
        Sample((1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 3), (1, 2, 5, 4), (1, 2, 5, 3), causal=True, output_layout="NLHD"),
        Sample((1, 2, 2, 3), (1, 2, 2, 3), (1, 2, 2, 3), (1, 2, 0, 3), (1, 2, 0, 3), (2, 2)),
        Sample((1, 1, 1, 2), (1, 1, 1, 2), (1, 1, 1, 2), (1, 1, 2, 2), (1, 1, 2, 2), np.array([True, False, True])),
        Sample((1, 2, 7, 3), (1, 2, 7, 3), (1, 2, 7, 3), (1, 2, 2, 3), (1, 2, 2, 3), causal=True),
    )  # fmt: skip
    shares_heads = True

    def infer(
        self, q: TensorType, k: TensorType, v: TensorType, past_k: TensorType, past_v: TensorType,
        mask: TensorType | None = None,
    ) -> tuple[TensorType, TensorType, TensorType]:  # fmt: skip
        if self.layout != "NHLD":
            raise UsageError(f"the layout must be NHLD, not {self.layout!r}")
        keys, values = (Concat(axis=2).infer(past, new) for past, new in ((past_k, k), (past_v, v)))
        return self.result(q, keys, values, mask), keys, values

    def attention(self) -> FusedAttention:
        """Return the attention over the keys and values that the operator returns."""
        return FusedAttention(**self.attributes())

    def reference(self, xp: Any, q: Any, k: Any, v: Any, past_k: Any, past_v: Any, mask: Any = None) -> Any:
        keys, values = (xp.concatenate(pair, axis=2) for pair in ((past_k, k), (past_v, v)))
        return self.attention().reference(xp, q, keys, values, mask), keys, values

    def expand(self, q: Any, k: Any, v: Any, past_k: Any, past_v: Any, mask: Any = None) -> Any:
        keys, values = F.concat(past_k, k, axis=2), F.concat(past_v, v, axis=2)
        return apply(self.attention(), q, keys, values, mask), keys, values
