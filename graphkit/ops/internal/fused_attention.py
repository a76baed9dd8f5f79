"""Scaled dot-product attention as one operator, which inference passes make from several standard operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graphkit.errors import TypeMismatch, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import BOOLS, FLOATS, DType, TensorType, broadcast_shapes
from graphkit.ops._base import DOMAIN, F, Op, Sample, op
from graphkit.ops.operands import fits
from graphkit.ops.pointwise import scalar_like

_LAYOUTS = ("NHLD", "NLHD")


def attention_samples() -> tuple[Sample, ...]:
    """Return samples without shared heads: each head of queries has its own keys."""
    return (
        Sample((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), scale=0.5),
        Sample((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 2), (2, 1, 1, 6), scale=0.5),
        Sample((2, 4, 3, 5), (2, 6, 3, 5), (2, 6, 3, 2), (4, 6), layout="NLHD", output_layout="NLHD"),
        Sample((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), causal=True, output_layout="NLHD"),
        Sample((1, 2, 2, 3), (1, 2, 5, 3), (1, 2, 5, 3), causal=True, scale=0.25),
        Sample((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), np.tril(np.ones((3, 3), bool)), mask_value=-1e4),
        Sample((1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), np.array([True, False, True])),
    )


class AttentionOp(Op):
    """Base of scaled dot-product attention operators: common attributes (see FusedAttention) and inference of sizes."""

    scale: float = 1.0
    causal: bool = False
    mask_value: float = -math.inf
    layout: str = "NHLD"
    output_layout: str = "NHLD"
    domain = DOMAIN
    symbolic_inference = True
    # Whether several heads of queries may share a head of keys.
    shares_heads = False

    def result(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None) -> TensorType:
        """Return the type of the result. Raises TypeMismatch for wrong operands, UsageError for unknown layouts."""
        if self.layout not in _LAYOUTS or self.output_layout not in _LAYOUTS:
            raise UsageError(
                f"layouts must be {' and '.join(_LAYOUTS)}, not {self.layout!r} and {self.output_layout!r}"
            )
        if mask is not None and mask.dtype not in (q.dtype, DType.BOOL, DType.FLOAT32):
            raise TypeMismatch(f"the mask {mask} must have the element type of {q}")
        batch, heads, rows, _ = q_shape = self.heads_first(q)
        keys, values = self.heads_first(k), self.heads_first(v)
        same = ((batch, keys[0]), (q_shape[3], keys[3]), *zip(keys[:3], values[:3], strict=True))
        if not (all(dims.may_equal(a, b) for a, b in same) and self._may_share(heads, keys[1])):
            raise TypeMismatch(f"the shapes of {q}, {k} and {v} do not fit together in layout {self.layout}")
        if mask is not None and mask.shape is not None:
            scores = (batch, heads, rows, keys[2])
            joint = broadcast_shapes([scores, mask.shape])
            if joint is None or not fits(joint, scores):
                raise TypeMismatch(f"the mask {mask} does not broadcast to [{', '.join(map(str, scores))}]")
        columns = values[3]
        shape = (batch, heads, rows, columns) if self.output_layout == "NHLD" else (batch, rows, heads, columns)
        return TensorType(q.dtype, shape)

    def _may_share(self, heads: Dim, groups: Dim) -> bool:
        """Return whether `heads` heads of queries can share `groups` heads of keys in equal parts."""
        if self.shares_heads and dims.is_static(heads) and dims.is_static(groups) and heads != groups:
            return bool(groups > 0 and heads % groups == 0)
        return dims.may_equal(heads, groups)

    def heads_first(self, kind: TensorType) -> tuple[Dim, ...]:
        """Return the sizes of an operand as [N, H, rows, columns]. Raises TypeMismatch unless it has four axes."""
        if kind.shape is None:
            return tuple(dims.fresh() for _ in range(4))
        if len(kind.shape) != 4:
            raise TypeMismatch(f"attention takes operands of four axes, not {kind}")
        n, a, b, d = kind.shape
        return (n, a, b, d) if self.layout == "NHLD" else (n, b, a, d)


@op
class FusedAttention(AttentionOp):
    """Scaled dot-product attention: softmax(scale * q @ k^T + mask) @ v for each head.

    Vaswani et al. 2017, arXiv:1706.03762.

    q: [N, H, L, D], k: [N, G, S, D], v: [N, G, S, Dv] -> [N, H, L, Dv]; each head of k and v serves H / G neighbouring
    heads of q. With layout="NLHD" the operands are [N, L, H, D] and so on, with output_layout="NLHD" the result is [N,
    L, H, Dv]. The mask broadcasts to [N, H, L, S]. A float mask, of q's type or float32, is added to the scores, which
    then have the mask's type. Where a boolean mask is false, the score is replaced by `mask_value`. `causal` hides the
    keys after i + S - L from query i, as if their scores were minus infinity.
    """

    inputs = ("q", "k", "v", "mask?")
    types = {"q": FLOATS, "k": "q", "v": "q", "mask": FLOATS | BOOLS}
    samples = lambda: (
        *attention_samples(),
        Sample((2, 4, 3, 5), (2, 2, 3, 5), (2, 2, 3, 4), (4, 1, 3), causal=True, scale=0.5),
        Sample((2, 1, 6, 4), (2, 5, 2, 4), (2, 5, 2, 3), (1, 6, 1, 5), layout="NLHD", output_layout="NLHD"),
    )
    shares_heads = True

    def infer(self, q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None = None) -> TensorType:
        return self.result(q, k, v, mask)

    def reference(self, xp: Any, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        if self.layout == "NLHD":
            q, k, v = (xp.swapaxes(x, 1, 2) for x in (q, k, v))
        if k.shape[1] != q.shape[1]:
            k, v = (xp.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
        scores = xp.matmul(q, xp.swapaxes(k, 2, 3)) * xp.asarray(self.scale, dtype=q.dtype)
        if mask is not None and mask.dtype == bool:
            scores = xp.where(mask, scores, xp.asarray(self.mask_value, dtype=q.dtype))
        elif mask is not None:
            scores = scores.astype(mask.dtype, copy=False) + mask
        if self.causal:
            rows, keys = scores.shape[2:]
            hidden = xp.arange(keys)[None, :] > xp.arange(rows)[:, None] + (keys - rows)
            scores = xp.where(hidden, xp.asarray(-xp.inf, dtype=scores.dtype), scores)
        if scores.size == 0:
            weights = scores
        else:
            raised = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
            weights = raised / xp.sum(raised, axis=-1, keepdims=True)
        y = xp.matmul(weights.astype(v.dtype, copy=False), v)
        return xp.array(xp.swapaxes(y, 1, 2)) if self.output_layout == "NLHD" else y

    def expand(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        from graphkit.ops.nn.heads import shared_product

        heads, groups = (self.heads_first(x.tensor)[1] for x in (q, k))
        shared = q.tensor.shape is not None and k.tensor.shape is not None and heads != groups
        product = shared_product if shared else F.mat_mul
        if self.layout == "NLHD":
            q, v = (F.transpose(x, perm=(0, 2, 1, 3)) for x in (q, v))
        k = F.transpose(k, perm=(0, 1, 3, 2) if self.layout == "NHLD" else (0, 2, 3, 1))
        scores = product(q, k)
        if self.scale != 1.0:
            scores = F.mul(scores, scalar_like(self.scale, scores))
        if mask is not None and mask.dtype is DType.BOOL:
            scores = F.where(mask, scores, scalar_like(self.mask_value, scores))
        elif mask is not None:
            scores = F.add(of_type(scores, mask.dtype), mask)
        if self.causal:
            scores = F.where(visible_keys(scores), scores, scalar_like(-math.inf, scores))
        y = product(of_type(F.softmax(scores, axis=-1), v.dtype), v)
        return F.transpose(y, perm=(0, 2, 1, 3)) if self.output_layout == "NLHD" else y


def of_type(x: Any, kind: DType) -> Any:
    """Convert x to an element type; return x itself if it already has it."""
    return x if x.dtype is kind else F.cast(x, to=kind)


def visible_keys(scores: Any) -> Any:
    """Return a mask of the keys that each causal query sees: bool [L, S], true where key <= query + S - L."""
    rows, keys = (F.squeeze(F.shape(scores, start=i, end=i + 1), np.array([0])) for i in (2, 3))
    zero, one = (F.constant(value=np.array(i, np.int64)) for i in (0, 1))
    last = F.unsqueeze(F.add(F.range(zero, rows, one), F.sub(keys, rows)), np.array([1]))
    return F.less_or_equal(F.range(zero, keys, one), last)
