"""Scaled dot-product attention and rotary position embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphkit.errors import RuntimeFailure, TypeMismatch, UnsupportedError, UsageError
from graphkit.ir import dims
from graphkit.ir.dims import Dim
from graphkit.ir.types import BOOLS, FLOATS, HALVES, NUMERIC, DType, TensorType
from graphkit.ops._base import F, Onnx, Op, Sample, op
from graphkit.ops.axes import INT64, i64
from graphkit.ops.nn.heads import merge_heads, shared_product, split_heads
from graphkit.ops.operands import converted, fits
from graphkit.ops.pointwise import scalar_like

_POSITIONS = np.array([[2, 0, 1], [3, 3, 2]])
_MASK = np.array([[True, False, True, True], [False, False, False, False], [True, True, False, False]])
_RAW, _CAPPED, _BIASED, _WEIGHTS = range(4)


def needs_ranks(name: str, *operands: Any) -> None:
    """Raise UnsupportedError if the rank of an operand, on which the expansion depends, is unknown."""
    for operand in operands:
        if operand is not None and operand.rank is None:
            raise UnsupportedError(f"{name} in other operators needs operands of known rank, not {operand}")


@op
class RotaryEmbedding(Op):
    """Rotate pairs of elements of each head by angles that depend on the position. Su et al. 2021, arXiv:2104.09864.

    x: [B, H, L, D], or [B, L, H * D] with num_heads. The first R elements of a head are rotated: R is
    `rotary_embedding_dim`, or D if that is 0. Elements i and i + R / 2 form a pair; with `interleaved`, elements 2 i
    and 2 i + 1. position_ids: int64 [B, L]. cos_cache, sin_cache: [positions, R / 2] if position_ids is given,
    otherwise [B, L, R / 2].
    """

    interleaved: bool = False
    num_heads: int | None = None
    rotary_embedding_dim: int = 0
    inputs = ("x", "cos_cache", "sin_cache", "position_ids?")
    types = {"x": FLOATS, "cos_cache": "x", "sin_cache": "x", "position_ids": INT64}
    onnx = Onnx("RotaryEmbedding", since=23)
    composite = True
    samples = lambda: (
        Sample((2, 2, 3, 4), (5, 2), (5, 2), _POSITIONS),
        Sample((2, 2, 3, 4), (2, 3, 2), (2, 3, 2)),
        Sample((2, 3, 8), (5, 2), (5, 2), _POSITIONS, num_heads=2),
        Sample((2, 2, 3, 6), (5, 2), (5, 2), _POSITIONS, rotary_embedding_dim=4),
        Sample((2, 2, 3, 4), (5, 2), (5, 2), _POSITIONS, interleaved=True),
        Sample((2, 3, 12), (2, 3, 2), (2, 3, 2), num_heads=2, rotary_embedding_dim=4, interleaved=True),
    )

    def value_check(self, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
        is_told = len(inputs) > 3 and inputs[3] is not None
        return ("positions", inputs[3], inputs[1].tensor.shape or inputs[1]) if is_told else None

    def infer(
        self, x: TensorType, cos_cache: TensorType, sin_cache: TensorType, position_ids: TensorType | None = None
    ) -> TensorType:
        if x.rank not in (None, 3, 4) or (x.rank == 3 and not self.num_heads):
            raise TypeMismatch(f"{x} is neither [B, H, L, D] nor [B, L, H * D] with num_heads={self.num_heads}")
        if cos_cache.rank not in (None, 3 if position_ids is None else 2) or not fits(cos_cache.shape, sin_cache.shape):
            raise TypeMismatch(
                f"cos_cache {cos_cache} and sin_cache {sin_cache} must have one shape, with "
                f"{3 if position_ids is None else 2} axes"
            )
        if x.shape is not None and cos_cache.shape is not None:
            head: Dim = self.rotary_embedding_dim
            if not head:
                head = x.shape[-1] if x.rank == 4 else dims.floordiv(x.shape[-1], self.num_heads or 1)
            if not dims.may_equal(head, 2 * cos_cache.shape[-1]):
                raise TypeMismatch(
                    f"the last axis of cos_cache and sin_cache must have half of the {head} rotated elements; it is "
                    f"{cos_cache}"
                )
        return TensorType(x.dtype, x.shape)

    def reference(self, xp: Any, x: Any, cos_cache: Any, sin_cache: Any, position_ids: Any = None) -> Any:
        heads = x.reshape(*x.shape[:2], self.num_heads, -1) if x.ndim == 3 else x
        axis = 2 if x.ndim == 3 else 1
        cos, sin = (
            xp.expand_dims(c if position_ids is None else c[position_ids], axis) for c in (cos_cache, sin_cache)
        )
        half = cos.shape[-1]
        places = (
            (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if self.interleaved else (slice(half), slice(half, 2 * half))
        )
        a, b = (heads[..., place] for place in places)
        y = xp.array(heads, order="C")
        y[..., places[0]] = cos * a - sin * b
        y[..., places[1]] = sin * a + cos * b
        return y.reshape(x.shape)

    def expand(self, x: Any, cos_cache: Any, sin_cache: Any, position_ids: Any = None) -> Any:
        needs_ranks(self.name, x)
        heads, axis = (split_heads(x, self.num_heads or 1), 2) if x.rank == 3 else (x, 1)
        cos, sin = (
            F.unsqueeze(c if position_ids is None else F.gather(c, position_ids, axis=0), i64(axis))
            for c in (cos_cache, sin_cache)
        )
        half = F.shape(cos)[3:]
        twice = F.add(half, half)
        zero, last = i64(0), i64(-1)
        if self.interleaved:
            rotated = heads if not self.rotary_embedding_dim else F.slice(heads, zero, twice, last)
            pairs = F.reshape(rotated, F.concat(F.shape(heads)[:3], half, i64(2), axis=0), allowzero=True)
            a, b = (F.gather(pairs, np.int64(i), axis=4) for i in (0, 1))
        else:
            a, b = F.slice(heads, zero, half, last), F.slice(heads, half, twice, last)
        real, imaginary = cos * a - sin * b, sin * a + cos * b
        if self.interleaved:
            joined = F.concat(F.unsqueeze(real, last), F.unsqueeze(imaginary, last), axis=-1)
            parts = [F.reshape(joined, F.concat(F.shape(heads)[:3], twice, axis=0), allowzero=True)]
        else:
            parts = [real, imaginary]
        if self.rotary_embedding_dim:
            parts.append(F.slice(heads, twice, i64(np.iinfo(np.int64).max), last))
        y = F.concat(*parts, axis=-1) if len(parts) > 1 else parts[0]
        return merge_heads(y) if x.rank == 3 else y


@op
class Attention(Op):
    """Scaled dot-product attention: softmax(scale * Q K^T + bias) V for each head.

    Vaswani et al. 2017, arXiv:1706.03762.

    q has H heads, k and v have G, and H is a multiple of G: each head of k and v serves H / G heads of q. Query i has
    the position i + offset among the keys. The offset is the length of past_key if past_key is given, nonpad_kv_seqlen
    - L if nonpad_kv_seqlen is given, else 0. A query that may attend to no key gives 0.

    Args:
        q: Queries, [B, H, L, D]; or [B, L, H * D], with q_num_heads and kv_num_heads.
        k: Keys, [B, G, S, D]; or [B, S, G * D].
        v: Values, [B, G, S, E]; or [B, S, G * E].
        attn_mask: Floats that are added to the scores, or a boolean mask (true: attend). It must broadcast to
            [B, H, L, T]. A shorter last axis is filled with -inf or false.
        past_key: Keys before k, [B, G, P, D]. T = P + S is the number of all keys.
        past_value: Values before v, [B, G, P, E].
        nonpad_kv_seqlen: [B], the number of valid keys; the others are padding.
        is_causal: A query ignores keys after its position.
        kv_num_heads: G; required if k and v have three axes.
        left_window_size: A query reads at most this number of keys before its own position (-1: all).
        q_num_heads: H; required if q has three axes.
        qk_matmul_output_mode: Contents of the fourth output: 0: the scores; 1: the scores after softcap; 2: the scores
            with the mask; 3: the result of the softmax.
        right_window_size: A query reads at most this number of keys after its own position (-1: all).
        scale: Factor on the scores, not negative (default: 1 / sqrt(D)).
        softcap: If above 0, scores are replaced by softcap * tanh(scores / softcap).
        softmax_precision: Element type in which the softmax is computed (default: that of q).

    Returns:
        y, like q but with E instead of D; present_key [B, G, T, D] and present_value [B, G, T, E], which are the past
        followed by k or v; qk_matmul_output [B, H, L, T].
    """

    is_causal: bool = False
    kv_num_heads: int | None = None
    left_window_size: int = -1
    q_num_heads: int | None = None
    qk_matmul_output_mode: int = 0
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: DType | None = None
    inputs = ("q", "k", "v", "attn_mask?", "past_key?", "past_value?", "nonpad_kv_seqlen?")
    outputs = ("y", "present_key", "present_value", "qk_matmul_output")
    types = {
        "q": FLOATS,
        "k": "q",
        "v": FLOATS,
        "attn_mask": NUMERIC | BOOLS,
        "past_key": "q",
        "past_value": "v",
        "nonpad_kv_seqlen": INT64,
    }
    onnx = Onnx("Attention", since=25)
    composite = True
    samples = lambda: (
        Sample((2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)),
        Sample((2, 3, 8), (2, 5, 8), (2, 5, 6), q_num_heads=2, kv_num_heads=2, is_causal=True, scale=0.5),
        Sample(
            (2, 4, 3, 4), (2, 2, 4, 4), (2, 2, 4, 4), (3, 4), dtypes=FLOATS, softcap=0.75, qk_matmul_output_mode=1
        ),
        Sample((1, 3, 8), (1, 4, 4), (1, 4, 6), _MASK, q_num_heads=4, kv_num_heads=2, qk_matmul_output_mode=3),
        Sample((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4), None, (2, 2, 2, 4), (2, 2, 2, 4), is_causal=True),
        Sample(
            (2, 2, 3, 4), (2, 2, 6, 4), (2, 2, 6, 4), (2, 1, 3, 5), None, None, np.array([4, 3]),
            dtypes=FLOATS, is_causal=True,
        ),
        # grad=False: the scores of mode 2 are infinite.
        Sample((1, 2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4), _MASK, qk_matmul_output_mode=2, grad=False),
        Sample((1, 1, 4, 2), (1, 1, 6, 2), (1, 1, 6, 2), left_window_size=1, right_window_size=2),
        Sample(
            (1, 2, 4, 2), (1, 2, 4, 2), (1, 2, 4, 2), left_window_size=1, is_causal=True, softmax_precision="float64"
        ),
        # Masks with fewer keys than k has.
        Sample((1, 2, 3, 4), (1, 2, 6, 4), (1, 2, 6, 4), _MASK),
        Sample((1, 2, 3, 4), (1, 2, 6, 4), (1, 2, 6, 4), (3, 4), dtypes=FLOATS),
        # Heads of size 0: all scores are equal. onnx's reference divides by 0.
        Sample((1, 2, 3, 0), (1, 2, 4, 0), (1, 2, 4, 3), onnx=False),
    )  # fmt: skip

    def multiply_adds(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Dim:
        head_sizes: Dim = outputs[1].known_shape[3] + outputs[2].known_shape[3]
        return dims.product(outputs[3].known_shape) * head_sizes

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *others: TensorType | None) -> Any:
        _, past_key, past_value, nonpad = (*others, None, None, None, None)[:4]
        if not 0 <= self.qk_matmul_output_mode <= _WEIGHTS:
            raise UsageError(f"qk_matmul_output_mode must be 0, 1, 2 or 3, not {self.qk_matmul_output_mode}")
        if self.scale is not None and self.scale < 0:
            raise UsageError(
                f"scale={self.scale} must not be negative: queries and keys are multiplied by its square root"
            )
        if (past_key is None) is not (past_value is None) or (past_key is not None and nonpad is not None):
            raise TypeMismatch("past_key and past_value must be given together, and without nonpad_kv_seqlen")
        ranks = {x.rank for x in (q, k, v)} - {None}
        if len(ranks) > 1 or not ranks <= {3, 4} or (3 in ranks and not (self.q_num_heads and self.kv_num_heads)):
            raise TypeMismatch(
                f"q, k, v must have four axes, or three with q_num_heads and kv_num_heads: {q}, {k}, {v}"
            )
        if any(x.shape is None for x in (q, k, v)):
            return TensorType(q.dtype), TensorType(k.dtype), TensorType(v.dtype), TensorType(q.dtype)
        flat = 3 in ranks
        queries = _four(q, self.q_num_heads) if flat else q.known_shape
        keys, values = (_four(x, self.kv_num_heads) if flat else x.known_shape for x in (k, v))
        same = ((queries[0], keys[0]), (queries[3], keys[3]), (keys[1], values[1]), (keys[2], values[2]))
        if not all(dims.may_equal(a, b) for a, b in same):
            raise TypeMismatch(f"batch, head size or number of keys of {q}, {k} and {v} differ")
        if dims.is_static(queries[1]) and dims.is_static(keys[1]) and queries[1] % keys[1]:
            raise TypeMismatch(f"{queries[1]} heads of queries are not a multiple of {keys[1]} heads of keys")
        total = keys[2]
        if past_key is not None:
            past = dims.fresh() if past_key.shape is None else past_key.shape[2]
            total = past + total
        shape = (*queries[:3], values[3])
        if flat:
            shape = (queries[0], queries[2], queries[1] * values[3])
        return (
            TensorType(q.dtype, shape),
            TensorType(k.dtype, (*keys[:2], total, keys[3])),
            TensorType(v.dtype, (*values[:2], total, values[3])),
            TensorType(q.dtype, (*queries[:3], total)),
        )

    @property
    def _windowed(self) -> bool:
        return self.left_window_size >= 0 or self.right_window_size >= 0

    def _visible(self, rows: Any, columns: Any, less_equal: Any) -> list[Any]:
        """Return masks of the keys that a query may attend to, by position and window. less_equal: compares them."""
        found = [less_equal(columns, rows)] if self.is_causal else []
        if self.left_window_size >= 0:
            found.append(less_equal(rows - columns, self.left_window_size))
        if self.right_window_size >= 0:
            found.append(less_equal(columns - rows, self.right_window_size))
        return found

    # --- on arrays -----------------------------------------------------------------------------

    def reference(
        self,
        xp: Any,
        q: Any,
        k: Any,
        v: Any,
        attn_mask: Any = None,
        past_key: Any = None,
        past_value: Any = None,
        nonpad: Any = None,
    ) -> Any:
        flat = q.ndim == 3
        if flat:
            heads = (self.q_num_heads, self.kv_num_heads, self.kv_num_heads)
            q, k, v = (
                xp.transpose(x.reshape(*x.shape[:2], n, -1), (0, 2, 1, 3))
                for x, n in zip((q, k, v), heads, strict=True)
            )
        if past_key is not None:
            k, v = xp.concatenate((past_key, k), axis=2), xp.concatenate((past_value, v), axis=2)
        if q.shape[1] % k.shape[1]:
            raise RuntimeFailure(f"{q.shape[1]} heads of queries are not a multiple of {k.shape[1]} heads of keys")
        groups = q.shape[1] // k.shape[1]
        every_k, every_v = (xp.repeat(x, groups, axis=1) for x in (k, v))
        root = max(q.shape[3], 1) ** -0.25 if self.scale is None else math.sqrt(self.scale)
        raw = xp.matmul(q * root, xp.swapaxes(every_k * root, 2, 3)).astype(q.dtype)
        capped = xp.tanh(raw / self.softcap) * self.softcap if self.softcap > 0 else raw
        bias = self._bias(xp, q, k, attn_mask, 0 if past_key is None else past_key.shape[2], nonpad)
        biased = xp.where(bias == -np.inf, -np.inf, capped + bias).astype(q.dtype)
        scores = biased if self.softmax_precision is None else biased.astype(self.softmax_precision.numpy)
        dead = xp.max(bias, axis=-1, keepdims=True) == -np.inf
        scores = xp.where(dead, 0, scores)
        powers = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        weights = xp.where(dead, 0, powers / xp.sum(powers, axis=-1, keepdims=True)).astype(q.dtype)
        y = xp.matmul(weights, every_v)
        if flat:
            y = xp.transpose(y, (0, 2, 1, 3)).reshape(y.shape[0], y.shape[2], -1)
        return y, k, v, (raw, capped, biased, weights)[self.qk_matmul_output_mode]

    def _bias(self, xp: Any, q: Any, k: Any, mask: Any, past: int, nonpad: Any) -> Any:
        """Return the array that is added to the scores: -inf where a query may not attend to a key."""
        length, total = q.shape[2], k.shape[2]
        bias = xp.zeros((length, total), dtype=q.dtype)
        if mask is not None:
            hidden = -np.inf if mask.dtype != bool else False
            missing = [(0, 0)] * (mask.ndim - 1) + [(0, max(total - mask.shape[-1], 0))]
            mask = xp.pad(mask.astype(q.dtype) if mask.dtype != bool else mask, missing, constant_values=hidden)
            bias = bias + (xp.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
        columns, valid = xp.arange(total), None if nonpad is None else nonpad.reshape(-1, 1, 1, 1)
        rows = xp.arange(length)[:, None] + (past if valid is None else valid - length)
        visible = self._visible(rows, columns, xp.less_equal)
        if valid is not None:
            visible.append(columns < valid)
        for part in visible:
            bias = xp.where(part, bias, -np.inf)
        return bias

    # --- in the graph --------------------------------------------------------------------------

    def expand(
        self,
        q: Any,
        k: Any,
        v: Any,
        attn_mask: Any = None,
        past_key: Any = None,
        past_value: Any = None,
        nonpad: Any = None,
    ) -> Any:
        needs_ranks(self.name, q, k, v, attn_mask)
        flat = q.rank == 3
        if flat:
            heads = (self.q_num_heads or 1, self.kv_num_heads or 1, self.kv_num_heads or 1)
            q, k, v = (F.transpose(split_heads(x, n), perm=(0, 2, 1, 3)) for x, n in zip((q, k, v), heads, strict=True))
        if past_key is not None:
            k, v = F.concat(past_key, k, axis=2), F.concat(past_value, v, axis=2)
        grouped = q.tensor.shape is None or k.tensor.shape is None or q.tensor.shape[1] != k.tensor.shape[1]
        product = shared_product if grouped else F.mat_mul
        raw = self._expanded_scores(q, k, product)
        capped = F.tanh(raw / self.softcap) * self.softcap if self.softcap > 0 else raw
        added, visible = self._masks(q, k, attn_mask, past_key, nonpad)
        biased = capped if added is None else capped + added
        if visible is not None:
            biased = F.where(visible, biased, scalar_like(-np.inf, q))
        precision = self.softmax_precision or q.dtype
        weights = biased
        alive = None
        if attn_mask is not None or nonpad is not None or self._windowed:
            alive = _any(visible, added, q)
            weights = F.where(alive, weights, scalar_like(0.0, q))
        weights = converted(F.softmax(converted(weights, precision), axis=-1), q.dtype)
        if alive is not None:
            weights = F.where(alive, weights, scalar_like(0.0, q))
        y = converted(product(converted(weights, v.dtype), v), q.dtype)
        if flat:
            y = merge_heads(F.transpose(y, perm=(0, 2, 1, 3)))
        shown = (raw, capped, biased, weights)[self.qk_matmul_output_mode]
        return (y, *(F.identity(x) for x in (k, v, shown)))

    def _expanded_scores(self, q: Any, k: Any, product: Any) -> Any:
        """Build scale * q k^T.

        For float16 and bfloat16, and if the head size is unknown, q and k are each scaled by sqrt(scale) first.
        """
        size, scale, turned = q.tensor.known_shape[3], self.scale, (0, 1, 3, 2)
        if scale is None and dims.is_static(size):
            scale = max(size, 1) ** -0.5
        if scale is not None and q.dtype not in HALVES:
            return F.mul(product(q, F.transpose(k, perm=turned)), scalar_like(scale, q))
        if scale is None:
            root = F.pow(F.cast(F.shape(q)[3:], to=q.dtype), scalar_like(-0.25, q))
        else:
            root = scalar_like(math.sqrt(scale), q)
        return product(q * root, F.transpose(k * root, perm=turned))

    def _masks(self, q: Any, k: Any, mask: Any, past_key: Any, nonpad: Any) -> tuple[Any, Any]:
        """Return the term added to the scores (None: 0), and a mask of keys that a query may attend to (None: all)."""
        length, total = F.shape(q)[2:3], F.shape(k)[2:3]
        added, visible = None, []
        if mask is not None:
            boolean = mask.dtype is DType.BOOL
            mask = mask if boolean else converted(mask, q.dtype)
            if mask.shape is None or mask.shape[-1] != k.tensor.known_shape[2]:
                missing = F.sub(total, F.shape(mask)[-1:])
                hidden = np.array(False) if boolean else scalar_like(-np.inf, q)
                mask = F.pad(mask, F.concat(i64(0), missing, axis=0), hidden, i64(-1))
            added, visible = (None, [mask]) if boolean else (mask, [])
        if self.is_causal or self._windowed or nonpad is not None:
            zero, one = np.int64(0), np.int64(1)
            columns = F.range(zero, F.squeeze(total), one)
            rows = F.unsqueeze(F.range(zero, F.squeeze(length), one), i64(1))
            if nonpad is not None:
                valid = F.reshape(nonpad, i64(-1, 1, 1, 1))
                rows = F.add(rows, F.sub(valid, length))
                visible.append(F.less(columns, valid))
            elif past_key is not None:
                rows = F.add(rows, F.shape(past_key)[2:3])
            visible += self._visible(rows, columns, F.less_or_equal)
        joint = None
        for part in visible:
            joint = part if joint is None else F.and_(joint, part)
        return added, joint


def _four(x: TensorType, heads: int | None) -> tuple[Dim, ...]:
    """Reshape [B, L, H * D] to [B, H, L, D]."""
    batch, length, hidden = x.known_shape
    return batch, heads or 1, length, dims.floordiv(hidden, heads or 1)


def _any(visible: Any, added: Any, q: Any) -> Any:
    """Return whether each query may attend to at least one key: bool with a last axis of size 1."""
    if added is not None:
        hidden = F.less_or_equal(added, scalar_like(-np.inf, q))  # NaN does not hide
        visible = F.not_(hidden) if visible is None else F.and_(visible, F.not_(hidden))
    return F.cast(F.reduce_max(F.cast(visible, to=DType.INT32), i64(-1)), to=DType.BOOL)
