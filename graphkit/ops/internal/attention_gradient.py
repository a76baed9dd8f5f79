"""Attention in training: the forward operator saves statistics of the scores, and the gradient recomputes the scores.

Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691. The kernels keep a few numbers for each query, and no
scores or weights, so their memory is linear in the positions. The pass `fuse_attention_gradient` makes these operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch
from graphkit.ir.types import BOOLS, FLOATS, HALVES, DType, TensorType
from graphkit.ops._base import F, Rand, Sample, op
from graphkit.ops.internal.fused_attention import AttentionOp, attention_samples, of_type, visible_keys
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like

_MASKS = FLOATS | BOOLS


def statistics_type(kind: DType) -> DType:
    """The element type of the statistics of attention on `kind`: float32 for float16 and bfloat16."""
    return DType.FLOAT32 if kind in HALVES else kind


class _Scored(AttentionOp):
    """Base of the forward operator and the gradient: computes the scores."""

    def _in_heads(self, swap: Any, *operands: Any) -> tuple[Any, ...]:
        """Return the operands as [N, H, rows, columns]. swap: exchanges axes 1 and 2."""
        return tuple(swap(x) for x in operands) if self.layout == "NLHD" else operands

    def _scores(self, xp: Any, q: Any, k: Any, mask: Any) -> tuple[Any, Any]:
        """Return the scores of arrays q [N, H, L, D] and k [N, H, S, D], and a mask.

        The mask is false for scores that the boolean or the causal mask replaced.
        """
        scores = xp.matmul(q, xp.swapaxes(k, 2, 3)) * xp.asarray(self.scale, dtype=q.dtype)
        kept = xp.ones(scores.shape, dtype=bool)
        if mask is not None and mask.dtype == bool:
            kept = kept & mask
            scores = xp.where(mask, scores, xp.asarray(self.mask_value, dtype=q.dtype))
        elif mask is not None:
            scores = scores + mask
        if self.causal:
            rows, keys = scores.shape[2:]
            seen = xp.arange(keys)[None, :] <= xp.arange(rows)[:, None] + (keys - rows)
            kept = kept & seen
            scores = xp.where(seen, scores, xp.asarray(-xp.inf, dtype=q.dtype))
        return scores, kept

    def _expanded_scores(self, q: Any, k: Any, mask: Any) -> tuple[Any, list[Any]]:
        """Build the scores in the graph. Return them, and masks that are all true where a score was not replaced."""
        scores, kept = F.mat_mul(q, F.transpose(k, perm=(0, 1, 3, 2))), []
        if self.scale != 1.0:
            scores = F.mul(scores, scalar_like(self.scale, scores))
        if mask is not None and mask.dtype is DType.BOOL:
            kept.append(mask)
            scores = F.where(mask, scores, scalar_like(self.mask_value, scores))
        elif mask is not None:
            scores = F.add(scores, mask)
        if self.causal:
            kept.append(visible_keys(scores))
            scores = F.where(kept[-1], scores, scalar_like(-math.inf, scores))
        return scores, kept

    @staticmethod
    def _raised(xp: Any, scores: Any, largest: Any) -> Any:
        """exp(score - largest); 0 for queries that see nothing."""
        base = xp.where(largest == -xp.inf, xp.asarray(0, dtype=largest.dtype), largest)
        return xp.exp(scores - base[..., None])

    @staticmethod
    def _expanded_raised(scores: Any, largest: Any) -> Any:
        """Build `_raised` in the graph. largest: [N, H, L, 1]."""
        none, zero = scalar_like(-math.inf, largest), scalar_like(0.0, largest)
        return F.exp(F.sub(scores, F.where(F.equal(largest, none), zero, largest)))


def _widened(q: Any, *others: Any) -> tuple[Any, ...]:
    """Convert operands to the type of the statistics, as the reference does. Boolean masks and None stay unchanged."""
    kind = statistics_type(q.dtype)
    return tuple(x if x is None or x.dtype is DType.BOOL else of_type(x, kind) for x in (q, *others))


def _swapped(x: Any) -> Any:
    return F.transpose(x, perm=(0, 2, 1, 3))


# Sizes N, H, L, S, D and E, a mask, and attributes.
_CASES: tuple[tuple[tuple[int, ...], Any, dict[str, Any]], ...] = (
    ((2, 3, 4, 6, 5, 2), None, {"scale": 0.5}),
    ((2, 3, 4, 6, 5, 2), (2, 1, 1, 6), {"scale": 0.5}),
    ((2, 3, 4, 6, 5, 2), (4, 6), {"layout": "NLHD", "output_layout": "NLHD"}),
    ((2, 3, 4, 4, 5, 5), None, {"causal": True, "output_layout": "NLHD"}),
    ((1, 2, 2, 5, 3, 3), None, {"causal": True, "scale": 0.25}),
    ((1, 2, 3, 3, 4, 4), np.tril(np.ones((3, 3), bool)), {"mask_value": -1e4}),
    ((1, 2, 2, 3, 4, 4), np.array([True, False, True]), {}),
    ((1, 2, 2, 3, 4, 4), Rand((2, 3), dtype="float32"), {}),
)


def _gradient_samples() -> Iterator[Sample]:
    narrow = FLOATS - {DType.FLOAT64}
    for (n, h, rows, keys, depth, width), mask, attrs in _CASES:

        def heads(count: int, columns: int, layout: str, n: int = n, h: int = h) -> tuple[int, ...]:
            return (n, count, h, columns) if layout == "NLHD" else (n, h, count, columns)

        q, k, v = (heads(*size, attrs.get("layout", "NHLD")) for size in ((rows, depth), (keys, depth), (keys, width)))
        y = heads(rows, width, attrs.get("output_layout", "NHLD"))
        # The type of statistics is that of the operands, or float32.
        for dtypes, of in ((narrow, "float32"), (FLOATS - narrow, "float64")):
            largest, total = Rand((n, h, rows), 0.0, 2.0, of), Rand((n, h, rows), 1.0, 4.0, of)
            yield Sample(q, k, v, mask, y, largest, total, y, dtypes=dtypes, **attrs)


@op
class FusedAttentionWithStatistics(_Scored):
    """FusedAttention that also returns each query's largest score and its sum of exp(score - largest).

    Both are [N, H, L], of float64 for float64 operands, else of float32. If a query sees no key, its largest score is
    minus infinity, and its sum is 0.

    The two numbers are not combined to log(sum) + largest. If all scores of a query are near -1e9, as with some masks,
    adding log(sum) to such a number would round it away, and the attention weights would be wrong.
    """

    inputs = ("q", "k", "v", "mask?")
    outputs = ("y", "largest", "total")
    types = {"q": FLOATS, "k": "q", "v": "q", "mask": _MASKS}
    composite = True
    samples = lambda: (
        *attention_samples(),
        Sample((1, 2, 4, 5), (1, 2, 6, 5), (1, 2, 6, 2), Rand((4, 6), dtype="float32")),
        # The first query sees nothing: NaN.
        Sample((1, 1, 3, 2), (1, 1, 2, 2), (1, 1, 2, 2), causal=True, grad=False),
    )

    def infer(
        self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None
    ) -> tuple[TensorType, TensorType, TensorType]:
        y = self.result(q, k, v, mask)
        statistics = TensorType(statistics_type(q.dtype), self.heads_first(q)[:3])
        return y, statistics, statistics

    def reference(self, xp: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        q, k, v = self._in_heads(lambda x: xp.swapaxes(x, 1, 2), q, k, v)
        scores, _ = self._scores(xp, q, k, mask)
        least = xp.asarray(-xp.inf, dtype=scores.dtype)
        largest = xp.max(xp.concatenate([scores, xp.broadcast_to(least, (*scores.shape[:3], 1))], axis=3), axis=3)
        raised = self._raised(xp, scores, largest)
        total = xp.sum(raised, axis=3)
        y = xp.matmul(raised / total[..., None], v)
        return (xp.array(xp.swapaxes(y, 1, 2)) if self.output_layout == "NLHD" else y), largest, total

    def expand(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        given = q.dtype
        q, k, v, mask = _widened(q, k, v, mask)
        q, k, v = self._in_heads(_swapped, q, k, v)
        scores, _ = self._expanded_scores(q, k, mask)
        axis = np.array([-1], np.int64)
        largest = F.reduce_max(scores, axis, keepdims=True)
        raised = self._expanded_raised(scores, largest)
        total = F.reduce_sum(raised, axis, keepdims=True)
        y = F.mat_mul(F.div(raised, total), v)
        y = of_type(_swapped(y) if self.output_layout == "NLHD" else y, given)
        return y, F.squeeze(largest, axis), F.squeeze(total, axis)


@op
class FusedAttentionGrad(_Scored):
    """The gradients of FusedAttention with respect to q, k and v.

    y, largest and total: the results of FusedAttentionWithStatistics with the same attributes and operands; dy: y's
    shape. The weights are p = exp(score - largest) / total; they are NaN for a query that sees no key. The gradient of
    the scores is ds = p * (dy @ v^T - sum(dy * y)), and 0 where a boolean mask or `causal` replaced the score. The
    results are dq = scale * ds @ k, dk = scale * ds^T @ q and dv = p^T @ dy. The mask has no gradient. Dao et al.
    2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691.
    """

    inputs = ("q", "k", "v", "mask?", "y", "largest", "total", "dy")
    outputs = ("dq", "dk", "dv")
    types = {
        "q": FLOATS, "k": "q", "v": "q", "mask": _MASKS, "y": "q", "largest": FLOATS, "total": FLOATS, "dy": "q",
    }  # fmt: skip
    composite = True
    samples = staticmethod(lambda: tuple(_gradient_samples()))

    def infer(
        self,
        q: TensorType,
        k: TensorType,
        v: TensorType,
        mask: TensorType | None,
        y: TensorType,
        largest: TensorType,
        total: TensorType,
        dy: TensorType,
    ) -> tuple[TensorType, TensorType, TensorType]:
        result = self.result(q, k, v, mask)
        for name, given in (("y", y), ("dy", dy)):
            if not fits(given.shape, result.shape):
                raise TypeMismatch(f"{name} {given} does not fit the result {result}")
        statistics = TensorType(statistics_type(q.dtype), self.heads_first(q)[:3])
        for name, given in (("largest", largest), ("total", total)):
            if given.dtype is not statistics.dtype or not fits(given.shape, statistics.shape):
                raise TypeMismatch(f"{name} {given} is not one number for each query: {statistics}")
        return q, k, v

    def reference(self, xp: Any, q: Any, k: Any, v: Any, mask: Any, y: Any, largest: Any, total: Any, dy: Any) -> Any:
        q, k, v = self._in_heads(lambda x: xp.swapaxes(x, 1, 2), q, k, v)
        if self.output_layout == "NLHD":
            y, dy = (xp.swapaxes(x, 1, 2) for x in (y, dy))
        scores, kept = self._scores(xp, q, k, mask)
        weights = self._raised(xp, scores, largest) / total[..., None]
        spread = xp.matmul(dy, xp.swapaxes(v, 2, 3)) - xp.sum(dy * y, axis=3, keepdims=True)
        zero, scale = (xp.asarray(number, dtype=q.dtype) for number in (0, self.scale))
        ds = xp.where(kept, weights * spread, zero)
        dq, dk = xp.matmul(ds, k) * scale, xp.matmul(xp.swapaxes(ds, 2, 3), q) * scale
        dv = xp.matmul(xp.swapaxes(weights, 2, 3), dy)
        return tuple(xp.array(x) for x in self._in_heads(lambda x: xp.swapaxes(x, 1, 2), dq, dk, dv))

    def expand(self, q: Any, k: Any, v: Any, mask: Any, y: Any, largest: Any, total: Any, dy: Any) -> Any:
        given, axis = q.dtype, np.array([-1], np.int64)
        q, k, v, y, dy, mask = _widened(q, k, v, y, dy, mask)
        q, k, v = self._in_heads(_swapped, q, k, v)
        if self.output_layout == "NLHD":
            y, dy = _swapped(y), _swapped(dy)
        scores, kept = self._expanded_scores(q, k, mask)
        weights = F.div(self._expanded_raised(scores, F.unsqueeze(largest, axis)), F.unsqueeze(total, axis))
        spread = F.mat_mul(dy, F.transpose(v, perm=(0, 1, 3, 2)))
        ds = F.mul(weights, F.sub(spread, F.reduce_sum(F.mul(dy, y), axis, keepdims=True)))
        for condition in kept:
            ds = F.where(condition, ds, scalar_like(0.0, ds))
        if self.scale != 1.0:
            ds = F.mul(ds, scalar_like(self.scale, ds))
        dq, dk = F.mat_mul(ds, k), F.mat_mul(F.transpose(ds, perm=(0, 1, 3, 2)), q)
        dv = F.mat_mul(F.transpose(weights, perm=(0, 1, 3, 2)), dy)
        found = self._in_heads(_swapped, dq, dk, dv)
        return tuple(of_type(x, given) for x in found)
